"""From a network to its ``LayerGraph``."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import networkx as nx
from torch import Tensor, nn

from hwbmpq.errors import NoLayersError
from hwbmpq.graph.coverage import list_uncovered
from hwbmpq.graph.dataflow import Dataflow
from hwbmpq.graph.layergraph import LayerGraph
from hwbmpq.graph.operations import LAYER_KINDS, WEIGHTED_MODULES, Operation, Trace
from hwbmpq.graph.signs import nonnegative_tensors
from hwbmpq.graph.ties import find_ties
from hwbmpq.graph.trace import trace
from hwbmpq.values import DEFAULT_TIE, Layer


def describe(model: nn.Module, example_input: Tensor, *, tie: str = DEFAULT_TIE) -> LayerGraph:
    """Find the weighted layers of ``model``, what feeds them, and which must share a width.

    ``example_input`` carries a batch axis; shapes and MACs are those of one sample. ``tie`` is the
    policy for downsample layers: ``input`` (the paper's), ``sibling`` (HAWQ's) or ``none``.
    """
    return describe_trace(model, trace(model, example_input), tie=tie)


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
    owner_of: dict[Tensor, Layer] = {}  # weight -> the first layer that uses it
    layers = []
    for name, runs in calls.items():
        module = model.get_submodule(name)
        layer = _describe_layer(name, module, runs, flow)
        owner = owner_of.setdefault(module.weight, layer)  # type: ignore[arg-type]
        layers.append(
            replace(
                layer,
                parameters=0 if owner is not layer else layer.parameters,
                shares_weight_with="" if owner is layer else owner.name,
                input_signed=not all(run.inputs[0] in nonnegative for run in runs),
            )
        )
    return _share_ends(layers)


def _share_ends(layers: list[Layer]) -> tuple[Layer, ...]:
    """A layer that shares its weight with an end is one too: the weight has one width."""
    ends = {layer.shares_weight_with or layer.name for layer in layers if layer.is_end}
    return tuple(replace(layer, is_end=(layer.shares_weight_with or layer.name) in ends) for layer in layers)


def _describe_layer(name: str, module: nn.Module, runs: list[Operation], flow: Dataflow) -> Layer:
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    kind = LAYER_KINDS[runs[0].kind]
    input_shapes = [flow.shape(run.inputs[0]) for run in runs]
    shapes = zip(input_shapes, (run.shape for run in runs), strict=True)
    return Layer(
        name=name,
        kind=kind,
        weight_shape=tuple(weight.shape),
        parameters=weight.numel(),
        bias_parameters=bias.numel() if isinstance(bias, Tensor) else 0,
        macs=sum(_macs(kind, tuple(weight.shape), *pair) for pair in shapes),
        input_shape=input_shapes[0],
        output_shape=runs[0].shape,
        **_geometry(module),
        calls=len(runs),
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


def _macs(
    kind: str, weight_shape: tuple[int, ...], input_shape: tuple[int, ...], output_shape: tuple[int, ...]
) -> int:
    """Each weight meets every position of the output, or of the input where it is scattered."""
    positions = input_shape if kind.startswith("conv_transpose") else output_shape
    return prod(positions) * prod(weight_shape[1:])
