"""Archives as torch writes them, checked before torch reads one that somebody sent.

torch's restricted reader (``weights_only``) runs no code, but it unpacks what is compressed, however large, makes as
many zero bytes as a pickle asks for, and follows values that refer to each other for as long as that takes.
"""

import io
import os
import zipfile
from typing import BinaryIO

from hwbmpq.models.pickles import PickleError, check_pickles

_END, _END_BYTES = b"PK\5\6", 22
_MOST_DIRECTORY_BYTES = 1 << 22
_IN_ANOTHER_RECORD = 0xFFFFFFFF
"""For the length of the directory in an archive of more than four gigabytes."""
_MOST_PICKLE_BYTES = 1 << 21
_PICKLE_SHARE = 1 / 4
_PIECE = 1 << 20
_ZEROS = b"\nbytearray\n"
"""How a pickle names the function that makes them; nothing that is saved for inference or training needs it."""


class ArchiveError(ValueError):
    """An archive that torch did not write, or that asks for more than it holds."""


def check_archive(file: BinaryIO) -> None:
    """``ArchiveError`` if reading could take much more memory or time than the file has bytes. Ends at the start."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if file.read(2) == b"PK":
        _check_zip(file, size)
    else:
        _check_piecewise(file)  # a file of torch before 1.6
        _check_pickles(file, size)
    file.seek(0)


def _check_zip(file: BinaryIO, size: int) -> None:
    # A comment could hide a second directory, which torch would read and this would not.
    file.seek(max(0, size - _END_BYTES))
    end = file.read()
    if not end.startswith(_END) or end[20:] != b"\0\0":
        raise ArchiveError("it is cut short, or has something behind its end")
    directory = int.from_bytes(end[12:16], "little")
    if directory > _MOST_DIRECTORY_BYTES and not directory == _IN_ANOTHER_RECORD <= size:
        raise ArchiveError("its directory is too long")
    try:
        with zipfile.ZipFile(file) as archive:
            _check_records(archive, size)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError) as error:
        raise ArchiveError(f"it is not a readable archive: {str(error)[:200]}") from error


def _check_records(archive: zipfile.ZipFile, size: int) -> None:
    records = archive.infolist()
    if any(record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1 for record in records):
        raise ArchiveError("it is compressed or encrypted, which torch's files are not")
    if sum(record.file_size for record in records) > size:
        raise ArchiveError("its records are larger than the file")
    if len({record.filename for record in records}) < len(records):
        raise ArchiveError("two of its records have the same name")
    for record in records:
        if record.filename.endswith(".pkl"):
            if record.file_size > _most_pickle_bytes(size):
                raise ArchiveError("it has far more structure than tensors")
            content = archive.read(record)
            if _ZEROS in content:
                raise ArchiveError("it asks for memory that it does not fill")
            _check_pickles(io.BytesIO(content), size)


def _check_pickles(file: BinaryIO, size: int) -> None:
    try:
        check_pickles(file, _most_pickle_bytes(size))
    except PickleError as error:
        raise ArchiveError(str(error)) from error


def _most_pickle_bytes(size: int) -> int:
    return max(_MOST_PICKLE_BYTES, int(size * _PICKLE_SHARE))


def _check_piecewise(file: BinaryIO) -> None:
    before = b""
    while piece := file.read(_PIECE):
        if _ZEROS in before + piece:
            raise ArchiveError("it asks for memory that it does not fill")
        before = piece[-len(_ZEROS) :]
