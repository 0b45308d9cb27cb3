"""What stays in float: parameters outside the layers' weights, and products outside their calls."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor, nn

from hwbmpq.graph.operations import LAYER_KINDS, WEIGHTED_MODULES, Operation
from hwbmpq.graph.stored import is_bias
from hwbmpq.graph.weight_only import WeightReads
from hwbmpq.quant.quantizers import InputQuantizer
from hwbmpq.quant.weights import weight_of
from hwbmpq.values import Uncovered

_EMBEDDING_MODULES = (nn.Embedding, nn.EmbeddingBag)

_Key = tuple[str, str, str]  # name, kind, reason


def list_uncovered(
    model: nn.Module,
    operations: Sequence[Operation],
    layer_of: Mapping[str, str],
    reads: Sequence[WeightReads],
) -> tuple[Uncovered, ...]:
    """Parameters outside the layers' weights, and MACs outside the layers' calls, by module."""
    found: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
    weights = {weight_of(model, name) for name in layer_of.values()} | {read.value for read in reads}
    for key, parameters in _uncovered_parameters(model, operations, weights, layer_of):
        found[key][0] += parameters
    for operation, macs in _uncovered_macs(operations, layer_of, reads):
        found[_macs_key(model, operation)][1] += macs
    return tuple(
        Uncovered(name=name, kind=kind, reason=reason, parameters=parameters, macs=macs)
        for (name, kind, reason), (parameters, macs) in found.items()
    )


def _uncovered_macs(
    operations: Iterable[Operation], layer_of: Mapping[str, str], reads: Iterable[WeightReads]
) -> Iterator[tuple[Operation, int]]:
    covered: dict[str, int] = defaultdict(int)
    for read in reads:
        for operation, uses in read.operations:
            covered[operation.name] += sum(use.macs for use in uses)
    for operation in operations:
        macs = operation.macs - covered[operation.name]
        if macs and operation.name not in layer_of:
            yield operation, macs


def _uncovered_parameters(
    model: nn.Module, operations: Sequence[Operation], weights: set[Tensor], layer_of: Mapping[str, str]
) -> Iterator[tuple[_Key, int]]:
    readers: dict[str, set[str]] = defaultdict(set)  # kinds of the operations that read a parameter
    for operation in operations:
        for parameter in operation.parameters:
            readers[parameter].add(operation.kind)
    functional = {operation.weight for operation in operations if operation.name not in layer_of}
    owners = {id(module) for module in model.modules() if weights & {*module._parameters.values()}}
    for parameter, value in model.named_parameters():
        owner, _, attribute = parameter.rpartition(".")
        module = model.get_submodule(owner)
        if value in weights or isinstance(module, InputQuantizer):
            continue
        if id(module) in owners and is_bias(attribute):
            key = (parameter, "bias", "bias")
        elif parameter in functional:
            key = (parameter, type(module).__name__, "functional weight")
        else:
            key = (owner or parameter, type(module).__name__, _reason(module, readers[parameter]))
        yield key, value.numel()


def _reason(module: nn.Module, readers: set[str]) -> str:
    if not readers:
        return "never runs"
    if "Norm" in type(module).__name__ or any("norm" in kind for kind in readers):
        return "norm"
    if isinstance(module, _EMBEDDING_MODULES):
        return "embedding"
    return "functional weight" if isinstance(module, WEIGHTED_MODULES) else "other parameter"


def _macs_key(model: nn.Module, operation: Operation) -> _Key:
    module = model.get_submodule(operation.module)
    path = operation.module or operation.name
    if operation.weight:
        owner = model.get_submodule(operation.weight.rpartition(".")[0])
        return (operation.weight, type(owner).__name__, "functional weight")
    if isinstance(module, nn.MultiheadAttention):
        return (path, type(module).__name__, "activation product")
    if operation.kind in LAYER_KINDS:
        return (path, type(module).__name__, "functional weight")  # computed before
    if operation.parameters:
        return (path, type(module).__name__, _reason(module, {operation.kind}))
    return (path, operation.kind, "activation product")
