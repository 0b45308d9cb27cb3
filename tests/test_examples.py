"""The examples run and do what they say."""

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    """An example may set them for its process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_quantized_training_learns(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = runpy.run_path(str(EXAMPLES / "quantized_training.py"))["main"]()
    assert accuracy > 0.95
    out = capsys.readouterr().out
    assert "layer3.0.conv1         W2A4" in out
    assert "conv1                  W16A16" in out


def test_own_training_loop_learns_within_the_budget_and_exports(capsys: pytest.CaptureFixture[str]) -> None:
    found = runpy.run_path(str(EXAMPLES / "own_training_loop.py"))["main"]()
    assert found["accuracy"] > 0.9
    assert found["memory_left"] >= 0
    assert found["agreement"] > 0.99
    out = capsys.readouterr().out
    assert "epoch 2: " in out
    assert "widths decided" in out
    assert "features.0     W16A16" in out


def test_own_device_is_planned_by_hand_and_by_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    board, here = runpy.run_path(str(EXAMPLES / "own_device.py"))["main"]()
    assert board.costs["memory"] <= board.budgets["memory"] == 28 * 1024 * 8
    assert {precision.weight_bits for precision in board.bits.values()} == {2, 4, 8}
    assert here.costs["latency"] <= here.budgets["latency"]
    assert "Acme M4 board" in capsys.readouterr().out
