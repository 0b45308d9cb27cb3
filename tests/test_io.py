"""Atomic writing."""

import os
from pathlib import Path

import pytest

from hwbmpq.errors import HwbmpqError
from hwbmpq.io import atomic_write


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt])
def test_whatever_happens_the_old_one_stays(problem: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write(b"new")
            raise problem

    with pytest.raises(problem):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_devices_and_folders_stay_what_they_are(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(HwbmpqError, match="it exists and is not a file"), atomic_write(tmp_path / name):
            raise AssertionError
    assert names(tmp_path) == ["folder", "pipe"]


@pytest.mark.parametrize("name", ["missing/file", "file/below"])
def test_places_that_are_none_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(HwbmpqError, match="cannot be written"), atomic_write(tmp_path / name):
        raise AssertionError
