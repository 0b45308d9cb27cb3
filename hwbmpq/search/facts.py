"""From a question to the facts that a report keeps of it."""

import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import hwbmpq
from hwbmpq.graph import LayerGraph
from hwbmpq.graph.outline import outline
from hwbmpq.report import LayerFacts, Node, RunFacts, Unquantized
from hwbmpq.search.space import SearchSpace
from hwbmpq.values import UNCOVERED_REASONS, Uncovered

_PACKAGES = ("torch", "timm", "pyomo", "highspy", "onnxruntime")


def facts_of(
    space: SearchSpace, *, title: str, settings: Mapping[str, Any] | None = None, command: Sequence[str] = ()
) -> RunFacts:
    """What is known before widths are chosen, as plain values."""
    graph, costs = space.graph, space.costs
    profile = costs.profile
    kept = outline(graph.operations)
    return RunFacts(
        title=title,
        target=profile.target,
        device=profile.title,
        layers=tuple(
            LayerFacts(
                name=layer.name,
                kind=layer.kind,
                parameters=layer.parameters,
                macs=layer.macs,
                is_end=layer.is_end,
            )
            for layer in graph
        ),
        ties=graph.ties,
        nodes=tuple(
            Node(name=name, kind=data.get("kind") or "", layer=data.get("layer") or "")
            for name, data in kept.nodes(data=True)
        ),
        edges=tuple(kept.edges),
        unquantized=_unquantized(graph),
        parameters=graph.parameters,
        macs=graph.macs,
        traced_by=graph.traced_by,
        tables=costs.tables,
        limits=space.limits,
        sources={
            ident: f"{source.title}, {source.url}" if source.url else source.title
            for ident, source in profile.sources.items()
        },
        caveats=profile.caveats,
        settings=settings or {},
        command=tuple(command),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Of hwbmpq and of what its answers depend on."""
    found = {"hwbmpq": hwbmpq.__version__, "Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _unquantized(graph: LayerGraph) -> tuple[Unquantized, ...]:
    by_reason: dict[str, list[Uncovered]] = defaultdict(list)
    for entry in graph.uncovered:
        by_reason[entry.reason].append(entry)
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
