"""From a network to its ``LayerGraph``: its layers, and what stays in float."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import networkx as nx
from torch import Tensor, nn

from hwbmpq.data.inputs import Inputs
from hwbmpq.deprecated import renamed_arguments
from hwbmpq.errors import NoLayersError
from hwbmpq.graph.coverage import list_uncovered
from hwbmpq.graph.dataflow import Dataflow, find_ties
from hwbmpq.graph.inside import elements_inside
from hwbmpq.graph.layergraph import LayerGraph
from hwbmpq.graph.operations import LAYER_KINDS, WEIGHTED_MODULES, Operation, Trace, nonnegative_tensors
from hwbmpq.graph.stored import stored_state
from hwbmpq.graph.trace import trace
from hwbmpq.graph.weight_only import WeightReads, describe_weight_only, find_ends, find_weight_reads
from hwbmpq.quant.weights import weight_of
from hwbmpq.values import DEFAULT_TIE, Layer


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
    graph = _operation_graph(model, traced.operations, layer_of)
    reads = find_weight_reads(model, traced.operations, layer_of)
    if not layer_of and not reads:
        raise NoLayersError(
            f"{type(model).__name__} has no layer to quantize: it multiplies with no parameter, and looks nothing up in one",
            hint="hwbmpq quantizes convolutions, matrix products and embeddings whose weights are parameters of modules",
        )
    _mark(graph, reads)
    flow = Dataflow(graph)
    layers = _describe_layers(model, traced.operations, flow, layer_of, reads)
    return LayerGraph(
        layers=layers,
        ties=find_ties(flow, layers, policy=tie),
        uncovered=list_uncovered(model, traced.operations, layer_of, reads),
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
    parameters = dict(model.named_parameters())
    found = {}
    for operation in operations:
        if operation.kind not in LAYER_KINDS:
            continue
        module = model.get_submodule(operation.module)
        own = module._parameters.get("weight") if isinstance(module, WEIGHTED_MODULES) else None
        taken = {operation.weight} - {""} or {use.parameter for use in operation.weight_uses}
        if own is not None and (not taken or any(parameters[name] is own for name in taken)):
            found[operation.name] = name_of[module]
    return found


def _operation_graph(
    model: nn.Module, operations: Iterable[Operation], layer_of: Mapping[str, str]
) -> nx.DiGraph:
    graph = nx.DiGraph()
    for operation in operations:
        layer = layer_of.get(operation.name, "")
        graph.add_node(
            operation.name,
            kind=operation.kind,
            source=operation.source,
            shape=operation.shape,
            layer=layer,
            is_output=operation.is_output,
            in_float=bool(operation.macs) and not layer,
            inside=0 if layer else elements_inside(model, operation),
        )
        graph.add_edges_from((read, operation.name) for read in operation.inputs)
    return graph


def _mark(graph: nx.DiGraph, reads: Iterable[WeightReads]) -> None:
    """Name the layer of operations whose weights alone are quantized; the first, if an LSTM has several."""
    for read in reads:
        for operation, _ in read.operations:
            node = graph.nodes[operation.name]
            node["layer"] = node["layer"] or read.layer
            node["in_float"] = True


def _describe_layers(
    model: nn.Module,
    operations: Iterable[Operation],
    flow: Dataflow,
    layer_of: Mapping[str, str],
    reads: Sequence[WeightReads],
) -> tuple[Layer, ...]:
    calls: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.name in layer_of:
            calls[layer_of[operation.name]].append(operation)
    nonnegative = nonnegative_tensors(operations)
    found = [
        (runs[0].name, _describe_layer(name, model.get_submodule(name), runs, flow, nonnegative))
        for name, runs in calls.items()
    ]
    ends = find_ends(reads, flow)
    found += [(read.first, describe_weight_only(read, flow, is_end=read.layer in ends)) for read in reads]
    found.sort(key=lambda pair: flow.order(pair[0]))  # of one operation, in the order of the parameters
    return _with_shared_weights(model, [layer for _, layer in found])


def _with_shared_weights(model: nn.Module, layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Of layers that hold one parameter, the first owns it; all have one width and the same scales."""
    holders: dict[Tensor, list[Layer]] = defaultdict(list)
    for layer in layers:
        holders[weight_of(model, layer.name)].append(layer)
    return tuple(_sharing(layer, holders[weight_of(model, layer.name)]) for layer in layers)


def _sharing(layer: Layer, holders: Sequence[Layer]) -> Layer:
    owner = holders[0]
    # Layers that read floats and layers that round what they read have no precision in common:
    # their shared weight is not allocated but keeps the width of the network's ends.
    is_mixed = len({holder.weight_only for holder in holders}) > 1
    layer = replace(
        layer,
        is_end=is_mixed or any(holder.is_end for holder in holders),
        scale_axis=min(holder.scale_axis for holder in holders),
    )
    if layer.name == owner.name:
        return layer
    return replace(layer, parameters=0, scales=0, shares_weight_with=owner.name)


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
