"""A safetensors file whose every byte is accounted for, and covered by a checksum.

Written and read here, not by the safetensors package: files come out the same each time, are written piece by piece,
and nothing in a damaged or hostile one is believed before it is checked. The package can read them all the same.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hwbmpq.errors import HwbmpqError
from hwbmpq.io import disk_hint

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA, CHECKSUM = "hwbmpq", "blake2b"
"""Names in the file's ``__metadata__``."""
LARGEST_HEADER = 1 << 24
CHECKSUM_DIGITS = 64
LENGTH_BYTES = 8
_UNFINISHED = ".unfinished"


class PackedFileError(HwbmpqError):
    """A packed file that is damaged, hostile, of another version, or of another network."""


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """A tensor to be written; its bytes are made when their turn comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], NDArray[np.uint8]]

    @property
    def size(self) -> int:
        return byte_size(self.dtype, self.shape)


def byte_size(dtype: str, shape: Sequence[int]) -> int:
    return prod(shape) * DTYPES[dtype].itemsize


def tensor_entry(name: str, tensor: Tensor) -> TensorEntry:
    """An entry with a tensor's own values."""
    if tensor.dtype not in DTYPE_NAMES:
        raise HwbmpqError(f"{name} is of type {tensor.dtype}, which a safetensors file cannot hold")

    def data() -> NDArray[np.uint8]:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy()

    return TensorEntry(name=name, dtype=DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape), data=data)


# writing


def write_container(path: Path, entries: Sequence[TensorEntry], metadata: str) -> int:
    """Write a file that is whole or not there; returns the size of its header."""
    # The widest types first, so that each tensor begins at a multiple of its width.
    ordered = sorted(entries, key=lambda entry: -DTYPES[entry.dtype].itemsize)
    header = _header(ordered, metadata)
    temporary = path.with_name(path.name + _UNFINISHED)
    try:
        with temporary.open("wb") as file:
            _write(file, header, ordered)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise HwbmpqError(
            f"{path} cannot be written: {error.strerror or error}; what was there before is untouched",
            hint=disk_hint(error),
        ) from error
    finally:
        with suppress(OSError):  # it has been moved, or the disk has become read-only
            temporary.unlink()
    return len(header)


def _header(entries: Sequence[TensorEntry], metadata: str) -> bytes:
    """Length and JSON; the checksum is still all zeros."""
    content: dict[str, Any] = {"__metadata__": {METADATA: metadata, CHECKSUM: "0" * CHECKSUM_DIGITS}}
    offset = 0
    for entry in entries:
        assert entry.name not in content
        content[entry.name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": [offset, offset + entry.size],
        }
        offset += entry.size
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)  # so that the data are aligned
    if len(text) > LARGEST_HEADER:
        raise HwbmpqError(f"the header of the file would have {len(text)} bytes, more than {LARGEST_HEADER}")
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _write(file: BinaryIO, header: bytes, entries: Sequence[TensorEntry]) -> None:
    checksum = blake2b(header, digest_size=CHECKSUM_DIGITS // 2)
    file.write(header)
    for entry in entries:
        data = memoryview(entry.data())  # type: ignore[arg-type]  # numpy's stubs do not say that it is a buffer
        assert data.nbytes == entry.size, f"{entry.name}: {data.nbytes} bytes, not {entry.size}"
        checksum.update(data)
        file.write(data)
    file.seek(checksum_at(header))
    file.write(checksum.hexdigest().encode())


def checksum_at(header: bytes) -> int:
    """Where the digits of the checksum stand: the metadata come first, and their own quotes are escaped."""
    mark = f'"{CHECKSUM}":"'.encode()
    return header.index(mark) + len(mark)


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # the new name must survive a power failure as well
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
