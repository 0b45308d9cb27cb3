"""The safetensors file of a packed network: read and written by the safetensors package, with checks of our own.

On top of the package's checks (every tensor inside the file, no gap, no overlap): a checksum over the whole file, no
name twice, nothing in the header that is not understood. Metadata are added by hand, since the package writes them in
a random order, and files should come out the same each time.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from torch import Tensor

from hwbmpq.errors import HwbmpqError
from hwbmpq.io import BLANK_CHECKSUM, CHECKSUM_DIGITS, atomic_write, open_regular, with_checksum

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
_METADATA, _CHECKSUM = "hwbmpq", "blake2b"
"""Names in the file's ``__metadata__``."""
_CHECKSUM_MARK = f'"{_CHECKSUM}":"'.encode()
_ENTRY = {"dtype", "shape", "data_offsets"}
_LARGEST_FILE = 1 << 36
_LARGEST_HEADER = 1 << 24
_MOST_VALUES = 400_000
"""In a header: a value takes two hundred bytes of memory once it is read, ten thousand layers have about so many."""
_LENGTH_BYTES = 8
_NOT_OURS = "give a model.safetensors that hwbmpq wrote; a file of float weights is read with --weights"


class PackedFileError(HwbmpqError):
    """A packed file that is damaged, hostile, of another version, or of another network."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """The content of a file that was checked."""

    path: Path
    metadata: str
    tensors: Mapping[str, Tensor]


def write_container(path: Path, tensors: Mapping[str, Tensor], metadata: str) -> int:
    """Write a file atomically; returns the size of its header."""
    for name, value in tensors.items():
        if value.dtype not in DTYPE_NAMES:
            raise HwbmpqError(f"{name} is of type {value.dtype}, which a safetensors file cannot hold")
    # Copies: the package refuses tensors that share memory.
    own = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }
    saved = safetensors.torch.save(own)
    start = _LENGTH_BYTES + int.from_bytes(saved[:_LENGTH_BYTES], "little")
    header = _header({_METADATA: metadata, _CHECKSUM: BLANK_CHECKSUM.decode()}, saved[_LENGTH_BYTES:start])
    content = with_checksum(b"".join((header, memoryview(saved)[start:])), _checksum_at(header))
    with atomic_write(path) as file:
        file.write(content)
    return len(header)


def _header(metadata: Mapping[str, str], entries: bytes) -> bytes:
    """Length and JSON: the entries that the package wrote, after our metadata."""
    text = json.dumps({"__metadata__": metadata}, separators=(",", ":"), ensure_ascii=False).encode()
    text = text[:-1] + b"," + entries.strip()[1:]
    text += b" " * (-len(text) % _LENGTH_BYTES)  # so that the data are aligned
    if len(text) > _LARGEST_HEADER:
        raise HwbmpqError(f"the header of the file would have {len(text)} bytes, more than {_LARGEST_HEADER}")
    if _values(text) > _MOST_VALUES:
        raise HwbmpqError(
            f"the header of the file would have more than {_MOST_VALUES} values: too many layers"
        )
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _checksum_at(header: bytes) -> int:
    """Where the digits of the checksum stand; quotes inside of other texts are escaped."""
    return header.index(_CHECKSUM_MARK) + len(_CHECKSUM_MARK)


def read_container(path: Path) -> Container:
    """Read and check a file. No code from it is run, and no more memory is taken than the file itself needs."""
    with _opened(path) as file:
        header = _read_header(file, path)
        entries = parse_json(header[_LENGTH_BYTES:], path, "header")
        metadata = _metadata(entries, path)
        try:
            content = header + file.read()
        except MemoryError as error:
            raise PackedFileError(f"{path} does not fit into memory") from error
    _verify(content, header, metadata[_CHECKSUM], path)
    _check_entries(entries, path)
    return Container(path=path, metadata=metadata[_METADATA], tensors=_tensors(content, path))


def parse_json(data: bytes | str, path: Path, what: str) -> dict[str, Any]:
    """A JSON object in which no name appears twice."""
    try:
        if _values(data if isinstance(data, bytes) else data.encode()) > _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES} values")
        content = json.loads(data, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PackedFileError(
            f"{path}: the {what} cannot be read: {str(error)[:200]}", hint=_NOT_OURS
        ) from error
    if not isinstance(content, dict):
        raise PackedFileError(f"{path}: the {what} is not a JSON object", hint=_NOT_OURS)
    return content


def _values(text: bytes) -> int:
    """About as many as JSON has."""
    return sum(map(text.count, (b",", b"[", b"{")))


def short(name: object) -> str:
    """A name from a file, fit to be printed."""
    return f"{name!r:.100}"


def _opened(path: Path) -> BinaryIO:
    try:
        return open_regular(path, _LARGEST_FILE)
    except OSError as error:
        raise PackedFileError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_header(file: BinaryIO, path: Path) -> bytes:
    size = os.fstat(file.fileno()).st_size
    start = file.read(_LENGTH_BYTES)
    length = int.from_bytes(start, "little")
    if len(start) < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
        raise PackedFileError(
            f"{path} is cut short, or not a safetensors file: it has {size} bytes, its header alone should have "
            f"{length}",
            hint=_NOT_OURS,
        )
    if length > _LARGEST_HEADER:
        raise PackedFileError(f"{path}: a header of {length} bytes is more than {_LARGEST_HEADER}")
    return start + file.read(length)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{short(name)} appears twice")
        found[name] = value
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _metadata(content: dict[str, Any], path: Path) -> dict[str, str]:
    metadata = content.pop("__metadata__", None)
    if not isinstance(metadata, dict) or _METADATA not in metadata:
        raise PackedFileError(
            f"{path} was not written by hwbmpq: it says nothing about widths", hint=_NOT_OURS
        )
    if set(metadata) != {_METADATA, _CHECKSUM} or not all(
        isinstance(text, str) for text in metadata.values()
    ):
        raise PackedFileError(
            f"{path}: __metadata__ must hold two texts, {_METADATA} and {_CHECKSUM}, not "
            f"{', '.join(map(short, sorted(metadata)[:5]))}"
        )
    return metadata


def _verify(content: bytes, header: bytes, digits: str, path: Path) -> None:
    place = _checksum_at(header) if _CHECKSUM_MARK in header else 0
    if not place or header[place : place + CHECKSUM_DIGITS] != digits.encode(errors="replace"):
        raise PackedFileError(f"{path}: the checksum is not where it belongs")
    if with_checksum(content, place) != content:
        raise PackedFileError(
            f"{path} is cut short, damaged or changed: its checksum is wrong", hint="copy or export it again"
        )


def _check_entries(entries: Mapping[str, Any], path: Path) -> None:
    """What the package would overlook: further keys, and types that a packed network does not have."""
    for name, entry in entries.items():
        where = f"{path}: {short(name)}"
        if not isinstance(entry, dict) or set(entry) != _ENTRY:
            raise PackedFileError(f"{where} must say dtype, shape and data_offsets, nothing else")
        dtype = entry["dtype"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise PackedFileError(f"{where}: the type {short(dtype)} is not one of {', '.join(DTYPES)}")


def _tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    try:
        tensors = safetensors.torch.load(content)
    except Exception as error:  # the package's own, and those of torch for shapes that it does not take
        raise PackedFileError(
            f"{path}: the tensors cannot be read: {str(error)[:200]}", hint=_NOT_OURS
        ) from error
    for name, value in tensors.items():
        if value.dtype == torch.bool and bool((value.view(torch.uint8) > 1).any()):
            raise PackedFileError(f"{path}: {short(name)} holds values other than true and false")
    return tensors
