"""What a network is called with: one tensor, several, or named ones; of one sample or of a batch."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError

Inputs: TypeAlias = "Tensor | Sequence[Any] | Mapping[str, Any] | ModelInputs"
"""A tensor; a tuple or list, which are positional arguments; or a dict, which are keyword arguments."""


def tensors(value: object) -> Iterator[Tensor]:
    """Every tensor in a nest of tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, ModelInputs):
        yield from value.tensors
    elif isinstance(value, (Mapping, tuple, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(item)


def first_tensor(value: object) -> Tensor | None:
    """The first tensor in a nest of tuples, lists and dicts, or None if there is none."""
    return next(tensors(value), None)


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same nest with every tensor changed; what is not a tensor stays."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: map_tensors(item, change) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, change) for item in value)
    return value


def named_tensors(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a nest, named by its place in it: ``batch.ids`` or ``pair.0``."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, (Mapping, tuple, list)):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from named_tensors(f"{name}.{key}", item)


def sample_count(inputs: object) -> int:
    """How many samples a batch of inputs has: the length of its first tensor; 1 if that has no axis."""
    first = first_tensor(inputs)
    return len(first) if first is not None and first.dim() else 1


def part_of(batch: Any, part: slice, count: int) -> Any:
    """Some of the ``count`` samples of a batch; tensors of another length belong to all samples and stay whole."""

    def cut(tensor: Tensor) -> Tensor:
        return tensor[part] if tensor.dim() and len(tensor) == count else tensor

    is_list = isinstance(batch, (list, tuple)) and len(batch) == count
    if is_list and not all(isinstance(item, Tensor) and item.dim() and len(item) == count for item in batch):
        return batch[part]  # one entry for each sample, as detectors have them
    return map_tensors(batch, cut)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelInputs:
    """The arguments of a network's ``forward``. The first axis of the first tensor is the batch."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, args: Inputs, kwargs: Mapping[str, Any] | None = None) -> "ModelInputs":
        """From a tensor, a tuple of arguments, or a dict of keyword arguments; ``kwargs`` are further ones."""
        if isinstance(args, cls):
            return args
        if isinstance(args, Mapping):
            found = cls(kwargs={**args, **(kwargs or {})})
        else:
            positional = tuple(args) if isinstance(args, (tuple, list)) else (args,)
            found = cls(args=positional, kwargs=dict(kwargs or {}))
        if first_tensor((found.args, found.kwargs)) is None:
            raise HwbmpqError(
                f"example inputs of type {type(args).__name__} hold no tensor",
                hint="give a tensor, a tuple of tensors, or a dict of keyword arguments",
            )
        return found

    @property
    def given(self) -> "Tensor | ModelInputs":
        """A single positional tensor as it is, which loaders and callers know."""
        is_one = len(self.args) == 1 and not self.kwargs and isinstance(self.args[0], Tensor)
        return self.args[0] if is_one else self

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensors((self.args, self.kwargs)))

    def __len__(self) -> int:
        """Samples in the batch."""
        return sample_count(self.tensors)

    @property
    def shape_text(self) -> str:
        """Sizes without the batch, for messages: ``3x32x32``, or ``16 and 16x4``."""
        return " and ".join("x".join(map(str, t.shape[1:])) or "one number" for t in self.tensors)

    def call(self, model: Callable[..., Any]) -> Any:
        return model(*self.args, **self.kwargs)

    def map(self, change: Callable[[Tensor], Tensor]) -> "ModelInputs":
        return ModelInputs(args=map_tensors(self.args, change), kwargs=map_tensors(self.kwargs, change))

    def part(self, part: slice) -> "ModelInputs":
        count = len(self)
        return self.map(lambda t: t[part] if t.dim() and len(t) == count else t)

    def for_model(self, model: nn.Module) -> "ModelInputs":
        """Where the network is, floats in its number format."""
        like = next((p for p in model.parameters() if p.is_floating_point()), None)
        if like is None:
            return self
        return self.map(lambda t: t.to(like.device, like.dtype if t.is_floating_point() else t.dtype))

    def on(self, device: torch.device) -> "ModelInputs":
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def bound(self, model: nn.Module) -> dict[str, Any]:
        """Arguments by their names in ``forward``, in its order."""
        signature = inspect.signature(model.forward)
        try:
            found = dict(signature.bind(*self.args, **self.kwargs).arguments)
        except TypeError as error:
            raise HwbmpqError(
                f"the example inputs do not fit forward of {type(model).__name__}: {error}",
                hint="give its arguments as a tuple, or as a dict by name",
            ) from error
        further = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
        return {**found, **found.pop(further)} if further in found else found
