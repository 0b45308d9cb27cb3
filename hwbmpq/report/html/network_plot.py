"""The network as a picture: layers and joins from top to bottom, tie groups coloured."""

from dataclasses import dataclass

import networkx as nx

from hwbmpq.report import RunReport
from hwbmpq.report.html.plot_style import DISTINCT, short

_COLUMN, _ROW = 240, 44
_BOX = (180, 26)


@dataclass(frozen=True, kw_only=True)
class Box:
    x: float
    y: float
    text: str
    tip: str
    group: int | None
    """Number of its tie group."""
    colour: str
    is_layer: bool


@dataclass(frozen=True, kw_only=True)
class NetworkPicture:
    """Boxes and lines, for the template to draw."""

    width: float
    height: float
    box_width: float
    box_height: float
    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    """As SVG's paths."""
    caption: str


def network_picture(report: RunReport) -> NetworkPicture | None:
    facts = report.facts
    if not facts.nodes:
        return None
    places = _places([node.name for node in facts.nodes], facts.edges)
    groups = {layer: number for number, group in enumerate(facts.ties) for layer in group.layers}
    bits = {} if report.plan is None else {layer.name: str(layer.precision) for layer in report.plan.layers}
    boxes = []
    for node in facts.nodes:
        x, y = places[node.name]
        group = groups.get(node.layer)
        boxes.append(
            Box(
                x=x,
                y=y,
                text=short(node.layer or node.kind or node.name, 24),
                tip=_tip(report, node.layer, node.kind, bits, group),
                group=group,
                colour="" if group is None else DISTINCT[group % len(DISTINCT)],
                is_layer=bool(node.layer),
            )
        )
    lines = tuple(_line(places[start], places[end]) for start, end in facts.edges)
    joins = sum(not node.layer for node in facts.nodes)
    return NetworkPicture(
        width=max(x for x, _ in places.values()) + _COLUMN / 2,
        height=max(y for _, y in places.values()) + _ROW,
        box_width=_BOX[0],
        box_height=_BOX[1],
        boxes=tuple(boxes),
        lines=lines,
        caption=f"{len(facts.layers)} layers and {joins} other places (joins, inputs, outputs); {len(facts.ties)} groups of layers "
        "share a width (coloured).",
    )


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    """From the lower side of a box to the upper side of another; around those in between."""
    (x1, y1), (x2, y2) = start, end
    y1, y2 = y1 + _BOX[1] / 2, y2 - _BOX[1] / 2
    if x1 == x2 and y2 - y1 > _ROW:
        far = (
            x1 + (_BOX[0] / 2 + 20) * 4 / 3
        )  # a cubic curve reaches three quarters of the way to its control points
        return f"M{x1:g} {y1:g} C{far:g} {y1:g} {far:g} {y2:g} {x2:g} {y2:g}"
    return f"M{x1:g} {y1:g} L{x2:g} {y2:g}"


def _tip(report: RunReport, layer: str, kind: str, bits: dict[str, str], group: int | None) -> str:
    if not layer:
        return kind
    width = f", {bits[layer]}" if layer in bits else ""
    tie = (
        f"; {report.facts.ties[group].reason}: {', '.join(report.facts.ties[group].layers)}"
        if group is not None
        else ""
    )
    return f"{layer} ({kind}){width}{tie}"


def _places(names: list[str], edges: tuple[tuple[str, str], ...]) -> dict[str, tuple[float, float]]:
    """A row for each step from the input on; what runs side by side stands side by side."""
    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from(edges)
    if not nx.is_directed_acyclic_graph(graph):  # a layer that runs twice
        return {name: (_COLUMN / 2, (row + 0.5) * _ROW) for row, name in enumerate(names)}
    found = {}
    for row, generation in enumerate(nx.topological_generations(graph)):
        for column, name in enumerate(sorted(generation, key=names.index)):
            found[name] = ((column + 0.5) * _COLUMN, (row + 0.5) * _ROW)
    return found
