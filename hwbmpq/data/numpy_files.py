"""Files of numpy's that others wrote: an array is read if its header fits what the file holds, and is not a pickle."""

import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from hwbmpq.errors import HwbmpqError, cut, printable
from hwbmpq.io import open_regular

MOST_BYTES = 1 << 40
_SUFFIX = ".npy"
_MOST_GROWTH = 50
"""How many times larger than its compressed bytes an array may be; images are at most a tenth of that."""
_MAY_GROW_TO = 64 << 20
"""Labels, and images of one colour, shrink to almost nothing."""
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class ArrayArchive(Mapping[str, NDArray[Any]]):
    """The arrays of an ``.npz`` file by name, each read when it is asked for."""

    def __init__(self, file: IO[bytes]) -> None:
        if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            raise ValueError("it holds a single array, not an archive of them")
        self._archive = zipfile.ZipFile(file)
        self._entries = {entry.filename.removesuffix(_SUFFIX): entry for entry in self._archive.infolist()}
        self._bytes = os.fstat(file.fileno()).st_size

    def __getitem__(self, name: str) -> NDArray[Any]:
        entry = self._entries[name]
        stored = min(entry.compress_size, self._bytes)
        if entry.file_size > max(_MAY_GROW_TO, _MOST_GROWTH * stored):
            raise ValueError(f"{name} takes {entry.file_size} bytes, made of {stored} compressed ones")
        with self._archive.open(entry) as stream:
            _check_header(stream, entry.file_size)
        with self._archive.open(entry) as stream:
            return _read(stream)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@contextmanager
def open_arrays(path: str | os.PathLike[str], *, hint: str = "") -> Iterator[ArrayArchive]:
    """The arrays of an ``.npz`` file; whatever is wrong with it or one of them is one ``HwbmpqError``."""
    with _one_error(path, "an npz file", hint), open_regular(path, MOST_BYTES) as file:
        yield ArrayArchive(file)


def read_array(path: str | os.PathLike[str], *, hint: str = "") -> NDArray[Any]:
    """The array of an ``.npy`` file; whatever is wrong with it is one ``HwbmpqError``."""
    with _one_error(path, "an array", hint), open_regular(path, MOST_BYTES) as file:
        _check_header(file, os.fstat(file.fileno()).st_size)
        file.seek(0)
        return _read(file)


def _check_header(stream: IO[bytes], size: int) -> None:
    """``ValueError`` if the array is not exactly what is left of ``size`` bytes: numpy would make room for it first."""
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"format {version} of numpy is not known")
    shape, _, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("an array of objects is a pickle, which could run any code")
    claimed, held = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if min(shape, default=0) < 0 or claimed != held:
        raise ValueError(f"an array of shape {cut(str(shape), 60)} takes {claimed:.3g} bytes, not {held}")


def _read(stream: IO[bytes]) -> NDArray[Any]:
    found: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return found


@contextmanager
def _one_error(path: str | os.PathLike[str], what: str, hint: str) -> Iterator[None]:
    try:
        yield
    except HwbmpqError:
        raise
    except (
        Exception
    ) as error:  # zipfile and numpy raise many types: TokenError, MemoryError, NotImplementedError …
        said = getattr(error, "strerror", None) or printable(str(error)) or type(error).__name__
        if "pickle" in said:
            hint = "save it again with np.savez, without pickled objects"
        raise HwbmpqError(f"{os.fspath(path)}: cannot be read as {what}: {cut(said)}", hint=hint) from error
