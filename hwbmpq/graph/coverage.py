"""What stays in float, with its share: coverage is stated, never assumed."""

from collections.abc import Iterable, Mapping

from torch import nn

from hwbmpq.graph.operations import LAYER_KINDS, WEIGHTED_MODULES, Operation
from hwbmpq.values import Uncovered

_NORM_MODULES = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm, nn.modules.batchnorm._NormBase)
_EMBEDDING_MODULES = (nn.Embedding, nn.EmbeddingBag)


def list_uncovered(
    model: nn.Module, operations: Iterable[Operation], layer_of: Mapping[str, str]
) -> tuple[Uncovered, ...]:
    """Parameters outside the layers' weights, and MACs outside the layers' calls, by module."""
    operations = list(operations)
    parameters = _uncovered_parameters(model, operations, layer_of)
    macs = _uncovered_macs(model, operations, layer_of)
    entries = []
    for key in dict.fromkeys([*parameters, *macs]):
        name, kind, reason = key
        entries.append(
            Uncovered(
                name=name, kind=kind, reason=reason, parameters=parameters.get(key, 0), macs=macs.get(key, 0)
            )
        )
    return tuple(entries)


_Key = tuple[str, str, str]  # name, kind, reason


def _uncovered_parameters(
    model: nn.Module, operations: list[Operation], layer_of: Mapping[str, str]
) -> dict[_Key, int]:
    layers = set(layer_of.values())
    covered = {model.get_submodule(layer).weight for layer in layers}
    read = {parameter for operation in operations for parameter in operation.parameters}
    found: dict[_Key, int] = {}
    for parameter, value in model.named_parameters():
        if value in covered:
            continue
        owner, _, attribute = parameter.rpartition(".")
        module = model.get_submodule(owner)
        if owner in layers and attribute == "bias":
            key = (parameter, "bias", "bias")
        else:
            key = (owner or parameter, type(module).__name__, _reason(module, parameter in read))
        found[key] = found.get(key, 0) + value.numel()
    return found


def _reason(module: nn.Module, is_read: bool) -> str:
    if not is_read:
        return "never runs"
    if isinstance(module, _NORM_MODULES) or "Norm" in type(module).__name__:
        return "norm"
    if isinstance(module, _EMBEDDING_MODULES):
        return "embedding"
    if isinstance(module, nn.MultiheadAttention):
        return "attention"
    if isinstance(module, WEIGHTED_MODULES):
        return "functional weight"
    return "other parameter"


def _uncovered_macs(
    model: nn.Module, operations: list[Operation], layer_of: Mapping[str, str]
) -> dict[_Key, int]:
    found: dict[_Key, int] = {}
    for operation in operations:
        if operation.macs == 0 or operation.name in layer_of:
            continue
        module = model.get_submodule(operation.module)
        path = operation.module or operation.name
        if operation.kind in LAYER_KINDS or operation.parameters:
            key = (path, type(module).__name__, _functional_reason(module))
        else:
            key = (path, operation.kind, "activation product")
        found[key] = found.get(key, 0) + operation.macs
    return found


def _functional_reason(module: nn.Module) -> str:
    return "attention" if isinstance(module, nn.MultiheadAttention) else "functional weight"
