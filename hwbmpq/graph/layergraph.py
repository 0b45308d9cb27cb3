"""``LayerGraph``: a network's weighted layers, how they are connected, and what stays in float."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import networkx as nx

from hwbmpq.graph.dataflow import Dataflow
from hwbmpq.quant.prepare import scale_count
from hwbmpq.values import (
    UNCOVERED_REASONS,
    Layer,
    Schedule,
    StoredState,
    StoredTensor,
    TieGroup,
    Uncovered,
    Unquantized,
)


@dataclass(frozen=True, kw_only=True)
class LayerGraph:
    """What hwbmpq knows about a network. Iterating yields its layers in execution order."""

    layers: tuple[Layer, ...]
    ties: tuple[TieGroup, ...]
    uncovered: tuple[Uncovered, ...]
    operations: nx.DiGraph
    """Every operation in execution order; attributes ``kind``, ``shape``, ``layer`` (a name or ""), ``is_output``,
    ``in_float`` (it multiplies without rounding what it reads) and ``inside`` (elements that it keeps while it runs)."""
    traced_by: str
    notes: tuple[str, ...] = ()
    stored: tuple[StoredState, ...] = ()
    """What is stored beside the layers' weights: biases, norms, clipping points, parameters left in float, buffers."""

    def with_scales(self, *, per_channel: bool) -> "LayerGraph":
        """The same network, its weights stored with one scale per output channel, or one per layer."""
        layers = (
            layer if layer.shares_weight_with else replace(layer, scales=scale_count(layer, per_channel))
            for layer in self.layers
        )
        return replace(self, layers=tuple(layers))

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __contains__(self, layer: object) -> bool:
        return layer in self.layers

    def __getitem__(self, name: str) -> Layer:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"no layer named {name!r}")

    @cached_property
    def schedule(self) -> Schedule:
        """Which activations are in memory at each step of the forward pass."""
        return find_schedule(self.operations)

    @property
    def uncovered_by_reason(self) -> tuple[Unquantized, ...]:
        """What stays in float, summed up for each reason."""
        by_reason: dict[str, list[Uncovered]] = {}
        for entry in self.uncovered:
            by_reason.setdefault(entry.reason, []).append(entry)
        return tuple(
            Unquantized(
                reason=reason,
                why=UNCOVERED_REASONS.get(reason, ""),
                places=len(entries),
                parameters=sum(entry.parameters for entry in entries),
                macs=sum(entry.macs for entry in entries),
            )
            for reason, entries in by_reason.items()
        )

    @property
    def weights(self) -> int:
        """Weights of all layers, without biases."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def parameters(self) -> int:
        """All parameters of the network."""
        return self.weights + sum(entry.parameters for entry in self.uncovered)

    @property
    def coverage(self) -> tuple[float, float]:
        """Shares of the network's parameters and of its multiply-accumulates that are layers'."""
        return self.weights / max(1, self.parameters), self.layer_macs / max(1, self.macs)

    @property
    def layer_macs(self) -> int:
        return sum(layer.macs for layer in self.layers)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the layers and of what stays in float."""
        return self.layer_macs + sum(entry.macs for entry in self.uncovered)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the operations, ready for JSON."""
        return {
            "traced_by": self.traced_by,
            "notes": list(self.notes),
            "totals": {
                "layers": len(self),
                "weights": self.weights,
                "parameters": self.parameters,
                "layer_macs": self.layer_macs,
                "macs": self.macs,
                "covered_parameters": self.coverage[0],
                "covered_macs": self.coverage[1],
            },
            "layers": [asdict(layer) for layer in self.layers],
            "ties": [asdict(group) for group in self.ties],
            "uncovered": [asdict(entry) for entry in self.uncovered],
        }


_PART = "getitem"
"""The kind of an operation that takes a part of a result, or one of several."""


@dataclass(slots=True)
class _Use:
    """What reads an operation's result, up to the next layers and additions."""

    readers: dict[str, None] = field(default_factory=dict)  # an ordered set
    feeds_addition: bool = False
    leaves: bool = False
    read_in_float: bool = False


def find_schedule(operations: nx.DiGraph) -> Schedule:
    """The steps of the execution order and the tensors alive at each.

    An operation without products works in place if it is the only reader of the one tensor that it reads, and keeps
    its size. The network's inputs are in memory from the first step until their last reader. What an operation keeps
    inside (the scores of an attention, the gates of a GRU) is a tensor of that step only.
    """
    flow = Dataflow(operations)
    steps: list[str] = []
    step_of: dict[str, int] = {}
    owner: dict[str, str] = {}  # operation -> the operation that made the tensor it writes to
    for name in _computed(flow):
        reads = flow.data_inputs(name)
        if reads and _works_in_place(flow, name, reads):
            owner[name] = owner[reads[0]]
            step_of[name] = step_of[owner[name]]
            continue
        owner[name] = name
        step_of[name] = len(steps) if reads else 0  # an input is there from the start
        if reads:
            steps.append(flow.label(name))
    tensors = _tensors(flow, owner, step_of, last=len(steps) - 1)
    return Schedule(steps=tuple(steps), tensors=(*tensors, *_inside(flow, step_of)))


def _inside(flow: Dataflow, step_of: dict[str, int]) -> Iterator[StoredTensor]:
    for name, step in step_of.items():
        if elements := flow.inside(name):
            yield StoredTensor(
                name=f"inside {flow.label(name)}", elements=elements, made_at=step, last_read_at=step
            )


def _computed(flow: Dataflow) -> list[str]:
    """What the forward pass computes from its input; not the parts of a result that nothing uses (an LSTM's last state)."""
    return [
        name
        for name in flow.graph
        if name in flow.data and not (flow.kind(name) == _PART and flow.is_unused(name))
    ]


def _works_in_place(flow: Dataflow, name: str, reads: list[str]) -> bool:
    is_whole = flow.kind(name) == _PART and flow.shape(name) == flow.shape(reads[0])
    if is_whole or flow.tensor_read(name) != name:
        return True  # it returns what it reads, whatever else reads that
    if flow.layer(name) or flow.computes_in_float(name) or len(reads) != 1:
        return False
    is_only_reader = len(flow.graph.succ[reads[0]]) == 1
    return is_only_reader and prod(flow.shape(name)) == prod(flow.shape(reads[0]))


def _tensors(
    flow: Dataflow, owner: dict[str, str], step_of: dict[str, int], *, last: int
) -> tuple[StoredTensor, ...]:
    uses = _uses(flow)
    last_read = {made_by: step_of[made_by] for made_by in owner.values()}
    for name, made_by in owner.items():
        if flow.is_output(name):
            last_read[made_by] = last  # the network's output stays
        for read in flow.data_inputs(name):
            last_read[owner[read]] = max(last_read[owner[read]], step_of[name])
    return tuple(
        StoredTensor(
            name=flow.label(made_by),
            elements=prod(flow.shape(made_by)),
            made_at=step_of[made_by],
            last_read_at=last_read_at,
            readers=tuple(uses[made_by].readers),
            feeds_addition=uses[made_by].feeds_addition,
            leaves=uses[made_by].leaves,
            read_in_float=uses[made_by].read_in_float,
        )
        for made_by, last_read_at in last_read.items()
    )


def _uses(flow: Dataflow) -> dict[str, _Use]:
    uses: dict[str, _Use] = {}
    for name in reversed(_computed(flow)):
        use = uses[name] = _Use()
        use.leaves = flow.is_output(name)
        for reader in flow.graph.succ[name]:  # each is in ``flow.data``, as ``name`` is
            if reader not in uses:
                continue
            if flow.computes_in_float(reader):
                use.read_in_float = True
            elif flow.layer(reader):
                use.readers[flow.layer(reader)] = None
            elif flow.is_addition(reader) and len(flow.data_inputs(reader)) > 1:
                use.feeds_addition = True
            else:
                use.readers |= uses[reader].readers
                use.feeds_addition |= uses[reader].feeds_addition
                use.leaves |= uses[reader].leaves
                use.read_in_float |= uses[reader].read_in_float
    return uses


def outline(operations: nx.DiGraph) -> nx.DiGraph:
    """The operations that have a layer, several sources or no reader; edges skip the others. Attributes stay."""
    kept = nx.DiGraph()
    sources: dict[str, list[str]] = {}
    for node in nx.topological_sort(operations):
        before = list(dict.fromkeys(s for p in operations.predecessors(node) for s in sources[p]))
        data = operations.nodes[node]
        is_end = not before or data.get("is_output") or not operations.out_degree(node)
        if data.get("layer") or len(before) > 1 or is_end:
            kept.add_node(node, **data)
            kept.add_edges_from((source, node) for source in before)
            sources[node] = [node]
        else:
            sources[node] = before
    return kept
