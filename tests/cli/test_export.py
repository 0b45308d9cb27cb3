"""``hwbmpq export``, ``hwbmpq benchmark`` and ``hwbmpq evaluate --runtime`` as they are typed, on one small run."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import hwbmpq
from hwbmpq.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 2 and 4-bit weights beside 8-bit activations."""
    folder = tmp_path_factory.mktemp("export") / "run"
    words = "--model hwbmpq:resnet8 --target mpic --budget memory=24KiB --bits 2,4 --activation-bits 8 --data fake"
    small = "--train-images 64 --test-images 48 --batch-size 16 --epochs 3 -q"
    assert main(["compress", *words.split(), *small.split(), "--run-dir", str(folder)]) == 0
    return folder


@pytest.fixture
def run(
    finished: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Type a command where ``run`` is a copy of that run: exit code, stdout, stderr."""
    shutil.copytree(finished, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def typed(*words: str) -> tuple[int, str, str]:
        try:
            code = main(list(words))
        except SystemExit as error:  # argparse's
            code = int(error.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return typed


def accuracy(run: Run, *words: str) -> float:
    code, out, err = run("evaluate", "run", "--json", *words)
    assert code == 0, err
    return float(json.loads(out)["test_accuracy"])


def test_compress_leaves_a_packed_file_of_the_size_that_it_reports(finished: Path) -> None:
    report = json.loads((finished / "allocation.json").read_text())
    size = report["packed_file"]
    assert size["actual_bytes"] == (finished / "model.safetensors").stat().st_size
    assert abs(size["actual_bytes"] - size["predicted_bytes"]) <= 0.01 * size["predicted_bytes"] + 16 * 1024
    on_device = size["on_device"]
    assert on_device["actual_bytes"] == on_device["predicted_bytes"]
    assert on_device["actual_bytes"] * 8 == report["allocation"]["costs"]["memory"]
    assert sum(report["stored"].values()) == report["allocation"]["costs"]["memory"]


def test_the_packed_file_computes_what_the_checkpoint_computes(run: Run) -> None:
    loaded = hwbmpq.load("run")
    images = torch.randn(4, 3, 32, 32)
    state = hwbmpq.training.RunDirectory("run").load_checkpoint()[0]
    network = hwbmpq.models.load_model("hwbmpq:resnet8", num_classes=10).network
    hwbmpq.quant.prepare(network, hwbmpq.describe(network, images))
    network.load_state_dict(state["model"])
    network.to(memory_format=torch.channels_last)  # as runs do; kernels for it round differently
    with torch.no_grad():
        assert torch.equal(loaded(images), network.eval()(images))
    assert accuracy(run, "--runtime", "packed") == accuracy(run)


def test_export_writes_a_checked_graph_that_agrees_and_says_where_its_bytes_are(run: Run) -> None:
    code, out, err = run("export", "run")
    assert code == 0, err
    (same,) = re.findall(r"the same answer for ([\d.]+)% of them", out)
    assert float(same) > 95  # an image whose input lies on the edge of a code may go either way
    assert "opset 25" in out
    for line in ("weights", "scales and ranges", "biases and norms", "graph", "file"):
        assert f"\n  {line}" in out or f" {line} " in out
    onnx.checker.check_model("run/model.onnx", full_check=True)
    assert accuracy(run, "--runtime", "onnxruntime") == accuracy(run)


def test_export_as_json_accounts_for_every_byte(run: Run) -> None:
    code, out, _ = run("export", "run", "-o", "other.onnx", "--compare", "20", "--json")
    content = json.loads(out)
    assert code == 0
    assert content["bytes"] == Path("other.onnx").stat().st_size
    assert content["bytes"] == sum(line["actual_bytes"] for line in content["size"]["lines"])
    assert content["agreement"]["inputs"] == 32  # whole batches of 16
    assert content["agreement"]["median_difference"] < 1e-4
    weights = content["size"]["lines"][0]
    assert weights["predicted_bytes"] == weights["actual_bytes"]  # 2, 4 and 16 bits have types of their own
    properties = {entry.key: entry.value for entry in onnx.load("other.onnx").metadata_props}
    assert json.loads(properties["hwbmpq.normalisation"])["mean"] == [0.485, 0.456, 0.406]


def test_the_integer_form_says_what_it_changes(run: Run) -> None:
    code, out, err = run("export", "run", "--runtime-compat", "int8", "--json")
    assert code == 0, err
    content = json.loads(out)
    assert content["file"] == "run/model.int8.onnx"
    assert len(content["integer_layers"]) >= 6
    assert content["added_roundings"] >= 3  # before the three additions
    assert any("integer kernels" in remark for remark in content["remarks"])
    assert any("rounded to 8 bits" in remark for remark in content["remarks"])
    exact, fast = accuracy(run), accuracy(run, "--runtime", "onnxruntime", "--file", "run/model.int8.onnx")
    assert fast == pytest.approx(exact, abs=0.1)


def test_benchmark_times_forms_side_by_side(run: Run) -> None:
    code, out, err = run("benchmark", "run", "--rounds", "3", "--batch", "2", "--json")
    assert code == 0, err
    timings = json.loads(out)["timings"]
    assert list(timings) == ["float", "compressed", "unpacked at load", "int8 kernels"]
    assert timings["compressed"]["file_bytes"] < timings["float"]["file_bytes"] / 4
    for timing in timings.values():
        assert 0 < timing["median_ms"] <= timing["p90_ms"] <= timing["p99_ms"]
        assert timing["images_per_second"] == pytest.approx(2e3 / timing["median_ms"])
        assert timing["runs"] == 3
        assert timing["peak_memory_bytes"] > timing["file_bytes"]
    code, out, _ = run("benchmark", "run", "--rounds", "3")
    assert code == 0
    assert "speed" in out
    assert "float here" in out


def test_export_of_the_best_epoch_and_other_images(run: Run) -> None:
    rng = np.random.default_rng(0)
    images = {f"x_{part}": rng.integers(0, 256, (40, 32, 32, 3), np.uint8) for part in ("train", "test")}
    labels = {f"y_{part}": np.arange(40) % 10 for part in ("train", "test")}
    np.savez("other.npz", **images, **labels)
    code, out, err = run("export", "run", "--best", "--data", "npz:other.npz", "-o", "best.onnx", "--json")
    assert code == 0, err
    assert json.loads(out)["agreement"]["inputs"] == 40
    code, out, _ = run(
        "evaluate", "run", "--best", "--runtime", "onnxruntime", "--file", "best.onnx", "--json"
    )
    assert code == 0


@pytest.mark.parametrize(
    ("words", "message", "advice"),
    [
        (["evaluate", "run", "--runtime", "onnxruntime"], "run/model.onnx is not there", "hwbmpq export run"),
        (["evaluate", "run", "--file", "x.onnx"], "--file needs a runtime", "--runtime packed"),
        (
            ["evaluate", "run", "--runtime", "packed", "--best"],
            "run/best.safetensors is not there",
            "hwbmpq export run --format packed --best",
        ),
        (["evaluate", "run", "--runtime", "packed", "--file", "x"], "--file x is not there", ""),
        (["export", "run/config.yaml"], "is not a run of hwbmpq", ""),
        (["export", "run", "-o", "x.safetensors"], "end with .onnx", ""),
        (["export", "run", "-o", "run/config.yaml/x.onnx"], "is no folder", ""),
        (["benchmark", "run", "--threads", "9999"], "--threads 9999", ""),
        (["export", "nothing"], "nothing does not exist", "hwbmpq compress"),
        (["export", "run", "--compare", "0"], "--compare '0': give a whole number above zero", ""),
        (
            ["export", "run", "--format", "packed", "--runtime-compat", "int8"],
            "about ONNX files",
            "--format onnx",
        ),
        (["export", "run", "-o", "no/such/folder/x.onnx"], "cannot be written", "mkdir -p no/such/folder"),
        (
            ["export", "run", "--format", "packed", "-o", "no/x.safetensors"],
            "cannot be written",
            "mkdir -p no",
        ),
    ],
)
def test_mistakes_are_answered_in_one_sentence(run: Run, words: list[str], message: str, advice: str) -> None:
    code, _, err = run(*words)
    assert code == 2
    assert message in err
    assert advice in err
    assert "Traceback" not in err


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "flipped"])
def test_a_damaged_onnx_file_is_refused(run: Run, damage: str) -> None:
    assert run("export", "run")[0] == 0
    path = Path("run/model.onnx")
    content = path.read_bytes()
    broken = {
        "empty": b"",
        "cut": content[: len(content) // 2],
        "noise": bytes(range(256)) * 16,
        "flipped": bytes(byte ^ 0xFF for byte in content[:64]) + content[64:],
    }
    path.write_bytes(broken[damage])
    code, _, err = run("evaluate", "run", "--runtime", "onnxruntime")
    assert code == 2
    assert (
        "run/model.onnx is damaged" if damage == "flipped" else "ONNX Runtime cannot load run/model.onnx"
    ) in err


def test_the_best_epoch_and_other_processors_have_files_of_their_own(run: Run) -> None:
    before = Path("run/model.safetensors").read_bytes()
    Path("place").mkdir()
    for words in (
        ["--best"],
        ["--best", "--format", "packed"],
        ["--runtime-compat", "int8"],
        ["--runtime-compat", "int8-vnni"],
        ["-o", "place"],
    ):
        assert run("export", "run", "--compare", "16", *words)[0] == 0
    found = {path.name for path in Path("run").iterdir()}
    assert {"best.onnx", "best.safetensors", "model.int8.onnx", "model.int8-vnni.onnx"} <= found
    assert "model.onnx" not in found
    assert Path("place/model.onnx").is_file()
    assert Path("run/model.safetensors").read_bytes() == before
    assert run("evaluate", "run", "--best", "--runtime", "onnxruntime")[0] == 0


def test_overwriting_a_run_takes_its_exports_along(run: Run) -> None:
    assert run("export", "run")[0] == 0
    Path("run/notes.txt").write_text("mine")
    words = (
        "--model hwbmpq:resnet8 --target mpic --data fake --train-images 32 --test-images 16 --epochs 2 -q"
    )
    code, _, err = run("compress", *words.split(), "--run-dir", "run", "--overwrite")
    assert code == 0, err
    assert not Path("run/model.onnx").exists()
    assert Path("run/model.safetensors").exists()
    assert Path("run/notes.txt").exists()
