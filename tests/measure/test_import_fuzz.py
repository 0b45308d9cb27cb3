"""Results that were changed anywhere, with a checksum that fits: a profile that loads, or one sentence."""

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware import load_profile
from hwbmpq.measure import Measurement, kit_runner, read_results, write_profile

outcomes: Counter[str] = Counter()
NUMBERS = st.sampled_from(
    [0, 1, 2, 3, 16, 1e-300, 1e-9, 0.5, 1e8, 999999999.0, 2**53, 2**60, 2**62, -1, 10**400]
)
ANYTHING = st.one_of(
    NUMBERS,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(
        ["W2A2", "W8A8", "W99A99", "int8", "qdq16", "conv2d", "linear", "add", "layer1", "layer1_wall", "\0"]
    ),
    st.just([]),
    st.just({}),
)


def places(content: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys."""
    found = []
    for key in content if isinstance(content, dict) else range(len(content)):
        found.append((content, key))
        if isinstance(content[key], dict | list):
            found += places(content[key])
    return found


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, int, int, Any]]:
    kinds = st.sampled_from("value value remove repeat copy".split())
    numbers = st.integers(0, 10**6)
    return draw(st.lists(st.tuples(kinds, numbers, numbers, ANYTHING), min_size=1, max_size=3))


def changed(results: dict[str, Any], steps: list[tuple[str, int, int, Any]]) -> bytes:
    content = copy.deepcopy({key: value for key, value in results.items() if key != "sha256"})
    for kind, number, other, value in steps:
        all_places = places(content)
        if not all_places:
            break
        holder, key = all_places[number % len(all_places)]
        if kind == "remove":
            del holder[key]
        elif kind == "repeat" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif kind == "copy":
            source, name = all_places[other % len(all_places)]
            holder[key] = copy.deepcopy(source[name])
        else:
            holder[key] = value
    return json.dumps({**content, "sha256": kit_runner.digest(content)}).encode()


def imported(path: Path, folder: Path) -> HwbmpqError | None:
    """What the command does with a file; why it refused it."""
    try:
        write_profile(Measurement.of(read_results(path)), "fuzzed", folder=folder, overwrite=True)
    except HwbmpqError as error:
        return error
    return None


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=changes())
def test_changed_results_are_a_profile_or_one_sentence(
    made_up: dict[str, Any], tmp_path: Path, steps: list[tuple[str, int, int, Any]]
) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(changed(made_up, steps))
    refusal = imported(path, tmp_path / "profiles")
    outcomes["taken" if refusal is None else "refused"] += 1
    if refusal is None:
        load_profile(str(tmp_path / "profiles" / "fuzzed.yaml"))
    else:
        assert len(str(refusal)) < 1000


def test_some_are_taken_and_some_refused() -> None:
    assert outcomes["taken"] > 5
    assert outcomes["refused"] > 50


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace"))
)
def test_any_bytes_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content)
    assert imported(path, tmp_path / "profiles") is not None
