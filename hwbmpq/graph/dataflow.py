"""The operation graph: what reads what, along which branch, and which layers must therefore share a width."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from math import prod

import networkx as nx

from hwbmpq.errors import UnknownNameError
from hwbmpq.graph.operations import ADDITIONS, TensorSource
from hwbmpq.values import DEFAULT_TIE, TIE_POLICIES, Layer, TieGroup

# Operations that return their input unchanged: whoever reads them reads the tensor before them.
_TRANSPARENT = frozenset(
    "identity dropout dropout1d dropout2d dropout3d featuredropout contiguous detach".split()
)


class Dataflow:
    """Read-only view of an operation graph (see ``LayerGraph.operations``)."""

    def __init__(self, graph: nx.DiGraph) -> None:
        self.graph = graph
        self._order = {name: position for position, name in enumerate(graph)}

    def kind(self, name: str) -> str:
        return str(self.graph.nodes[name]["kind"])

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.graph.nodes[name]["shape"])

    def layer(self, name: str) -> str:
        """The layer that this operation calls, or ""."""
        return str(self.graph.nodes[name]["layer"])

    def computes_in_float(self, name: str) -> bool:
        """Whether it multiplies or looks up without rounding what it reads."""
        return bool(self.graph.nodes[name].get("in_float", False))

    def inside(self, name: str) -> int:
        """Elements that it keeps in memory while it runs, beside what it reads and makes."""
        return int(self.graph.nodes[name].get("inside", 0))

    def is_addition(self, name: str) -> bool:
        return self.kind(name) in ADDITIONS

    def is_network_input(self, name: str) -> bool:
        return self.graph.nodes[self.tensor_read(name)]["source"] is TensorSource.INPUT

    def is_output(self, name: str) -> bool:
        """Whether the network returns it, or nothing reads it."""
        return bool(self.graph.nodes[name]["is_output"]) or not self.graph.succ[name]

    def is_unused(self, name: str) -> bool:
        """Whether nothing reads it and the network does not return it."""
        return not self.graph.succ[name] and not self.graph.nodes[name]["is_output"]

    def order(self, name: str) -> int:
        """Position in the execution order."""
        return self._order[name]

    @cached_property
    def data(self) -> set[str]:
        """Operations whose result depends on the network's input."""
        found: set[str] = set()
        for name, attributes in self.graph.nodes.items():
            if attributes["source"] is TensorSource.INPUT or any(p in found for p in self.graph.pred[name]):
                found.add(name)
        return found

    def data_inputs(self, name: str) -> list[str]:
        """What it reads, without parameters and constants."""
        return [read for read in self.graph.pred[name] if read in self.data]

    def tensor_read(self, name: str) -> str:
        """The operation that made the tensor which ``name`` returns."""
        while self.kind(name) in _TRANSPARENT and len(self.graph.pred[name]) == 1:
            (name,) = self.graph.pred[name]
        return name

    def _is_anchor(self, name: str) -> bool:
        """Layers, joins and inputs stay visible; other operations are passed through."""
        return bool(self.layer(name)) or len(self.data_inputs(name)) != 1

    @cached_property
    def _anchor(self) -> dict[str, str]:
        """Nearest layer, join or input at or above each operation on the data path."""
        found: dict[str, str] = {}
        for name in self.graph:
            if name in self.data:
                found[name] = name if self._is_anchor(name) else found[self.data_inputs(name)[0]]
        return found

    @cached_property
    def _readers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {name: [] for name in self.graph}
        for name in self._anchor:
            if self._is_anchor(name):
                for read in self.data_inputs(name):
                    found[self._anchor[read]].append(name)
        return found

    def label(self, name: str) -> str:
        return self.layer(name) or name

    def upstream(self, name: str) -> list[str]:
        """Labels of the nearest layers, joins and inputs that feed a layer's call."""
        return [self.label(self._anchor[read]) for read in self.data_inputs(name)] or ["constant"]

    def downstream(self, name: str) -> list[str]:
        """Labels of the nearest layers and joins that read a layer's call."""
        return [self.label(reader) for reader in self._readers[name]] or ["output"]

    @cached_property
    def forks(self) -> dict[str, str | None]:
        """For each operation on the data path, the last tensor that every path to it goes through.

        That is where the branches that meet in the operation part.
        """
        root = ""  # stands before all inputs; no operation has this name
        tree = nx.DiGraph()
        for name in self._anchor:
            reads = self.data_inputs(name)
            tree.add_edges_from([(read, name) for read in reads] or [(root, name)])
        found = nx.immediate_dominators(tree, root) if tree else {}
        return {name: found[name] or None for name in self._anchor}

    @cached_property
    def _behind_a_layer(self) -> set[str]:
        """Operations on the data path with a layer somewhere upstream."""
        return self._beyond_layers(self._anchor, self.data_inputs)

    @cached_property
    def _before_a_layer(self) -> set[str]:
        """Operations with a layer somewhere downstream."""
        return self._beyond_layers(reversed(list(self.graph)), self.graph.succ.__getitem__)

    def _beyond_layers(self, names: Iterable[str], neighbours: Callable[[str], Iterable[str]]) -> set[str]:
        found: set[str] = set()
        for name in names:
            if any(self.layer(other) or other in found for other in neighbours(name)):
                found.add(name)
        return found

    def is_first(self, name: str) -> bool:
        """Whether a layer's call is the first after the network's input.

        Layers that are fed by constants, as the position-bias networks of some transformers, are neither first nor last.
        """
        return name in self.data and name not in self._behind_a_layer

    def is_last(self, name: str) -> bool:
        """Whether a layer's call is the last before the network's output."""
        return name in self.data and name not in self._before_a_layer

    def is_end(self, name: str) -> bool:
        """Whether a layer's call is the first or the last between the network's input and its output."""
        return self.is_first(name) or self.is_last(name)

    def branch(self, end: str, fork: str) -> set[str]:
        """Operations on the way from ``fork`` (not included) to ``end``."""
        found: set[str] = set()
        frontier = [end]
        while frontier:
            name = frontier.pop()
            if name != fork and name not in found:
                found.add(name)
                frontier.extend(self.data_inputs(name))
        return found

    def calls(self, nodes: Iterable[str]) -> list[str]:
        """The layer calls among operations, in execution order."""
        return sorted((name for name in nodes if self.layer(name)), key=self.order)

    def depth(self, nodes: set[str]) -> int:
        """The most layer calls in series on any path through ``nodes``."""
        depths: dict[str, int] = {}
        for name in sorted(nodes, key=self.order):
            before = max((depths[read] for read in self.data_inputs(name) if read in nodes), default=0)
            depths[name] = before + bool(self.layer(name))
        return max(depths.values(), default=0)


def find_ties(flow: Dataflow, layers: Iterable[Layer], *, policy: str = DEFAULT_TIE) -> tuple[TieGroup, ...]:
    """Groups of layers that must share one ``Precision``; groups that overlap become one."""
    if policy not in TIE_POLICIES:
        raise UnknownNameError("tie policy", policy, TIE_POLICIES)
    layers = list(layers)
    # What reads floats has no precision in common with what rounds its input.
    in_float = {layer.name for layer in layers if layer.weight_only}
    ends = in_float | {layer.name for layer in layers if layer.is_end}
    graph = nx.Graph()
    for layer in layers:
        other = layer.shares_weight_with
        if other and (layer.name in in_float) == (other in in_float):
            graph.add_edge(layer.name, other, reason=f"{layer.name} shares its weight with {other}")
    for downsample, sibling, feeder in _downsamples(flow) if policy != "none" else ():
        partner, reason = _partner(sibling, feeder, ends, policy)
        if downsample not in ends and partner not in (None, downsample):
            graph.add_edge(downsample, partner, reason=f"downsample {downsample} follows {reason}")
    return _groups(graph, [layer.name for layer in layers])


def _partner(sibling: str, feeder: str | None, ends: set[str], policy: str) -> tuple[str | None, str]:
    """The layer that a downsample follows, if there is one whose width is free, and why that one."""
    if policy == "input" and feeder is not None and feeder not in ends:
        return feeder, f"its input layer {feeder}"
    if sibling in ends:
        return None, ""
    reason = f"its sibling {sibling}"
    if policy == "input":
        missing = "no layer feeds it" if feeder is None else f"its input layer {feeder} is a fixed end"
        reason += f", since {missing}"
    return sibling, reason


def _downsamples(flow: Dataflow) -> Iterator[tuple[str, str, str | None]]:
    """Downsample layers, each with the first layer of the other branch and the layer that feeds both.

    A downsample layer is the only layer on one of two branches from a tensor to an addition.
    """
    for join in flow.graph:
        operands = flow.data_inputs(join) if flow.is_addition(join) and join in flow.data else []
        fork = flow.forks[join] if len(operands) == 2 else None
        if fork is None or fork in operands:  # a plain residual connection has no layer on its short branch
            continue
        branches = [flow.branch(operand, fork) for operand in operands]
        for short, long in (branches, reversed(branches)):
            calls = flow.calls(short)
            if len(calls) == 1 and flow.depth(long) > 1 and short.isdisjoint(long):
                yield flow.layer(calls[0]), flow.layer(flow.calls(long)[0]), _feeder(flow, fork)


def _feeder(flow: Dataflow, name: str) -> str | None:
    """Nearest layer upstream on the main path."""
    while not flow.layer(name):
        reads = flow.data_inputs(name)
        if not reads:
            return None
        name = reads[0] if len(reads) == 1 else _main_operand(flow, name, reads)
    return flow.layer(name)


def _main_operand(flow: Dataflow, join: str, reads: list[str]) -> str:
    """At an addition the branch with more layers in series; elsewhere the larger tensor (not the gate)."""
    if not flow.is_addition(join):
        return max(reads, key=lambda read: (prod(flow.shape(read)), flow.order(read)))
    fork = flow.forks[join]
    if fork is None:
        return max(reads, key=flow.order)
    return max(reads, key=lambda read: flow.depth(flow.branch(read, fork)))


def _groups(graph: nx.Graph, order: list[str]) -> tuple[TieGroup, ...]:
    position = {name: index for index, name in enumerate(order)}
    groups = []
    for members in nx.connected_components(graph):
        reasons = sorted({str(reason) for *_, reason in graph.subgraph(members).edges(data="reason")})
        layers = tuple(sorted(members, key=position.__getitem__))
        groups.append(TieGroup(layers=layers, reason="; ".join(reasons)))
    return tuple(sorted(groups, key=lambda group: position[group.layers[0]]))
