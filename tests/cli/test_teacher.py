"""``compress --teacher`` as it is typed."""

from pathlib import Path

import pytest
import torch

import hwbmpq
from hwbmpq.cli.main import main
from hwbmpq.training.settings import read_settings

COMMAND = (
    "compress --model hwbmpq:resnet8 --target mpic --epochs 2 --max-steps 2 --train-images 32 --test-images 16 --batch-size 8 "
    "--quiet --run-dir run"
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_another_network_teaches_from_scratch_and_its_file_is_found_from_elsewhere(tmp_path: Path) -> None:
    torch.save(
        hwbmpq.models.load_model("hwbmpq:resnet8", num_classes=10, seed=1).network.state_dict(), "teacher.pt"
    )
    assert main([*COMMAND.split(), "--teacher", "hwbmpq:resnet8=teacher.pt"]) == 0
    settings = read_settings(Path("run/config.yaml"))
    assert settings["distill"] == 1
    assert settings["teacher"] == f"hwbmpq:resnet8={tmp_path / 'teacher.pt'}"


@pytest.mark.parametrize("teacher", ["hwbmpq:resnet8", "timm:resnet18"])
def test_a_teacher_without_weights_is_refused(teacher: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND.split(), "--teacher", teacher]) == 2
    assert "its weights are missing" in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_teacher_that_is_not_listened_to_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND.split(), "--teacher", "hwbmpq:resnet8=teacher.pt", "--distill", "0"]) == 2
    assert "--distill above 0" in capsys.readouterr().err


def test_calibrating_best_what_is_not_calibrated_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND.split(), "--calibrate", "best"]) == 2
    assert "start calibrated" in capsys.readouterr().err
