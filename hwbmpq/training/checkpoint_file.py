"""The file of a checkpoint: a torch archive with a checksum."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hwbmpq.errors import HwbmpqError
from hwbmpq.io import CHECKSUM_DIGITS, checksum, read_regular
from hwbmpq.models.archives import check_archive
from hwbmpq.training.checkpoint_contents import check_size
from hwbmpq.units import shown

FORMAT = "hwbmpq-checkpoint/1"
_MOST_BYTES = 1 << 35


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
