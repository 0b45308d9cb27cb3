"""Data that a function of the user's own makes: ``file:PATH.py:FUNCTION``."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hwbmpq.data.batches import LoaderBatches
from hwbmpq.data.inputs import ModelInputs
from hwbmpq.data.loader_part import LoaderPart
from hwbmpq.data.registry import DataParts, Request, register
from hwbmpq.data.user_file import function_of
from hwbmpq.errors import HwbmpqError

_RETURNS = "return (train, test) or (train, validation, test): DataLoaders of (inputs, targets), or torch Datasets of them"


@register(
    "file:PATH.py:FUNCTION",
    "your code: returns (train, test) or (train, validation, test), DataLoaders or Datasets",
)
def open_loaders(request: Request) -> DataParts:
    """Inputs as the loaders give them; classes are counted unless the network's number is known."""
    train, *validation, test = (LoaderPart(source=part) for part in _called(request))
    inputs, labels = _first(train, request.spec)
    if request.has_classes and not isinstance(labels, Tensor):
        raise HwbmpqError(
            f"{request.spec}: labels are a {type(labels).__name__}, not a tensor of class numbers",
            hint="let the loaders yield (inputs, labels), or name another task with --task",
        )
    if request.has_classes and (labels.ndim != 1 or labels.is_floating_point()):
        raise HwbmpqError(
            f"{request.spec}: labels of type {str(labels.dtype).removeprefix('torch.')} and shape "
            f"{tuple(labels.shape)} are not class numbers",
            hint="let the loaders yield (inputs, labels), labels whole numbers (B,) from 0, or name another task with --task",
        )
    return DataParts(
        train=train,
        test=test if request.needs_test else None,
        validation=validation[0] if validation else None,
        classes=(request.classes or _count_classes(train)) if request.has_classes else None,
        image_size=tuple(inputs.shape[1:]),
        dtype=inputs.dtype,
    )


def _called(request: Request) -> tuple[Any, ...]:
    path, _, name = request.detail.rpartition(":")
    if not path.endswith(".py") or not name:
        raise HwbmpqError(f"cannot read {request.spec}", hint="use file:PATH.py:FUNCTION")
    function = function_of(Path(path).expanduser(), name)
    try:
        found = function()
    except (Exception, SystemExit) as error:  # the user's own code
        raise HwbmpqError(
            f"{name} in {path} raised {type(error).__name__}: {error}", hint="--debug shows where"
        ) from error
    if not isinstance(found, tuple | list) or len(found) not in (2, 3):
        raise HwbmpqError(f"{name} in {path} returned {type(found).__name__}, not a pair", hint=_RETURNS)
    for part in found:
        if not hasattr(part, "__len__"):
            raise HwbmpqError(f"{name} in {path}: a {type(part).__name__} has no length", hint=_RETURNS)
    return tuple(found)


def _first(part: LoaderPart, spec: str) -> tuple[Tensor, Any]:
    """The first input of a batch, as it will be, and its targets."""
    found = next(LoaderBatches(part.test_loader(limit=1, seed=0)).epoch(0), None)
    if found is None:
        raise HwbmpqError(f"{spec}: the training part is empty", hint=_RETURNS)
    inputs, targets = found
    return ModelInputs.of(inputs).tensors[0], targets


def _count_classes(part: LoaderPart) -> int:
    """As the data set says, in torchvision's words; else all labels are looked at once."""
    held: Any = part.source if part.is_dataset else getattr(part.source, "dataset", None)
    if hasattr(held, "classes"):
        return len(held.classes)
    for labels in (getattr(held, "targets", None), *getattr(held, "tensors", ())[1:2]):
        if labels is not None:
            return int(torch.as_tensor(labels).max()) + 1
    batches = LoaderBatches(part.test_loader(limit=None, seed=0)).epoch(0)
    return max(int(labels.max()) for _, labels in batches) + 1
