"""Running the command line in a folder of one's own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hwbmpq.cli.main import main


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, no profiles of the user, a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HWBMPQ_PROFILES", str(tmp_path / "mine"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``hwbmpq targets …`` with the expected exit code: what it printed, or its error."""

    def run_targets(*arguments: str, code: int = 0) -> str:
        assert main(["targets", *arguments]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return run_targets
