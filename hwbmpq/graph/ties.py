"""Which layers must share a width, read off the graph and never off names."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import networkx as nx

from hwbmpq.errors import UnknownNameError
from hwbmpq.graph.dataflow import Dataflow
from hwbmpq.values import DEFAULT_TIE, TIE_POLICIES, Layer, TieGroup


@dataclass(frozen=True, kw_only=True)
class _Downsample:
    """A layer alone on its branch around a block, with its possible partners."""

    layer: str
    sibling: str
    feeder: str | None


def find_ties(flow: Dataflow, layers: Iterable[Layer], *, policy: str = DEFAULT_TIE) -> tuple[TieGroup, ...]:
    """Groups of layers that must share one ``Precision``; groups that overlap become one."""
    if policy not in TIE_POLICIES:
        raise UnknownNameError("tie policy", policy, TIE_POLICIES)
    layers = list(layers)
    ends = {layer.name for layer in layers if layer.is_end}
    pairs = [
        (
            layer.name,
            layer.shares_weight_with,
            f"{layer.name} shares its weight with {layer.shares_weight_with}",
        )
        for layer in layers
        if layer.shares_weight_with
    ]
    if policy != "none":
        partners = (_partner(found, ends, policy) for found in _downsamples(flow))
        pairs += [partner for partner in partners if partner is not None]
    return _merge(pairs, [layer.name for layer in layers])


def _partner(found: _Downsample, ends: set[str], policy: str) -> tuple[str, str, str] | None:
    """The layer to follow, if there is one whose width is free."""
    if found.layer in ends:
        return None
    if policy == "input" and found.feeder is not None and found.feeder not in ends:
        return found.layer, found.feeder, f"downsample {found.layer} follows its input layer {found.feeder}"
    if found.sibling in ends:
        return None
    reason = f"downsample {found.layer} follows its sibling {found.sibling}"
    if policy == "input" and found.feeder in ends:
        reason += f", since its input layer {found.feeder} is a fixed end"
    elif policy == "input":
        reason += ", since no layer feeds it"
    return found.layer, found.sibling, reason


def _downsamples(flow: Dataflow) -> Iterator[_Downsample]:
    """A downsample layer is the only layer on one of two branches from a tensor to an addition."""
    for join in flow.graph:
        operands = flow.data_inputs(join) if flow.is_addition(join) and join in flow.data else []
        fork = flow.fork(join) if len(operands) == 2 else None
        if fork is None or fork in operands:  # a plain residual connection has no layer on its short branch
            continue
        branches = [flow.branch(operand, fork) for operand in operands]
        for short, long in (branches, reversed(branches)):
            calls = flow.calls(short)
            if len(calls) == 1 and flow.depth(long) > 1 and short.isdisjoint(long):
                yield _Downsample(
                    layer=flow.layer(calls[0]),
                    sibling=flow.layer(flow.calls(long)[0]),
                    feeder=_feeder(flow, fork),
                )


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
    fork = flow.fork(join)
    if fork is None:
        return max(reads, key=flow.order)
    return max(reads, key=lambda read: flow.depth(flow.branch(read, fork)))


def _merge(pairs: list[tuple[str, str, str]], order: list[str]) -> tuple[TieGroup, ...]:
    graph = nx.Graph()
    for first, second, reason in pairs:
        if first != second:
            graph.add_edge(first, second, reason=reason)
    position = {name: index for index, name in enumerate(order)}
    groups = []
    for members in nx.connected_components(graph):
        reasons = sorted({str(reason) for *_, reason in graph.subgraph(members).edges(data="reason")})
        groups.append(
            TieGroup(layers=tuple(sorted(members, key=position.__getitem__)), reason="; ".join(reasons))
        )
    return tuple(sorted(groups, key=lambda group: position[group.layers[0]]))
