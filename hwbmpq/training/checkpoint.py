"""Checkpoints: the file, a torch archive with a checksum, and what it must contain.

Others may have written it, with a checksum that is right: what is read is checked before it is used.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from hwbmpq.errors import HwbmpqError, cut
from hwbmpq.io import CHECKSUM_DIGITS, checksum, read_regular
from hwbmpq.models import bounded
from hwbmpq.models.archives import check_archive
from hwbmpq.units import shown

FORMAT = "hwbmpq-checkpoint/1"
_MOST_BYTES = 1 << 35
MOST_VALUES = 10_000_000
_DEEPEST = 64
_Count = Annotated[int, Field(strict=True, ge=0, lt=2**53)]


class CheckpointError(HwbmpqError):
    """A checkpoint that cannot be used."""


def packed(content: Mapping[str, Any]) -> bytes:
    """A torch archive whose comment is the checksum of all of it.

    Torch's reader does not notice every flipped bit: some make it return uninitialised memory.
    """
    # In memory first: torch's own writer reports a full disk as an internal error.
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **_with_decisions_once(content)}, buffer)
    return with_archive_checksum(buffer.getvalue())


def with_archive_checksum(archive: bytes) -> bytes:
    """The archive with its checksum as its comment."""
    assert archive.endswith(_NO_COMMENT), "an archive of torch's has no comment"
    comment = _comment(archive)
    return archive[: -len(_NO_COMMENT)] + len(comment).to_bytes(2, "little") + comment


def _with_decisions_once(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same content; the epochs' records refer to the allocator's decisions, and pickle stores an object once."""
    history: list[Any] = content.get("allocator", {}).get("history", [])
    progress = content.get("progress", {})
    records = [
        {
            name: next((made for made in history if made == value), value) if name == "decision" else value
            for name, value in record.items()
        }
        for record in progress.get("records", ())
    ]
    return {**content, "progress": {**progress, "records": records}} if history and records else content


_NO_COMMENT = b"\0\0"  # a zip archive ends with the length of its comment, and the comment
_MARK = b"hwbmpq blake2b "
_COMMENT_BYTES = len(_MARK) + CHECKSUM_DIGITS


def _comment(archive: bytes) -> bytes:
    return _MARK + checksum(archive)


def is_good(path: Path) -> bool:
    try:
        _checked(path)
    except CheckpointError:
        return False
    return True


def unpacked(path: Path) -> dict[str, Any]:
    """Read a checkpoint without running any code from it."""
    file = io.BytesIO(_checked(path))
    try:
        check_archive(file)
    except ValueError as error:
        raise CheckpointError(f"{path} is not a checkpoint of hwbmpq: {error}") from error
    try:
        content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # not written by hwbmpq; torch raises many types
        raise CheckpointError(f"{path} is not a checkpoint of hwbmpq ({type(error).__name__})") from error
    form = content.get("format") if isinstance(content, dict) else None
    if form != FORMAT:
        said = f" ({shown(form)})" if isinstance(form, str) else ""
        raise CheckpointError(f"{path} is not a checkpoint of this version of hwbmpq{said}")
    try:
        check_size(content)
    except ValueError as error:
        raise CheckpointError(f"{path} is not a checkpoint of hwbmpq: {error}") from None
    return content


def _checked(path: Path) -> bytes:
    """The torch archive in a checkpoint, if its checksum is right."""
    try:
        data = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    archive, comment = data[: -_COMMENT_BYTES - 2] + _NO_COMMENT, data[-_COMMENT_BYTES:]
    if not comment.startswith(_MARK):
        raise CheckpointError(f"{path} is cut short, or not a checkpoint of hwbmpq")
    if comment != _comment(archive):
        raise CheckpointError(f"{path} is damaged: its checksum is wrong")
    return archive


class _Progress(BaseModel):
    model_config = ConfigDict(extra="allow")
    epoch: _Count
    batch: _Count
    images: _Count = 0
    correct: _Count = 0
    best_epoch: _Count = 0
    learning_rate: float = 0.0
    loss_sum: float = 0.0
    best_accuracy: float = 0.0
    float_accuracy: float | None = None
    calibrated: float | None = None
    keeps_calibrated: bool = False
    records: list[dict[str, Any]]


class _State(BaseModel):
    """Of a run to continue, or of its best epoch."""

    model_config = ConfigDict(extra="allow")
    model: dict[str, Any]
    epoch: _Count | None = None
    progress: _Progress | None = None
    allocator: dict[str, Any] | None = None


def check_state(state: Mapping[str, Any]) -> None:
    """An error if a checkpoint lacks what every run saves, or has it in other types."""
    try:
        found = _State.model_validate(state)
        what = (
            ""
            if found.progress or found.epoch is not None
            else "it does not say after which epoch it was saved"
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = cut(f"{'.'.join(map(str, first['loc'][:3]))}: {first['msg']}")
    if what:
        raise HwbmpqError(f"the checkpoint is not of a run of hwbmpq: {what}", hint="start the run over")


def bytes_to_build(state: Mapping[str, Any]) -> int:
    """What the network of a checkpoint may take in memory, by the weights that are there."""
    return bounded.bytes_to_build(
        sum(value.numel() for value in state["model"].values() if isinstance(value, Tensor))
    )


def check_size(content: object) -> None:
    """``ValueError`` if values take more than the file has for them.

    A pickle can refer to a list from within it, or ten times to a list that refers ten times to another.
    """
    _expanded(content, {})


def _expanded(value: object, sizes: dict[int, int], depth: int = 0) -> int:
    """Values in ``value``, counted again wherever they are referred to again."""
    if id(value) in sizes:
        count = sizes[id(value)]
    elif isinstance(value, Tensor):
        _check_tensor(value)
        count = 1
    elif isinstance(value, Mapping | list | tuple | set):
        inner = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        sizes[id(value)] = MOST_VALUES + 1  # until it is known: refers to itself
        count = 1 + sum(_expanded(one, sizes, depth + 1) for one in inner)
        sizes[id(value)] = count
    else:
        count = 1
    if count > MOST_VALUES or depth > _DEEPEST:
        raise ValueError("its values refer to each other without end")
    return count


def _check_tensor(tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_meta:
        raise ValueError(f"a {tensor.layout} tensor")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"a tensor of {tensor.numel():,} numbers is made of fewer")
