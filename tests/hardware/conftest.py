"""Profiles on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., Path]

HEAD = "schema: hwbmpq/profile/v1\nname: {name}\ntitle: A board\nclass: mcu\n"
WIDTHS = "precisions: {weights: [int8, int4], activations: [int8]}\n"


@pytest.fixture(autouse=True)
def _no_profiles_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWBMPQ_PROFILES", str(tmp_path / "mine"))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a profile with the usual head; its path."""

    def write_file(
        body: str, name: str = "board", folder: str = "", head: str = HEAD, widths: str = WIDTHS
    ) -> Path:
        path = tmp_path / folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head.format(name=name) + widths + body)
        return path

    return write_file
