"""Atomic writing and checksums of files."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from hwbmpq.errors import HwbmpqError

UNFINISHED = ".unfinished"
"""Ends the name of a file while it is being written."""
CHECKSUM_DIGITS = 64
BLANK_CHECKSUM = b"0" * CHECKSUM_DIGITS


@contextmanager
def atomic_write(path: Path, *, keep_old: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write to. It replaces ``path`` once it is on the disk; after an error nothing has changed.

    ``keep_old`` is where the file that is replaced is moved to. Links are followed; devices and folders are refused.
    """
    asked, path = path, Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise HwbmpqError(f"{asked} cannot be written: it exists and is not a file")
    temporary = path.with_name(path.name + UNFINISHED)
    try:
        with temporary.open("wb") as file:
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
            f"{asked} cannot be written: {error.strerror or error}; what was there before is untouched",
            hint=disk_hint(error),
        ) from error


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
