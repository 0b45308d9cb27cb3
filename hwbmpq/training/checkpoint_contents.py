"""What a checkpoint must be like, once it is read: others may have written it, with a checksum that is right."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from hwbmpq.errors import HwbmpqError, cut
from hwbmpq.models import bounded

MOST_VALUES = 10_000_000
_DEEPEST = 64
_Count = Annotated[int, Field(strict=True, ge=0, lt=2**53)]


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
