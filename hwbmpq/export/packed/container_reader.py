"""Reading what ``container`` writes; nothing is believed before it is checked, and only what is asked for is read."""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hwbmpq.export.packed.container import (
    CHECKSUM,
    CHECKSUM_DIGITS,
    DTYPES,
    LARGEST_HEADER,
    LENGTH_BYTES,
    METADATA,
    PackedFileError,
    byte_size,
    checksum_at,
)

_MOST_AXES = 32
_LARGEST_AXIS = 1 << 48
_PIECE = 1 << 20
_NOT_OURS = "give a model.safetensors that hwbmpq wrote; a file of float weights is read with --weights"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Where a tensor is, in bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Container:
    """A checked file; tensors are read when asked for."""

    path: Path
    metadata: str
    tensors: Mapping[str, Stored]
    identity: tuple[int, ...]
    """What tells this file from another of the same name."""

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        stored = self.tensors[name]
        with _opened(self.path) as file:
            if _identity(file) != self.identity:
                raise PackedFileError(f"{self.path} was changed while it was being read")
            file.seek(stored.start)
            data = np.fromfile(file, dtype=np.uint8, count=stored.size)
        if data.size != stored.size:
            raise PackedFileError(f"{self.path} was cut short while it was being read")
        return data

    def tensor(self, name: str) -> Tensor:
        stored, data = self.tensors[name], self.bytes_of(name)
        if stored.dtype == "BOOL" and data.size and int(data.max()) > 1:
            raise PackedFileError(f"{self.path}: {name} holds something else than true and false")
        return torch.from_numpy(data).view(DTYPES[stored.dtype]).reshape(stored.shape)


def read_container(path: Path) -> Container:
    """Check a file: its header against its size, every tensor's place, and the checksum over all of it."""
    with _opened(path) as file:
        header = _read_header(file, path)
        content = parse_json(header[LENGTH_BYTES:], path, "header")
        size = os.fstat(file.fileno()).st_size
        metadata = _metadata(content, path)
        tensors = _tensors(content, len(header), size, path)
        _verify(file, header, metadata[CHECKSUM], path)
        return Container(path=path, metadata=metadata[METADATA], tensors=tensors, identity=_identity(file))


def parse_json(data: bytes | str, path: Path, what: str) -> dict[str, Any]:
    """A JSON object in which no name stands twice."""
    try:
        content = json.loads(data, object_pairs_hook=_without_twins, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PackedFileError(
            f"{path}: the {what} cannot be read: {str(error)[:200]}", hint=_NOT_OURS
        ) from error
    if not isinstance(content, dict):
        raise PackedFileError(f"{path}: the {what} is no JSON object", hint=_NOT_OURS)
    return content


def short(name: object) -> str:
    """A name from a file, fit to be printed."""
    return f"{name!r:.100}"


def _opened(path: Path) -> BinaryIO:
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _WITHOUT_WAITING))  # noqa: SIM115 (handed out)
    except OSError as error:
        raise PackedFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise PackedFileError(f"{path} is no file")
    return file


_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for a writer


def _identity(file: BinaryIO) -> tuple[int, ...]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_header(file: BinaryIO, path: Path) -> bytes:
    size = os.fstat(file.fileno()).st_size
    start = file.read(LENGTH_BYTES)
    length = int.from_bytes(start, "little")
    if len(start) < LENGTH_BYTES or length > size - LENGTH_BYTES:
        raise PackedFileError(
            f"{path} is cut short, or no safetensors file: it has {size} bytes, its header alone should have "
            f"{length}",
            hint=_NOT_OURS,
        )
    if length > LARGEST_HEADER:
        raise PackedFileError(f"{path}: a header of {length} bytes is more than {LARGEST_HEADER}")
    return start + file.read(length)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        last = {name: place for place, (name, _) in enumerate(pairs)}
        twin = next(name for place, (name, _) in enumerate(pairs) if last[name] != place)
        raise ValueError(f"{short(twin)} stands there twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _metadata(content: dict[str, Any], path: Path) -> dict[str, str]:
    metadata = content.pop("__metadata__", None)
    if not isinstance(metadata, dict) or METADATA not in metadata:
        raise PackedFileError(
            f"{path} was not written by hwbmpq: it says nothing about widths", hint=_NOT_OURS
        )
    if set(metadata) != {METADATA, CHECKSUM} or not all(isinstance(text, str) for text in metadata.values()):
        raise PackedFileError(
            f"{path}: __metadata__ must hold two texts, {METADATA} and {CHECKSUM}, not "
            f"{', '.join(map(short, sorted(metadata)[:5]))}"
        )
    return metadata


def _tensors(content: dict[str, Any], start: int, size: int, path: Path) -> dict[str, Stored]:
    """Where the tensors are: one after the other, from the end of the header to that of the file."""
    found = {name: _stored(name, entry, start, path) for name, entry in content.items()}
    end = start
    for name, stored in sorted(found.items(), key=lambda item: (item[1].start, item[1].size)):
        if stored.start != end:
            raise PackedFileError(
                f"{path}: {short(name)} begins at byte {stored.start - start}, not at {end - start}"
            )
        end += stored.size
    if end != size:
        raise PackedFileError(f"{path} has {size} bytes, its tensors need {end}: it is cut short or changed")
    return found


def _stored(name: str, entry: Any, start: int, path: Path) -> Stored:
    where = f"{path}: {short(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise PackedFileError(f"{where} must say dtype, shape and data_offsets, nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise PackedFileError(f"{where}: the type {short(dtype)} is none of {', '.join(DTYPES)}")
    if not _are_sizes(shape, _MOST_AXES) or not _are_sizes(offsets, 2) or len(offsets) != 2:
        raise PackedFileError(f"{where}: the shape or the offsets are no sizes")
    begin, end = offsets
    if end - begin != byte_size(dtype, shape):
        raise PackedFileError(
            f"{where} has {end - begin} bytes, its shape {tuple(shape)} needs {byte_size(dtype, shape)}"
        )
    return Stored(dtype=dtype, shape=tuple(shape), start=start + begin, size=end - begin)


def _are_sizes(numbers: Any, most: int) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) <= most
        and all(type(number) is int and 0 <= number <= _LARGEST_AXIS for number in numbers)
    )


def _verify(file: BinaryIO, header: bytes, digits: str, path: Path) -> None:
    """The checksum is that of the whole file with zeros in its own place."""
    try:
        place = checksum_at(header)
    except ValueError:
        place = 0
    if not place or header[place : place + CHECKSUM_DIGITS] != digits.encode(errors="replace"):
        raise PackedFileError(f"{path}: the checksum is not where it belongs")
    checksum = blake2b(header[:place], digest_size=CHECKSUM_DIGITS // 2)
    checksum.update(b"0" * CHECKSUM_DIGITS)
    checksum.update(header[place + CHECKSUM_DIGITS :])
    while piece := file.read(_PIECE):
        checksum.update(piece)
    if checksum.hexdigest() != digits:
        raise PackedFileError(f"{path} is damaged: its checksum is wrong", hint="copy or export it again")
