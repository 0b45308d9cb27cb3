"""A network as a list of operations in execution order: what the tracers record, and which results cannot be negative."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hwbmpq.graph.weight_uses import WeightUse, WeightUses

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
    kind.replace("_", ""): kind
    for kind in "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear".split()
}
"""Operations with a weight: their plain name, and the kind of ``Layer`` that they make."""

ADDITIONS = frozenset({"add", "iadd", "radd"})


class TensorSource(Enum):
    """Where a tensor comes from."""

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
    """Names of the parameters that it reads directly."""
    weight: str = ""
    """Of ``parameters``, the one that a weighted operation multiplies with."""
    macs: int = 0
    inside: int = 0
    """Elements of the products that it computes on the way to its result: an attention's projections and scores."""
    weight_uses: tuple[WeightUse, ...] = ()
    """Its products with parameters, and lookups in them."""
    clamps_negatives: bool = False
    """Its arguments cut off everything below zero (``clamp(min=0)``, ``hardtanh(0, 6)``)."""
    negates: bool = False
    """It multiplies, adds or pads with a negative constant."""
    is_output: bool = False
    """The network returns its result; other operations may read it too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Every operation of one forward pass, and how it was found."""

    operations: tuple[Operation, ...]
    traced_by: str
    """``fx``, ``export`` or ``hooks``."""
    notes: tuple[str, ...] = ()
    """Why earlier tracers failed."""


def plain_name(name: str) -> str:
    """One spelling for modules, functions, methods and ATen operators.

    >>> [plain_name(n) for n in ("Conv2d", "conv2d", "add_", "__iadd__", "adaptive_avg_pool2d")]
    ['conv2d', 'conv2d', 'add', 'iadd', 'adaptiveavgpool2d']
    """
    return name.replace("_", "").lower()


def call_facts(
    kind: str,
    module: str,
    args: Sequence[object],
    named: Mapping[str, object],
    *,
    reads: Iterable[object],
    name_of: Callable[[Any], str],
) -> dict[str, Any]:
    """The fields of an ``Operation`` for a function call; ``name_of`` gives a parameter's name, or ""."""
    weight = args[1] if len(args) > 1 else named.get("weight")
    return {
        "kind": kind,
        "module": module,
        "parameters": tuple(filter(None, map(name_of, reads))),
        "weight": name_of(weight) if kind in LAYER_KINDS else "",
        "clamps_negatives": clamps_negatives(kind, args, named),
        "negates": negates(kind, args, named),
    }


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


_NEVER_NEGATIVE = frozenset(
    "relu relu6 sigmoid hardsigmoid softmax softmax2d softplus abs absolute square exp sqrt rsqrt".split()
)

# Results are non-negative where all tensors they come from are.
_KEEP_SIGN = frozenset(
    """
    maxpool1d maxpool2d maxpool3d maxpool1dwithindices maxpool2dwithindices maxpool3dwithindices
    avgpool1d avgpool2d avgpool3d adaptiveavgpool1d adaptiveavgpool2d adaptiveavgpool3d
    adaptivemaxpool1d adaptivemaxpool2d adaptivemaxpool3d
    flatten unflatten view viewas reshape permute transpose t contiguous squeeze unsqueeze expand expandas
    movedim swapaxes narrow select slice getitem unbind chunk split splitwithsizes tensorsplit
    cat concat concatenate stack hstack vstack repeat repeatinterleave tile roll flip rot90
    dropout dropout1d dropout2d dropout3d featuredropout identity clone detach to float double
    add iadd radd mul imul rmul mean sum amax amin max min maximum minimum
    pad constantpadnd zeropad2d reflectionpad2d replicationpad2d pixelshuffle pixelunshuffle
    channelshuffle upsamplenearest2d upsamplebilinear2d
    """.split()
)


def nonnegative_tensors(operations: Iterable[Operation]) -> set[str]:
    """Names of the operations whose results cannot be negative."""
    found: set[str] = set()
    for operation in operations:
        if operation.source is not TensorSource.OPERATION:
            continue  # inputs, parameters and buffers may hold anything
        keeps = (
            operation.kind in _KEEP_SIGN
            and not operation.negates
            and bool(operation.inputs)
            and all(name in found for name in operation.inputs)
        )
        if operation.kind in _NEVER_NEGATIVE or operation.clamps_negatives or keeps:
            found.add(operation.name)
    return found


class Recorder(TorchDispatchMode):
    """The operations of a forward pass as they run; in-place changes are followed through views.

    While it is active it counts the MACs of matrix products and convolutions, of fake and meta tensors too.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self._macs = 0
        self._products: list[int] = []  # elements of each product of the call
        self._parameter_names = {id(p): name for name, p in model.named_parameters(remove_duplicate=True)}
        self._changed_at: dict[int, int] = {}  # storage -> position of what last changed it in place
        self._uses = WeightUses(self.parameter_name)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default:
            return NotImplemented  # a question, not a computation: the fake tensor answers it itself
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if packet not in flop_registry:
            # A composite (scaled dot-product attention on CPU, say) is counted by its parts.
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        macs = 0
        if packet in flop_registry:
            # One MAC is one multiplication and one addition.
            macs = flop_registry[packet](*args, **kwargs, out_val=result) // 2
            self._macs += macs
            self._products.append(result.numel() if isinstance(result, torch.Tensor) else 0)
        self._uses.see(packet.__name__, args, result, macs)
        return result

    def run(
        self, call: Callable[[], Any], read: Sequence[torch.Tensor]
    ) -> tuple[Any, list[torch.Tensor], int]:
        """Make a call that reads some tensors; its result, the tensors that it changed in place, and its MACs."""
        versions = [tensor._version for tensor in read]
        self._macs = 0
        self._products = []
        self._uses.take()
        result = call()
        changed = [t for t, version in zip(read, versions, strict=True) if t._version != version]
        return result, changed, self._macs

    def parameter_name(self, value: object) -> str:
        """A parameter's name in the model; "" for anything else."""
        return self._parameter_names.get(id(value), "")

    def add(
        self, name: str, tensor: torch.Tensor, *, changed: Iterable[torch.Tensor] = (), **fields: Any
    ) -> int:
        """Record an operation whose result is ``tensor``, and what it changed in place; its position."""
        position = len(self.operations)
        uses = self._uses.take()
        inside, self._products = sum(self._products[:-1]), []  # the last product is the result
        fields |= {"shape": tuple(tensor.shape), "weight_uses": uses, "inside": inside}
        self.operations.append(Operation(name=name, **fields))
        self._changed_at.update({_storage(each): position for each in changed})
        return position

    def latest(self, tensor: torch.Tensor, made_at: int) -> str:
        """The operation that made a tensor, or that changed it or a view of it later."""
        return self.operations[max(made_at, self._changed_at.get(_storage(tensor), 0))].name

    def attribute_fields(self, tensor: torch.Tensor) -> dict[str, Any]:
        """The fields of an ``Operation`` for a tensor that the model holds."""
        name = self.parameter_name(tensor)
        source = TensorSource.PARAMETER if name else TensorSource.CONSTANT
        return {"kind": source.value, "source": source, "parameters": (name,) if name else ()}

    def finish(self, returned: Iterable[str]) -> list[Operation]:
        """All operations, those that the network returns marked as outputs."""
        names = set(returned)
        return [replace(operation, is_output=operation.name in names) for operation in self.operations]


def _storage(tensor: torch.Tensor) -> int:
    """What a tensor and its views have in common."""
    return int(tensor.untyped_storage()._cdata)
