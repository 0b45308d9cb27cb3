"""From a network to its ``LayerGraph``: its layers, and what stays in float."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import networkx as nx
from torch import Tensor, nn

from hwbmpq.deprecated import renamed_arguments
from hwbmpq.errors import NoLayersError
from hwbmpq.graph.dataflow import Dataflow, find_ties
from hwbmpq.graph.layergraph import LayerGraph
from hwbmpq.graph.operations import LAYER_KINDS, WEIGHTED_MODULES, Operation, Trace, nonnegative_tensors
from hwbmpq.graph.stored import stored_state
from hwbmpq.graph.trace import trace
from hwbmpq.inputs import Inputs
from hwbmpq.quant.quantizers import InputQuantizer
from hwbmpq.values import DEFAULT_TIE, Layer, Uncovered

_EMBEDDING_MODULES = (nn.Embedding, nn.EmbeddingBag)
_ATTENTION_MODULES = (nn.MultiheadAttention, nn.modules.linear.NonDynamicallyQuantizableLinear)

_Key = tuple[str, str, str]  # name, kind, reason


@renamed_arguments(example_input="example_args")
def describe(
    model: nn.Module,
    example_args: Inputs,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    tie: str = DEFAULT_TIE,
) -> LayerGraph:
    """Find the weighted layers of ``model``, what feeds them, and which must share a width.

    ``example_args`` is what the model is called with: a tensor, a tuple of arguments, or a dict of keyword arguments,
    to which ``example_kwargs`` adds. Tensors carry a batch axis; shapes and MACs are those of one sample. ``tie`` is
    the policy for downsample layers: ``input`` (the paper's), ``sibling`` (HAWQ's) or ``none``.
    """
    return describe_trace(model, trace(model, example_args, example_kwargs), tie=tie)


def describe_trace(model: nn.Module, traced: Trace, *, tie: str = DEFAULT_TIE) -> LayerGraph:
    """The ``LayerGraph`` of a network whose operations are known."""
    layer_of = _layers_by_operation(model, traced.operations)
    if not layer_of:
        raise NoLayersError(
            f"{type(model).__name__} has no layer to quantize: no convolution or linear module runs "
            "with a weight of its own",
            hint="hwbmpq quantizes nn.Conv*, nn.ConvTranspose* and nn.Linear modules; "
            "wrap functional weights in one of them",
        )
    graph = _operation_graph(traced.operations, layer_of)
    flow = Dataflow(graph)
    layers = _describe_layers(model, traced.operations, flow, layer_of)
    return LayerGraph(
        layers=layers,
        ties=find_ties(flow, layers, policy=tie),
        uncovered=list_uncovered(model, traced.operations, layer_of),
        operations=graph,
        traced_by=traced.traced_by,
        notes=traced.notes,
        stored=stored_state(model, layers),
    )


def _layers_by_operation(model: nn.Module, operations: Iterable[Operation]) -> dict[str, str]:
    """Operations that are a layer's call, with the layer's name.

    A weighted module counts if the product in its own forward takes its own weight, as it is or
    transformed on the way (timm's ``StdConv2d``): a weight used from elsewhere would escape the quantizer.
    """
    name_of = {module: name for name, module in model.named_modules()}  # one name for an aliased module
    found = {}
    for operation in operations:
        if operation.kind not in LAYER_KINDS:
            continue
        module = model.get_submodule(operation.module)
        own = module._parameters.get("weight") if isinstance(module, WEIGHTED_MODULES) else None
        is_computed = not operation.weight
        if own is not None and (is_computed or model.get_parameter(operation.weight) is own):
            found[operation.name] = name_of[module]
    return found


def _operation_graph(operations: Iterable[Operation], layer_of: Mapping[str, str]) -> nx.DiGraph:
    graph = nx.DiGraph()
    for operation in operations:
        graph.add_node(
            operation.name,
            kind=operation.kind,
            source=operation.source,
            shape=operation.shape,
            layer=layer_of.get(operation.name, ""),
            is_output=operation.is_output,
        )
        graph.add_edges_from((read, operation.name) for read in operation.inputs)
    return graph


def _describe_layers(
    model: nn.Module, operations: Iterable[Operation], flow: Dataflow, layer_of: Mapping[str, str]
) -> tuple[Layer, ...]:
    calls: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.name in layer_of:
            calls[layer_of[operation.name]].append(operation)
    nonnegative = nonnegative_tensors(operations)
    owner_of: dict[Tensor, str] = {}  # weight -> the first layer that uses it
    layers = []
    for name, runs in calls.items():
        module = model.get_submodule(name)
        owner = owner_of.setdefault(module.weight, name)  # type: ignore[arg-type]
        layer = _describe_layer(name, module, runs, flow, nonnegative)
        layers.append(
            layer if owner == name else replace(layer, parameters=0, scales=0, shares_weight_with=owner)
        )
    # A layer that shares its weight with an end is one too: the weight has one width.
    ends = {layer.shares_weight_with or layer.name for layer in layers if layer.is_end}
    return tuple(replace(layer, is_end=(layer.shares_weight_with or layer.name) in ends) for layer in layers)


def _describe_layer(
    name: str, module: nn.Module, runs: list[Operation], flow: Dataflow, nonnegative: set[str]
) -> Layer:
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    kind = LAYER_KINDS[runs[0].kind]
    input_shapes = [flow.shape(run.inputs[0]) for run in runs]
    # Each weight meets every position of the output, or of the input where it is scattered.
    shapes = [(read, run.shape) for read, run in zip(input_shapes, runs, strict=True)]
    multiplied = input_shapes if kind.startswith("conv_transpose") else [run.shape for run in runs]
    return Layer(
        name=name,
        kind=kind,
        weight_shape=tuple(weight.shape),
        parameters=weight.numel(),
        bias_parameters=bias.numel() if isinstance(bias, Tensor) else 0,
        macs=sum(prod(positions) for positions in multiplied) * prod(weight.shape[1:]),
        input_shape=input_shapes[0],
        output_shape=runs[0].shape,
        input_signed=not all(run.inputs[0] in nonnegative for run in runs),
        **_geometry(module),
        calls=len(runs),
        call_shapes=tuple(shapes) if len(set(shapes)) > 1 else (),
        float_bits=8 * weight.element_size(),
        reads_network_input=any(flow.is_network_input(run.inputs[0]) for run in runs),
        reads=tuple(dict.fromkeys(flow.tensor_read(run.inputs[0]) for run in runs)),
        fed_by=tuple(dict.fromkeys(node for run in runs for node in flow.upstream(run.name))),
        feeds=tuple(dict.fromkeys(node for run in runs for node in flow.downstream(run.name))),
        is_end=any(flow.is_end(run.name) for run in runs),
    )


def _geometry(module: nn.Module) -> dict[str, Any]:
    if isinstance(module, nn.Linear):
        return {"in_channels": module.in_features, "out_channels": module.out_features}
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
    return {name: getattr(module, name) for name in names}


def list_uncovered(
    model: nn.Module, operations: Sequence[Operation], layer_of: Mapping[str, str]
) -> tuple[Uncovered, ...]:
    """Parameters outside the layers' weights, and MACs outside the layers' calls, by module."""
    found: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
    for key, parameters in _uncovered_parameters(model, operations, layer_of):
        found[key][0] += parameters
    for operation in operations:
        if operation.macs and operation.name not in layer_of:
            found[_macs_key(model, operation)][1] += operation.macs
    return tuple(
        Uncovered(name=name, kind=kind, reason=reason, parameters=parameters, macs=macs)
        for (name, kind, reason), (parameters, macs) in found.items()
    )


def _uncovered_parameters(
    model: nn.Module, operations: Sequence[Operation], layer_of: Mapping[str, str]
) -> Iterator[tuple[_Key, int]]:
    layers = set(layer_of.values())
    covered = {model.get_submodule(layer).weight for layer in layers}
    readers: dict[str, set[str]] = defaultdict(set)  # kinds of the operations that read a parameter
    for operation in operations:
        for parameter in operation.parameters:
            readers[parameter].add(operation.kind)
    functional = {operation.weight for operation in operations if operation.name not in layer_of}
    for parameter, value in model.named_parameters():
        owner, _, attribute = parameter.rpartition(".")
        module = model.get_submodule(owner)
        if value in covered or isinstance(module, InputQuantizer):
            continue
        if owner in layers and attribute == "bias":
            key = (parameter, "bias", "bias")
        elif parameter in functional and not isinstance(module, _ATTENTION_MODULES):
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
    if isinstance(module, _ATTENTION_MODULES):
        return "attention"
    return "functional weight" if isinstance(module, WEIGHTED_MODULES) else "other parameter"


def _macs_key(model: nn.Module, operation: Operation) -> _Key:
    module = model.get_submodule(operation.module)
    path = operation.module or operation.name
    if isinstance(module, _ATTENTION_MODULES) and operation.parameters:
        return (path, type(module).__name__, "attention")
    if operation.weight:
        owner = model.get_submodule(operation.weight.rpartition(".")[0])
        return (operation.weight, type(owner).__name__, "functional weight")
    if operation.kind in LAYER_KINDS or operation.parameters:
        return (path, type(module).__name__, _reason(module, {operation.kind}))
    return (path, operation.kind, "activation product")
