"""What stays in float, with its share: coverage is stated, never assumed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from torch import nn

from hwbmpq.graph.operations import LAYER_KINDS, WEIGHTED_MODULES, Operation
from hwbmpq.quant.quantizers import InputQuantizer
from hwbmpq.values import Uncovered

_EMBEDDING_MODULES = (nn.Embedding, nn.EmbeddingBag)
_ATTENTION_MODULES = (nn.MultiheadAttention, nn.modules.linear.NonDynamicallyQuantizableLinear)

_Key = tuple[str, str, str]  # name, kind, reason


def list_uncovered(
    model: nn.Module, operations: Iterable[Operation], layer_of: Mapping[str, str]
) -> tuple[Uncovered, ...]:
    """Parameters outside the layers' weights, and MACs outside the layers' calls, by module."""
    operations = list(operations)
    parameters = _uncovered_parameters(model, operations, layer_of)
    macs = _uncovered_macs(model, operations, layer_of)
    return tuple(
        Uncovered(
            name=name,
            kind=kind,
            reason=reason,
            parameters=parameters.get((name, kind, reason), 0),
            macs=macs.get((name, kind, reason), 0),
        )
        for name, kind, reason in dict.fromkeys([*parameters, *macs])
    )


def _uncovered_parameters(
    model: nn.Module, operations: list[Operation], layer_of: Mapping[str, str]
) -> dict[_Key, int]:
    layers = set(layer_of.values())
    covered = {model.get_submodule(layer).weight for layer in layers}
    readers: dict[str, set[str]] = defaultdict(set)  # kinds of the operations that read a parameter
    for operation in operations:
        for parameter in operation.parameters:
            readers[parameter].add(operation.kind)
    functional = {operation.weight for operation in operations if operation.name not in layer_of}
    found: dict[_Key, int] = defaultdict(int)
    for parameter, value in model.named_parameters():
        owner, _, attribute = parameter.rpartition(".")
        module = model.get_submodule(owner)
        if value in covered or isinstance(module, InputQuantizer):
            continue
        if owner in layers and attribute == "bias":
            key = (parameter, "bias", "bias")
        elif parameter in functional and not isinstance(module, _ATTENTION_MODULES):
            key = _functional_key(parameter, module)
        else:
            key = (owner or parameter, type(module).__name__, _reason(module, readers[parameter]))
        found[key] += value.numel()
    return found


def _functional_key(parameter: str, module: nn.Module) -> _Key:
    return (parameter, type(module).__name__, "functional weight")


def _reason(module: nn.Module, readers: set[str]) -> str:
    if not readers:
        return "never runs"
    if "Norm" in type(module).__name__ or any("norm" in kind for kind in readers):
        return "norm"
    if isinstance(module, _EMBEDDING_MODULES):
        return "embedding"
    if isinstance(module, _ATTENTION_MODULES):
        return "attention"
    return "functional weight" if isinstance(module, WEIGHTED_MODULES) else "other parameter"


def _uncovered_macs(
    model: nn.Module, operations: list[Operation], layer_of: Mapping[str, str]
) -> dict[_Key, int]:
    found: dict[_Key, int] = defaultdict(int)
    for operation in operations:
        if operation.macs and operation.name not in layer_of:
            found[_macs_key(model, operation)] += operation.macs
    return found


def _macs_key(model: nn.Module, operation: Operation) -> _Key:
    module = model.get_submodule(operation.module)
    path = operation.module or operation.name
    if isinstance(module, _ATTENTION_MODULES) and operation.parameters:
        return (path, type(module).__name__, "attention")
    if operation.weight:
        owner = model.get_submodule(operation.weight.rpartition(".")[0])
        return _functional_key(operation.weight, owner)
    if operation.kind in LAYER_KINDS or operation.parameters:
        return (path, type(module).__name__, _reason(module, {operation.kind}))
    return (path, operation.kind, "activation product")
