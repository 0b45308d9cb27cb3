"""What the tracers hand over: a network as a list of operations in execution order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import nn

WEIGHTED_MODULES = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Linear,
)

LAYER_KINDS = {
    "conv1d": "conv1d",
    "conv2d": "conv2d",
    "conv3d": "conv3d",
    "convtranspose1d": "conv_transpose1d",
    "convtranspose2d": "conv_transpose2d",
    "convtranspose3d": "conv_transpose3d",
    "linear": "linear",
}
"""Operations with a weight, by their plain name, and what a ``Layer`` calls them."""

ADDITIONS = frozenset({"add", "iadd", "radd"})


class TensorSource(Enum):
    """Where a tensor comes from when no operation of the network made it."""

    INPUT = "input"
    PARAMETER = "parameter"
    CONSTANT = "constant"
    OPERATION = "operation"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One tensor-producing call, or a tensor that enters the network from outside."""

    name: str
    kind: str
    """Plain lower-case name: ``conv2d``, ``batchnorm2d``, ``add``, ``relu``, however it was called."""
    source: TensorSource = TensorSource.OPERATION
    inputs: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    module: str = ""
    """Dotted path of the innermost module in whose ``forward`` it ran."""
    parameters: tuple[str, ...] = ()
    """Parameters it reads directly, by their names in the model."""
    weight: str = ""
    """Of ``parameters``, the one that a weighted operation multiplies with."""
    macs: int = 0
    clamps_negatives: bool = False
    """It cuts at zero or above, by its arguments (``clamp(min=0)``, ``hardtanh(0, 6)``)."""
    negates: bool = False
    """It multiplies, adds or pads with a negative constant."""
    is_output: bool = False
    """The network returns its result, whoever else reads it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Every operation of one forward pass, and how it was found."""

    operations: tuple[Operation, ...]
    traced_by: str
    """``fx``, ``export`` or ``hooks``."""
    notes: tuple[str, ...] = ()
    """Why earlier tracers did not serve."""


def plain_name(name: str) -> str:
    """One spelling for modules, functions, methods and ATen operators.

    >>> [plain_name(n) for n in ("Conv2d", "conv2d", "add_", "__iadd__", "adaptive_avg_pool2d")]
    ['conv2d', 'conv2d', 'add', 'iadd', 'adaptiveavgpool2d']
    """
    return name.replace("_", "").lower()


def first_tensor(value: object) -> torch.Tensor | None:
    """The first tensor in a (nested) result, or None if it holds no tensor."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            found = first_tensor(item)
            if found is not None:
                return found
    return None


def storage_of(tensor: torch.Tensor) -> int:
    """What a tensor and its views have in common."""
    return int(tensor.untyped_storage()._cdata)


_CLAMPS = frozenset({"clamp", "clip", "hardtanh", "clampmin"})
_TAKES_CONSTANT = frozenset({"mul", "imul", "rmul", "add", "iadd", "radd", "pad", "constantpadnd"})


def clamps_negatives(kind: str, args: Sequence[object], named: Mapping[str, object]) -> bool:
    """Whether a clamp with these arguments (the tensor first) lets no negative value through."""
    if kind not in _CLAMPS:
        return False
    low = args[1] if len(args) > 1 else named.get("min", named.get("min_val"))
    return isinstance(low, (int, float)) and low >= 0


def negates(kind: str, args: Sequence[object], named: Mapping[str, object]) -> bool:
    """Whether a product, sum or padding with these arguments can turn non-negative values negative."""
    if kind not in _TAKES_CONSTANT:
        return False
    return any(isinstance(value, (int, float)) and value < 0 for value in [*args, *named.values()])
