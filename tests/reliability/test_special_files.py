"""Pipes, devices, folders and files of holes where a file is expected: one sentence, at once, and no memory."""

import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hwbmpq
from hwbmpq.cli.main import main
from hwbmpq.errors import HwbmpqError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
COMPRESS = "compress --model hwbmpq:resnet8 --target mpic --data fake --input 3x8x8 --train-images 16 --test-images 8 "
COMPRESS += "--batch-size 8 --epochs 2 -q --run-dir"
PLAN = "plan --model hwbmpq:resnet8 --target mpic --budget memory=24KiB"
SECONDS, MEMORY = 5, 512 << 20


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its exports, and files of every other kind that is read."""
    folder = tmp_path_factory.mktemp("sent")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*COMPRESS.split(), "run"]) == 0
        assert main(["export", "run"]) == 0
        assert (
            main([*PLAN.split(), "--sensitivity", "weight-error", "--save-sensitivity", "scores.json"]) == 0
        )
        for part in ("train", "val"):
            for name in ("a", "b"):
                Path("photos", part, name).mkdir(parents=True)
                Image.new("RGB", (8, 8)).save(f"photos/{part}/{name}/1.png")
        np.savez("data.npz", x_train=np.zeros((4, 8, 8, 3), np.uint8), y_train=np.arange(4))
        torch.save(hwbmpq.models.load_model("hwbmpq:resnet8").network.state_dict(), "weights.pt")
        shutil.copy(Path(hwbmpq.__file__).parents[1] / "hardware_profiles" / "mpic.yaml", "device.yaml")
    return folder


@pytest.fixture
def limits() -> Iterator[None]:
    """Five seconds of waiting, and 512 MiB beyond what the tests have already."""

    def too_late(*_: object) -> None:
        raise AssertionError(f"more than {SECONDS} s")

    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    memory, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, too_late)
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, memory[1]))
    signal.alarm(SECONDS * 4)  # of the wall clock, on a machine that does other things as well
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
    resource.setrlimit(resource.RLIMIT_AS, memory)


def holes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "empty device": lambda path: path.symlink_to("/dev/null"),
    "folder": Path.mkdir,
    "holes": holes,
}
READERS = {
    "run/config.yaml": [
        "evaluate run",
        "report run",
        "compress --resume run",
        "compress --config run/config.yaml",
    ],
    "run/checkpoint.pt": ["evaluate run --best --runtime torch", "evaluate run", "compress --resume run"],
    "run/best.pt": ["evaluate run --best"],
    "run/facts.json": ["report run"],
    "run/history.jsonl": ["report run"],
    "run/allocation.json": ["report run"],
    "run/model.safetensors": ["evaluate run --runtime packed"],
    "run/model.onnx": [
        "evaluate run --runtime onnxruntime",
        "evaluate run --runtime onnxruntime --file run/model.onnx",
    ],
    "scores.json": [f"{PLAN} --sensitivity scores.json"],
    "data.npz": ["evaluate run --data npz:data.npz"],
    "photos/val/b/1.png": ["evaluate run --data folder:photos"],
    "weights.pt": [
        f"{PLAN} --weights weights.pt",
        f"{PLAN} --sensitivity weight-error --weights weights.safetensors",
    ],
    "device.yaml": [f"{PLAN} --target device.yaml", "targets check device.yaml"],
    "net.pt2": ["inspect --model file:net.pt2"],
    "net.py": ["inspect --model file:net.py:make"],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_one_sentence_at_once(
    name: str,
    kind: str,
    sent: Path,
    tmp_path: Path,
    limits: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(sent, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    Path(name).unlink(missing_ok=True)
    KINDS[kind](Path(name))
    if name == "weights.pt":
        Path("weights.safetensors").symlink_to(name)
    for line in READERS[name]:
        code = main(line.split())
        printed = capsys.readouterr()
        # A checkpoint gives way to the one before; a report does without the settings.
        is_fine = code == 0 and name in (
            "run/checkpoint.pt",
            "run/config.yaml",
            "run/history.jsonl",
            "run/allocation.json",
        )
        assert code == 2 or is_fine, (line, printed.err)
        assert code == 0 or "error:" in printed.err, printed.err


@pytest.mark.parametrize("kind", KINDS)
def test_in_python_too(kind: str, sent: Path, tmp_path: Path, limits: None) -> None:
    path = tmp_path / "model.safetensors"
    KINDS[kind](path)
    with pytest.raises(HwbmpqError, match=r"model\.safetensors"):
        hwbmpq.load(path)
    with pytest.raises(HwbmpqError):
        hwbmpq.sensitivity.load_sensitivity(path)
