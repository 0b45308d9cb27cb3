"""Layers of which only the weight is quantized: parameters that operations multiply with, or look values up in.

They need no module of their own: the gates of an LSTM, the projections of ``nn.MultiheadAttention``, an embedding,
a weight that a network passes to a function itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch import nn

from hwbmpq.graph.dataflow import Dataflow
from hwbmpq.graph.operations import WEIGHTED_MODULES, Operation
from hwbmpq.graph.weight_uses import WeightUse, count_calls, is_quantizable, linear_shapes
from hwbmpq.quant.weights import can_hold, find_weight, join
from hwbmpq.values import EMBEDDING, Layer, Shape

_NAMED_BY_MODULE = (*WEIGHTED_MODULES, nn.Embedding, nn.EmbeddingBag)
"""Their ``weight`` has the module's name as a layer, as that of a module that runs by itself."""


@dataclass(kw_only=True)
class WeightReads:
    """A parameter that becomes a layer, and the operations that use it."""

    layer: str
    value: nn.Parameter
    position: int
    """Among the network's parameters."""
    is_input_gate: bool = False
    """Of a recurrent module: its products with all time steps are one product, even where torch makes them one by one."""
    operations: list[tuple[Operation, list[WeightUse]]] = field(default_factory=list)

    def add(self, operation: Operation, use: WeightUse | None) -> None:
        if not self.operations or self.operations[-1][0] is not operation:
            self.operations.append((operation, []))
        if use is not None:
            self.operations[-1][1].append(use)

    @property
    def first(self) -> str:
        return self.operations[0][0].name

    @property
    def uses(self) -> list[WeightUse]:
        return [use for _, uses in self.operations for use in uses]


def find_weight_reads(
    model: nn.Module, operations: Iterable[Operation], layer_of: Mapping[str, str]
) -> list[WeightReads]:
    """Parameters that become layers beside those of ``layer_of``, in the order that the network has them in."""
    parameters = dict(model.named_parameters())
    positions = {name: position for position, name in enumerate(parameters)}
    taken = set(layer_of.values())
    found: dict[str, WeightReads] = {}
    for operation in operations:
        for use in operation.weight_uses if operation.name not in layer_of else ():
            value = parameters[use.parameter]
            if not is_quantizable(value):
                continue
            names = [name for name in _names(model, operation, value) if name not in taken]
            for position, name in enumerate(names):
                if name not in found:
                    found[name] = WeightReads(
                        layer=name,
                        value=value,
                        position=positions[use.parameter],
                        is_input_gate=_is_input_gate(model, name),
                    )
                read = found[name]
                read.add(
                    operation, None if position else use
                )  # which of several names it was read by is not known
    return sorted(found.values(), key=lambda read: read.position)


def _names(model: nn.Module, operation: Operation, value: nn.Parameter) -> list[str]:
    """The layers that a parameter makes: that of the running module if it holds it, else one for each that does."""
    holders = [
        (path, module, entry)
        for path, module in model.named_modules()
        for entry, parameter in module._parameters.items()
        if parameter is value and can_hold(module)
    ]
    running = model.get_submodule(operation.module)
    own = [holder for holder in holders if holder[1] is running]
    return [
        path if entry == "weight" and isinstance(module, _NAMED_BY_MODULE) else join(path, entry)
        for path, module, entry in own or holders
    ]


def _is_input_gate(model: nn.Module, layer: str) -> bool:
    module, entry = find_weight(model, layer)
    return isinstance(module, nn.RNNBase) and entry.startswith("weight_ih")


def describe_weight_only(read: WeightReads, flow: Dataflow, *, is_end: bool) -> Layer:
    shape = tuple(read.value.shape)
    kind = next((use.kind for use in read.uses if use.kind != EMBEDDING), EMBEDDING)
    shapes = list(_call_shapes(read, kind, shape))
    names = [operation.name for operation, _ in read.operations]
    inputs = [tensor for name in names for tensor in flow.data_inputs(name)]
    return Layer(
        name=read.layer,
        kind=kind,
        weight_shape=shape,
        parameters=read.value.numel(),
        bias_parameters=0,
        macs=sum(use.macs for use in read.uses),
        input_shape=shapes[0][0],
        output_shape=shapes[0][1],
        **_geometry(read, kind, shape),
        calls=len(shapes),
        call_shapes=tuple(shapes) if len(set(shapes)) > 1 else (),
        reads_network_input=any(map(flow.is_network_input, inputs)),
        reads=tuple(dict.fromkeys(map(flow.tensor_read, inputs))),
        fed_by=tuple(dict.fromkeys(node for name in names for node in flow.upstream(name))),
        feeds=tuple(dict.fromkeys(node for name in names for node in flow.downstream(name))),
        is_end=is_end,
        weight_only=True,
        float_bits=8 * read.value.element_size(),
        scale_axis=1 if kind == EMBEDDING else 0,  # rows are many, and a scale each would take much memory
    )


def find_ends(reads: Iterable[WeightReads], flow: Dataflow) -> set[str]:
    """The layers that are first or last in the network; of an operation with several weights (an LSTM), one each."""
    by_operation: dict[str, list[WeightReads]] = defaultdict(list)
    for read in reads:
        for operation, _ in read.operations:
            by_operation[operation.name].append(read)
    first = {found[0].layer for name, found in by_operation.items() if flow.is_first(name)}
    return first | {found[-1].layer for name, found in by_operation.items() if flow.is_last(name)}


def _call_shapes(read: WeightReads, kind: str, weight_shape: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Input and output of every call."""
    for _, uses in read.operations:
        same = [use for use in uses if use.kind == kind]
        if kind == "linear" and same:
            calls = 1 if read.is_input_gate else count_calls(same, weight_shape)
            yield from [linear_shapes(weight_shape, sum(use.macs for use in same), calls)] * calls
        else:
            yield from ((use.input_shape, use.output_shape) for use in same)


def _geometry(read: WeightReads, kind: str, weight_shape: Shape) -> Mapping[str, Any]:
    channels = {"in_channels": prod(weight_shape[1:]), "out_channels": weight_shape[0]}
    if kind == EMBEDDING:
        channels = {"in_channels": weight_shape[0], "out_channels": prod(weight_shape[1:])}
    return channels | next((dict(use.geometry) for use in read.uses if use.kind == kind), {})
