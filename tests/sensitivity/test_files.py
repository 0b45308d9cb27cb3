"""Files of sensitivities: what was saved comes back, and a bad file is one sentence."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwbmpq.errors import HwbmpqError
from hwbmpq.sensitivity import files, load_sensitivity, save_sensitivity
from hwbmpq.values import Sensitivity

FOUND = Sensitivity(
    method="enbg",
    scores={"stem": 0.1 + 0.2, "head": 1e-30},
    errors={"stem": {2: 3.5, 16: 0.0}, "head": {4: 1e300}},
    remarks=("α was calibrated on 8 batches",),
)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    save_sensitivity(FOUND, tmp_path / "s.json", model="timm:resnet18")
    assert load_sensitivity(tmp_path / "s.json") == FOUND


def test_errors_of_activations_come_back(tmp_path: Path) -> None:
    both = replace(FOUND, activation_errors={"stem": {2: 0.5, 8: 0.0}})
    save_sensitivity(both, tmp_path / "s.json")
    assert load_sensitivity(tmp_path / "s.json") == both
    assert Sensitivity.from_dict(json.loads(json.dumps(both.to_dict()))) == both


def test_what_earlier_versions_wrote_has_no_errors_of_activations(tmp_path: Path) -> None:
    save_sensitivity(FOUND, tmp_path / "s.json")
    assert "activation_errors" not in (tmp_path / "s.json").read_text()  # so that they can read ours too
    content = FOUND.to_dict()
    del content["activation_errors"]
    assert Sensitivity.from_dict(content) == FOUND


def test_layers_keep_their_order(tmp_path: Path) -> None:
    save_sensitivity(FOUND, tmp_path / "s.json")
    assert list(load_sensitivity(tmp_path / "s.json").scores) == ["stem", "head"]


def test_facts_are_kept_beside_the_scores(tmp_path: Path) -> None:
    save_sensitivity(FOUND, str(tmp_path / "s.json"), model="timm:resnet18", images=256)
    facts = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))["facts"]
    assert facts == {"model": "timm:resnet18", "images": 256}


def test_scores_without_errors_come_back(tmp_path: Path) -> None:
    uniform = Sensitivity(method="uniform", scores={"a": 1.0})
    save_sensitivity(uniform, tmp_path / "s.json")
    assert load_sensitivity(tmp_path / "s.json") == uniform


def test_traces_may_be_negative(tmp_path: Path) -> None:
    traces = Sensitivity(method="hessian_trace", scores={"a": -1.0})
    save_sensitivity(traces, tmp_path / "s.json")
    assert load_sensitivity(tmp_path / "s.json") == traces


def test_a_plain_object_of_numbers_will_do(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"layer1.0": 2, "head": 0.5}')
    assert load_sensitivity(tmp_path / "s.json") == Sensitivity(
        method="file", scores={"layer1.0": 2.0, "head": 0.5}
    )


def full(**changes: Any) -> str:
    document = {"schema": "hwbmpq-sensitivity/1", "method": "enbg", "layers": {"a": {"score": 1}}} | changes
    return json.dumps({name: value for name, value in document.items() if value is not ...})


def layer(**fields: Any) -> str:
    return full(layers={"a": {"score": 1} | fields})


BAD = {
    "not-json": ("{", "is not valid JSON"),
    "empty": ("", "is not valid JSON"),
    "not-text": ("\udcff", "is not valid JSON"),
    "duplicate": ('{"a": 1, "b": 2, "a": 3}', "is not valid JSON: 'a' is there twice"),
    "list": ("[1]", "the file: Input should be a valid dictionary (given: [1])"),
    "null": ("null", "the file: Input should be a valid dictionary (given: None)"),
    "no-layer": ("{}", "the file: Dictionary should have at least 1 item"),
    "deep": ("[" * 200_000, "is nested too deeply"),
    "plain-nan": ('{"a": NaN}', "a: Input should be a finite number (given: nan)"),
    "plain-infinity": ('{"a": Infinity}', "a: Input should be a finite number (given: inf)"),
    "plain-huge": (f'{{"a": 1{"0" * 400}}}', "a: Input should be a finite number (given: inf)"),
    "plain-negative": ('{"a": -1}', "a: Input should be greater than or equal to 0 (given: -1)"),
    "plain-text": ('{"a": "1"}', "a: Input should be a valid number (given: '1')"),
    "plain-boolean": ('{"a": true}', "a: Input should be a valid number (given: True)"),
    "plain-nested": ('{"a": {"score": 1}}', "a: Input should be a valid number (given: {'score': 1})"),
    "schema": (
        full(schema="hwbmpq-sensitivity/2"),
        "schema: Input should be 'hwbmpq-sensitivity/1' (given: 'hwbmpq-sensitivity/2')",
    ),
    "method": (full(method=3), "method: Input should be a valid string (given: 3)"),
    "remarks": (full(remarks="hello"), "remarks: Input should be a valid list (given: 'hello')"),
    "field": (full(layer={}), "layer: Extra inputs are not permitted"),
    "layers": (full(layers=...), "layers: Field required"),
    "layers-list": (full(layers=[]), "layers: Input should be a valid dictionary (given: [])"),
    "layers-empty": (full(layers={}), "layers: Dictionary should have at least 1 item"),
    "entry": (full(layers={"a": 1}), "layers.a: Input should be a valid dictionary (given: 1)"),
    "entry-field": (layer(error={}), "layers.a.error: Extra inputs are not permitted"),
    "score-missing": (full(layers={"a": {}}), "layers.a.score: Field required"),
    "score-negative": (layer(score=-0.5), "the file: the score of layer 'a' is negative"),
    "errors": (layer(errors=[1]), "layers.a.errors: Input should be a valid dictionary (given: [1])"),
    "width-text": (layer(errors={"two": 1}), "layers.a.errors.two: 'two' is not a weight width"),
    "width-17": (layer(errors={"17": 1}), "layers.a.errors.17: '17' is not a weight width"),
    "width-padded": (layer(errors={"04": 1}), "layers.a.errors.04: '04' is not a weight width"),
    "error-negative": (
        layer(errors={"4": -1}),
        "layers.a.errors.4: Input should be greater than or equal to 0 (given: -1)",
    ),
    "error-text": (
        layer(errors={"4": "x"}),
        "layers.a.errors.4: Input should be a valid number (given: 'x')",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_a_bad_file_is_one_sentence_that_names_file_and_field(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "scores.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(HwbmpqError) as raised:
        load_sensitivity(path)
    assert str(raised.value).startswith(f"{path}: {message}")
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_a_folder_say_so(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match="No such file"):
        load_sensitivity(tmp_path / "none.json")
    with pytest.raises(HwbmpqError, match="cannot be read: Is a directory"):
        load_sensitivity(tmp_path)


def test_a_path_that_cannot_be_says_so() -> None:
    with pytest.raises(HwbmpqError, match="cannot be read"):
        load_sensitivity("a\0b")


def test_a_file_that_is_too_large_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_BYTES", 2**20)
    (tmp_path / "s.json").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(HwbmpqError, match="more than 1048576"):
        load_sensitivity(tmp_path / "s.json")


def test_a_name_that_is_there_twice_among_many_is_found_at_once(tmp_path: Path) -> None:
    names = [f'"layer{number}": 1' for number in range(80_000)]
    (tmp_path / "s.json").write_text("{" + ",".join([*names, names[-1]]) + "}")
    start = time.perf_counter()
    with pytest.raises(HwbmpqError, match="'layer79999' is there twice"):
        load_sensitivity(tmp_path / "s.json")
    assert time.perf_counter() - start < 2  # comparing each with each takes a minute


def test_more_values_than_a_network_has_are_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("[" + "[]," * 500_000 + "[]]")
    with pytest.raises(HwbmpqError, match="more than 400,000 values"):
        load_sensitivity(tmp_path / "s.json")


def test_numbers_that_json_lacks_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match="cannot be written as JSON"):
        save_sensitivity(Sensitivity(method="enbg", scores={"a": float("nan")}), tmp_path / "s.json")
    assert not (tmp_path / "s.json").exists()


def test_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match="cannot be written: No such file"):
        save_sensitivity(FOUND, tmp_path / "none" / "s.json")


def test_reading_a_file_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"a": 1}')
    code = (
        "import sys; from hwbmpq.sensitivity import OUR_METHODS, load_sensitivity\n"
        f"load_sensitivity({str(tmp_path / 's.json')!r})\n"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
