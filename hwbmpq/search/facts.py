"""From a search space to the facts that a report keeps of it."""

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import hwbmpq
from hwbmpq.graph.layergraph import outline
from hwbmpq.report import LayerFacts, Node, RunFacts
from hwbmpq.search.space import SearchSpace

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
        layers=tuple(LayerFacts.of(layer) for layer in graph),
        ties=graph.ties,
        nodes=tuple(
            Node(name=name, kind=data.get("kind") or "", layer=data.get("layer") or "")
            for name, data in kept.nodes(data=True)
        ),
        edges=tuple(kept.edges),
        unquantized=graph.uncovered_by_reason,
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
