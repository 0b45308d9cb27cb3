"""The examples run and do what they say."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_quantized_training_learns(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = runpy.run_path(str(EXAMPLES / "quantized_training.py"))["main"]()
    assert accuracy > 0.95
    out = capsys.readouterr().out
    assert "layer3.0.conv1         W2A4" in out
    assert "conv1                  W16A16" in out
