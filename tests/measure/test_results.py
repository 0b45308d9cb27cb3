"""Results from elsewhere: believed only if everything about them fits."""

import contextlib
import copy
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hwbmpq.errors import HwbmpqError
from hwbmpq.measure import ResultsError, kit_runner, read_results, results
from hwbmpq.measure.results import parse_results

Sign = Callable[[Mapping[str, Any]], dict[str, Any]]


def written(content: object, folder: Path) -> Path:
    path = folder / "results.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_what_the_runner_wrote_is_read(measured: dict[str, Any], tmp_path: Path) -> None:
    found = read_results(written(measured, tmp_path))
    assert found.is_complete
    assert found.machine.runtime.startswith("ONNX Runtime 1.")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_truncated_file_says_so(made_up: dict[str, Any], tmp_path: Path, share: float) -> None:
    content = json.dumps(made_up).encode()
    with pytest.raises(ResultsError, match="is not JSON") as caught:
        read_results(written(content[: int(len(content) * share)], tmp_path))
    assert "copy it again" in caught.value.hint.lower()


def test_any_flipped_bit_is_noticed(made_up: dict[str, Any], tmp_path: Path) -> None:
    content = json.dumps(made_up).encode()
    chance = random.Random(0)
    for _ in range(150):
        flipped = bytearray(content)
        flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        with pytest.raises(HwbmpqError):
            read_results(written(bytes(flipped), tmp_path))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_BYTES", 1000)
    with pytest.raises(ResultsError, match="larger than"):
        read_results(written(b" " * 2000, tmp_path))


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"null", b"[]", b'{"schema": "other"}', b"\xff\xfe", b"9" * 10_000]
)
def test_what_is_no_result_at_all_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ResultsError):
        read_results(written(content, tmp_path))


def test_not_a_number_is_refused(made_up: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(made_up).replace("500.0", "NaN", 1)
    with pytest.raises(ResultsError, match="NaN is not a measured value"):
        read_results(written(text.encode(), tmp_path))


def _first_time(content: dict[str, Any]) -> dict[str, Any]:
    kernel: dict[str, Any] = next(iter(content["times"].values()))
    node: dict[str, Any] = next(iter(kernel["ops"].values()))
    return node


def _all_zero(content: dict[str, Any], ids: str) -> None:
    for ident, kernel in content["times"].items():
        if ident.startswith(ids):
            for node in kernel["ops"].values():
                node["us"] = [0.0] * len(node["us"])


def _geometry(content: dict[str, Any]) -> dict[str, Any]:
    geometry: dict[str, Any] = content["manifest"]["kernels"][-1]["geometry"]
    return geometry


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a negative time": lambda c: _first_time(c)["us"].__setitem__(0, -1.0),
    "an endless time": lambda c: _first_time(c)["us"].__setitem__(0, 1e300),
    "a word for a time": lambda c: _first_time(c)["us"].__setitem__(0, "12"),
    "too few times": lambda c: _first_time(c)["us"].pop(),
    "too many times": lambda c: _first_time(c)["us"].append(1.0),
    "no nodes": lambda c: _first_time(c).__setitem__("nodes", 0),
    "a billion nodes": lambda c: _first_time(c).__setitem__("nodes", 10**9),
    "a reference of zero": lambda c: c["rounds"][0][0].__setitem__(0, 0.0),
    "a group that is not there": lambda c: next(iter(c["times"].values())).__setitem__("group", 99),
    "a billion rounds": lambda c: c["settings"].__setitem__("rounds", 10**9),
    "a name that leads outside": lambda c: c["manifest"]["kernels"][0].__setitem__("id", "../../etc/passwd"),
    "times of a kernel that leads outside": lambda c: c["times"].__setitem__("../x", _first_time(c)),
    "an unknown kernel": lambda c: c["times"].__setitem__("layer9999", next(iter(c["times"].values()))),
    "a kernel that is missing": lambda c: c["times"].pop(next(iter(c["times"]))),
    "two kernels of one id": lambda c: c["manifest"]["kernels"].append(c["manifest"]["kernels"][0]),
    "a form that does not exist": lambda c: c["manifest"]["kernels"][-1].__setitem__("form", "int3"),
    "a layer without a form": lambda c: c["manifest"]["kernels"][-1].pop("form"),
    "a geometry of another world": lambda c: c["manifest"]["kernels"][-1]["geometry"].__setitem__(
        "op", "conv9d"
    ),
    "a negative channel": lambda c: c["manifest"]["kernels"][-1]["geometry"].__setitem__("in_channels", -3),
    "a huge layer": lambda c: c["manifest"]["kernels"][-1]["geometry"].__setitem__("macs", 2**62),
    "an unknown key": lambda c: c["manifest"]["kernels"][-1]["geometry"].__setitem__("path", "/etc"),
    "widths that are none": lambda c: c["manifest"].__setitem__("widths", ["W99A1"]),
    "control characters": lambda c: c["machine"].__setitem__("cpu", "\x1b[31mred"),
    "an endless name": lambda c: c["machine"].__setitem__("cpu", "x" * 1000),
    "a date that is none": lambda c: c["machine"].__setitem__("date", "today"),
    "a day that is none": lambda c: c["machine"].__setitem__("date", "9999-99-99"),
    "something more": lambda c: c.__setitem__("more", 1),
    "no machine": lambda c: c.pop("machine"),
    "a list of times": lambda c: c.__setitem__("times", []),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_forgery_with_a_fitting_checksum_is_refused(
    made_up: dict[str, Any], sign: Sign, forge: Callable[[dict[str, Any]], object]
) -> None:
    content = copy.deepcopy(made_up)
    forge(content)
    with pytest.raises(ResultsError, match=r"results\.json"):
        parse_results(sign(content), "results.json")


def test_what_was_not_forged_is_not_refused(made_up: dict[str, Any], sign: Sign) -> None:
    assert parse_results(sign(copy.deepcopy(made_up)), "results.json").is_complete


ABSURDITIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "all times 0": (lambda c: _all_zero(c, ""), "a time of 0 in every round is not plausible"),
    "a layer in no time": (lambda c: _all_zero(c, "layer0003"), "layer0003: a time of 0 in every round"),
    "a call in no time": (lambda c: _all_zero(c, "chain16_wall"), "chain16_wall: a time of 0 in every round"),
    "more threads than cores": (
        lambda c: (c["machine"].update(cores=2), c["settings"].update(threads=9999)),
        "9999 threads on a machine of 2 cores",
    ),
    "no date": (
        lambda c: c["machine"].update(date="9999-99-99"),
        r"machine\.date: Input should be a valid date",
    ),
    "widths in words": (lambda c: c["manifest"].update(widths=["hello"]), "'hello' is not a pair of widths"),
    "no input channels": (
        lambda c: _geometry(c).pop("in_channels"),
        r"geometry\.in_channels: Field required",
    ),
    "a key for people": (
        lambda c: _geometry(c).update(note="\x1b[31m"),
        r"geometry\.note: Extra inputs are not permitted",
    ),
    "a key that paints": (
        lambda c: _geometry(c).update({"\x1b[31m": 1}),
        r"geometry\.\?\[31m: Extra inputs are not permitted",
    ),
    "a word for a size": (
        lambda c: _geometry(c).update(groups="1"),
        r"geometry\.groups: Input should be a valid integer",
    ),
    "a part of a channel": (
        lambda c: _geometry(c).update(out_h=1.5),
        r"geometry\.out_h: Input should be a valid integer",
    ),
    "a size for sides": (
        lambda c: _geometry(c).update(stride=2),
        r"geometry\.stride: Input should be a valid array",
    ),
    "an operation that paints": (
        lambda c: _geometry(c).update(op="\x1b[1m"),
        r"geometry\.op: .* is not an operation",
    ),
    "no network": (lambda c: c["manifest"].update(models=[]), r"manifest\.models"),
    "an unknown operation": (
        lambda c: c["manifest"]["kernels"][5].update(operation="dance"),
        r"manifest\.kernels\.5\.operation",
    ),
}


@pytest.mark.parametrize(("forge", "message"), ABSURDITIES.values(), ids=ABSURDITIES)
def test_what_cannot_have_been_measured_is_refused_in_one_clear_sentence(
    made_up: dict[str, Any], sign: Sign, forge: Callable[[dict[str, Any]], object], message: str
) -> None:
    content = copy.deepcopy(made_up)
    forge(content)
    with pytest.raises(ResultsError, match=message) as caught:
        parse_results(sign(content), "results.json")
    assert str(caught.value).isprintable()


def test_single_rounds_below_a_microsecond_are_plausible(made_up: dict[str, Any], sign: Sign) -> None:
    content = copy.deepcopy(made_up)
    _first_time(content)["us"][0] = 0.0
    assert parse_results(sign(content), "results.json").is_complete


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"nothere\.json: no such file$"):
        read_results(tmp_path / "nothere.json")


@hypothesis.settings(max_examples=150)
@hypothesis.given(data=st.data())
def test_any_value_anywhere_ends_in_results_or_an_error(made_up: dict[str, Any], data: st.DataObject) -> None:
    """Whatever stands at any place, with a checksum that fits."""
    content = copy.deepcopy(made_up)
    place: Any = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        is_leaf = not isinstance(place[key], (dict, list)) or not place[key]
        if is_leaf or data.draw(st.integers(0, 5)) == 0:
            break
        place = place[key]
    anything = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text()
        | st.just([])
        | st.just({})
    )
    place[key] = data.draw(anything)
    content["sha256"] = kit_runner.digest(content)
    with contextlib.suppress(ResultsError):  # and nothing else
        parse_results(content, "results.json")
