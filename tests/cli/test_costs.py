"""``hwbmpq costs``."""

import json
import subprocess
import sys

import pytest

from hwbmpq.cli.main import main
from hwbmpq.costs import cost_models

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def test_list_has_every_model_with_unit_and_meaning(capsys: Captured) -> None:
    assert main(["costs", "list"]) == 0
    output = capsys.readouterr().out
    for name in cost_models():
        assert name in output
    assert "proxy" in output
    assert "bit-op" in output


@pytest.mark.parametrize("name", sorted(cost_models()))
def test_show_explains_every_model(name: str, capsys: Captured) -> None:
    assert main(["costs", "show", name]) == 0
    output = capsys.readouterr().out
    assert output.startswith(name)
    for word in ("formula", "needs"):
        assert word in output
    assert main(["costs", "show", name, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["formula"]
    assert all(option["text"] for option in content["options"].values())


def test_show_of_an_unknown_name_suggests(capsys: Captured) -> None:
    assert main(["costs", "show", "rooflin"]) == 2
    assert "did you mean roofline" in capsys.readouterr().err


def test_show_has_needs_and_defaults(capsys: Captured) -> None:
    assert main(["costs", "show", "roofline"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "from hwbmpq" in output
    assert "compute.table; memory that holds weights, activations" in output
    assert "option weights_in = None The memory that stores the weights" in output
    assert main(["costs", "show", "mac_energy"]) == 0
    assert "option traffic = True" in " ".join(capsys.readouterr().out.split())


def test_what_libraries_print_does_not_mix_with_results() -> None:
    code = (
        "import ctypes, sys\n"
        "from hwbmpq.cli import main as cli\n"
        "def noisy(args):\n"
        "    ctypes.CDLL(None).puts(b'noise')\n"
        "    ctypes.CDLL(None).fflush(None)\n"
        "    sys.stdout.write('{}')\n"
        "import argparse\n"
        "cli.build_parser = lambda chosen: argparse.ArgumentParser()\n"
        "argparse.ArgumentParser.parse_args = lambda self, words: argparse.Namespace(run=noisy, debug=False)\n"
        "raise SystemExit(cli.main(['costs', 'list']))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr.strip()) == (0, "{}", "noise")
