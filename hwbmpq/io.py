"""Writing files that are whole at any moment, or not there yet."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hwbmpq.errors import HwbmpqError


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes its place when all is on the disk; nothing is left if it does not come to that.

    Links are followed; what is there and no file (a device, a folder) is refused.
    """
    asked, path = path, Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise HwbmpqError(f"{asked} cannot be written: it is there, and no file")
    temporary = path.with_name(f"{path.name}.unfinished")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise HwbmpqError(
            f"{asked} cannot be written: {error.strerror or error}", hint=disk_hint(error)
        ) from error
    finally:
        with suppress(OSError):  # it has been moved, or its folder is not one
            temporary.unlink()


def disk_hint(error: OSError) -> str:
    """What helps against an error of the disk; empty if the error itself says it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "make room on the disk"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "make the place writable"
    return "look after the disk" if error.errno == errno.EIO else ""
