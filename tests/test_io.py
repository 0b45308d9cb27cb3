"""Atomic writing, and reading of regular files only."""

import os
import socket
from pathlib import Path

import pytest

from hwbmpq.errors import HwbmpqError
from hwbmpq.io import atomic_write, open_regular, read_regular


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


def test_a_link_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_bytes() == b"new"
    assert (tmp_path / "target").read_bytes() == b"old"


@pytest.mark.parametrize("target", ["victim", "not there yet"])
def test_a_link_in_place_of_the_unfinished_file_is_not_written_through(target: str, tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file.unfinished").symlink_to(tmp_path / target)
    with atomic_write(tmp_path / "folder" / "file") as file:
        file.write(b"new")
    assert names(tmp_path) == ["folder", "victim"]
    assert (tmp_path / "victim").read_bytes() == b"mine"
    assert names(tmp_path / "folder") == ["file"]


def test_a_file_that_is_kept_goes_beside_and_not_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "before").symlink_to("victim")
    with atomic_write(tmp_path / "file", keep_old=tmp_path / "before") as file:
        file.write(b"new")
    assert (tmp_path / "victim").read_bytes() == b"mine"
    assert (tmp_path / "before").read_bytes() == b"old"


def test_a_link_to_a_device_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(HwbmpqError, match="it exists and is not a file"), atomic_write(tmp_path / "link"):
        raise AssertionError
    assert names(tmp_path) == ["link"]


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


def test_a_regular_file_is_opened_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_regular(tmp_path / name, 7) as file:
            assert file.read() == b"content"
        assert read_regular(tmp_path / name, 7) == b"content"


def test_what_is_not_a_regular_file_is_not_opened_and_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to a pipe").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "pipe", tmp_path / "to a pipe", Path("/dev/zero"), Path("/dev/null")):
            with pytest.raises(OSError, match="not a regular file"):
                open_regular(path, 100)
        with pytest.raises(IsADirectoryError, match="Is a directory"):
            open_regular(tmp_path, 100)
        with pytest.raises(OSError, match=r"No such device|not a regular file"):
            open_regular(tmp_path / "socket", 100)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing", 100)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(OSError, match=r"has 7 bytes, more than 6"):
        read_regular(tmp_path / "file", 6)


def test_a_file_of_holes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0)
        file.write(b"something at its start")
    with pytest.raises(OSError, match="almost all of it is holes"):
        open_regular(tmp_path / "file", 1 << 50)
