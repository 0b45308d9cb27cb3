"""Files of sensitivities: what was saved comes back, and a bad file is one sentence."""

import json
import subprocess
import sys
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
    "list": ("[1]", "the file is not a JSON object"),
    "null": ("null", "the file is missing"),
    "no-layer": ("{}", "the file names no layer"),
    "deep": ("[" * 200_000, "is nested too deeply"),
    "plain-nan": ('{"a": NaN}', "layer 'a' is nan, which is not finite"),
    "plain-infinity": ('{"a": Infinity}', "layer 'a' is inf, which is not finite"),
    "plain-huge": (f'{{"a": 1{"0" * 400}}}', "layer 'a' is inf, which is not finite"),
    "plain-negative": ('{"a": -1}', "layer 'a' is -1.0, which is negative"),
    "plain-text": ('{"a": "1"}', "layer 'a' is '1', not a number"),
    "plain-boolean": ('{"a": true}', "layer 'a' is True, not a number"),
    "plain-nested": ('{"a": {"score": 1}}', "layer 'a' is {'score': 1}, not a number"),
    "schema": (full(schema="hwbmpq-sensitivity/2"), "schema is 'hwbmpq-sensitivity/2', not"),
    "method": (full(method=3), "method is 3, not a name"),
    "remarks": (full(remarks="hello"), "remarks is not a list of sentences"),
    "field": (full(layer={}), "the file has no field 'layer'"),
    "layers": (full(layers=...), "layers is missing"),
    "layers-list": (full(layers=[]), "layers is not a JSON object"),
    "layers-empty": (full(layers={}), "layers names no layer"),
    "entry": (full(layers={"a": 1}), "layers.a is not a JSON object"),
    "entry-field": (layer(error={}), "layers.a has no field 'error'"),
    "score-missing": (full(layers={"a": {}}), "layers.a.score is None, not a number"),
    "score-negative": (layer(score=-0.5), "layers.a.score is -0.5, which is negative"),
    "errors": (layer(errors=[1]), "layers.a.errors is not a JSON object"),
    "width-text": (layer(errors={"two": 1}), "layers.a.errors: 'two' is not a weight width"),
    "width-17": (layer(errors={"17": 1}), "layers.a.errors: '17' is not a weight width"),
    "width-padded": (layer(errors={"04": 1}), "layers.a.errors: '04' is not a weight width"),
    "error-negative": (layer(errors={"4": -1}), "layers.a.errors.4 is -1.0, which is negative"),
    "error-text": (layer(errors={"4": "x"}), "layers.a.errors.4 is 'x', not a number"),
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
    with pytest.raises(HwbmpqError, match="is a folder"):
        load_sensitivity(tmp_path)


def test_a_path_that_cannot_be_says_so() -> None:
    with pytest.raises(HwbmpqError, match="cannot be read"):
        load_sensitivity("a\0b")


def test_a_file_that_is_too_large_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_BYTES", 2**20)
    (tmp_path / "s.json").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(HwbmpqError, match="is larger than 1 MB"):
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
