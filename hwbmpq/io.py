"""Atomic writing, reading of regular files and of JSON, and checksums."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from hwbmpq.errors import HwbmpqError, cut, printable
from hwbmpq.units import shown

UNFINISHED = ".unfinished"
"""Ends the name of a file while it is being written."""
CHECKSUM_DIGITS = 64
BLANK_CHECKSUM = b"0" * CHECKSUM_DIGITS


_MOST_WITH_HOLES = 1 << 26
_LEAST_SHARE_ON_DISK = 1 / 64
"""Of a larger file; file systems that compress do not get near it with weights or images."""
_BLOCK_BYTES = 512
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for a writer


def open_regular(path: str | os.PathLike[str], most_bytes: int) -> BinaryIO:
    """Open a file to read. An ``OSError`` if it is a pipe, a device or a folder, or larger than ``most_bytes``.

    Files come from strangers: a pipe never answers, ``/dev/zero`` never ends, and a file of holes takes no room on the
    disk but all of the memory.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _WITHOUT_WAITING))  # noqa: SIM115 (handed out)
    try:
        _check_regular(os.fstat(file.fileno()), most_bytes)
    except OSError:
        file.close()
        raise
    return file


def _check_regular(found: os.stat_result, most_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if found.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, more than {most_bytes}")
    on_disk = getattr(found, "st_blocks", found.st_size) * _BLOCK_BYTES
    if found.st_size > _MOST_WITH_HOLES and on_disk < found.st_size * _LEAST_SHARE_ON_DISK:
        raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, and almost all of it is holes")


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The content of a file that ``open_regular`` opens."""
    with open_regular(path, most_bytes) as file:
        return file.read(os.fstat(file.fileno()).st_size)


@contextmanager
def atomic_write(path: Path, *, keep_old: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write to. It replaces ``path`` once it is on the disk; after an error nothing has changed.

    ``keep_old`` is where the file that is replaced is moved to. A link is replaced, never written through: in a folder
    that somebody sent, it may lead anywhere. Devices and folders are refused.
    """
    if path.exists() and not path.is_file():
        raise HwbmpqError(f"{path} cannot be written: it exists and is not a file")
    temporary = path.with_name(path.name + UNFINISHED)
    try:
        with _create(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep_old is not None:
            path.replace(keep_old)
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):  # the disk may have become read-only
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise HwbmpqError(
            f"{path} cannot be written: {error.strerror or error}; what was there before is untouched",
            hint=disk_hint(error),
        ) from error


def _create(path: Path) -> BinaryIO:
    """A new file in the place of what a run that was killed, or a stranger, left there."""
    if os.path.lexists(path):
        path.unlink()
    return path.open("xb")  # must be new, so that no link is followed


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # the new name must survive a power failure as well
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def disk_hint(error: OSError) -> str:
    """A hint about an error of the disk; empty if the error speaks for itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "make room on the disk"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "make the folder writable"
    return "check the disk" if error.errno == errno.EIO else ""


def checksum(*pieces: bytes | memoryview) -> bytes:
    """BLAKE2b of all pieces, as 64 hexadecimal digits."""
    digest = blake2b(digest_size=CHECKSUM_DIGITS // 2)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest().encode()


def with_checksum(content: bytes, start: int) -> bytes:
    """``content`` with its own checksum from byte ``start`` on; computed with zeros in its place."""
    before, after = memoryview(content)[:start], memoryview(content)[start + CHECKSUM_DIGITS :]
    return b"".join((before, checksum(before, BLANK_CHECKSUM, after), after))


MOST_BYTES = 32 << 20
MOST_VALUES = 2_000_000
"""A value takes about a hundred bytes, whatever it is."""


def read_json(
    path: str | os.PathLike[str], *, most_bytes: int = MOST_BYTES, most_values: int = MOST_VALUES
) -> Any:
    """The value in a file; for ``.jsonl`` the list of its lines' values. ``HwbmpqError`` if there is none.

    Keys that appear twice are refused: readers differ in which of the two they take.
    """
    try:
        data = read_regular(path, most_bytes)
    except (OSError, ValueError) as error:  # ValueError: a path that cannot be
        what = getattr(error, "strerror", None) or error
        raise HwbmpqError(f"{os.fspath(path)}: cannot be read: {what}") from error
    try:
        return parse_json(data, most_values=most_values, lines=os.fspath(path).endswith(".jsonl"))
    except RecursionError:
        raise HwbmpqError(f"{os.fspath(path)}: is nested too deeply") from None
    except ValueError as error:
        raise HwbmpqError(f"{os.fspath(path)}: is not valid JSON: {cut(printable(str(error)))}") from None


def parse_json(data: bytes, *, most_values: int = MOST_VALUES, lines: bool = False) -> Any:
    """The value in a text, or those of its lines. ``ValueError`` or ``RecursionError`` if there is none."""
    if sum(map(data.count, (b",", b"[", b"{", b"\n") if lines else (b",", b"[", b"{"))) > most_values:
        raise ValueError(f"more than {most_values:,} values")
    if lines:
        return [_parse(line) for line in data.splitlines() if line.strip()]
    return _parse(data)


def _parse(data: bytes) -> Any:
    return json.loads(data, object_pairs_hook=_without_duplicates, parse_int=_number)


def _number(text: str) -> int | float:
    """An integer that has 64 bits at most, or a float: numpy computes with no other integers."""
    number = int(text)
    return number if -(2**63) <= number < 2**63 else float(text)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{shown(twice)} is there twice")
    return found
