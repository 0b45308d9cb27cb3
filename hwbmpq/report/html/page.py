"""The page: what its template shows, and the picture of the network."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import networkx as nx
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hwbmpq.costs.table import Number, no_figure
from hwbmpq.errors import HwbmpqError, printable
from hwbmpq.io import atomic_write
from hwbmpq.report import AccuracyProbe, AccuracySearch, CostReport, Headline, Plan, RunReport
from hwbmpq.report.html.accuracy_plot import accuracy_plot
from hwbmpq.report.html.plot_style import Plot, colour_of, of_width, short, text_on
from hwbmpq.report.html.plots import (
    breakdown_plot,
    frontier_plot,
    learning_plot,
    moves_plot,
    sensitivity_plot,
    widths_plot,
)
from hwbmpq.units import amount

_MOST_COMPARED = 12
_COLUMN, _ROW = 240, 44
_BOX = (180, 26)
"""Sizes in the picture of the network."""


def render_page(reports: Sequence[RunReport]) -> str:
    """One run or plan in full, or several side by side, as HTML that needs nothing else."""
    if not 1 <= len(reports) <= _MOST_COMPARED:
        raise HwbmpqError(f"a page shows 1 to {_MOST_COMPARED} runs, not {len(reports)}")
    # Everything that is put in is escaped unless it is marked as markup of our own.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    environment.filters["amount"] = amount
    template = environment.from_string(_own_file("page.html.jinja"))
    return template.render(
        reports=reports,
        style=Markup(_own_file("style.css")),
        script=Markup(_own_file("script.js")),
        data=_as_script(_data(reports)),
        sections=[_section(report) for report in reports] if len(reports) == 1 else [],
        compared=_compared(reports) if len(reports) > 1 else None,
    )


def _shown(value: Any) -> Any:
    """What is put into the page: markup of our own as it is, text of others without what would act on a reader."""
    return printable(value, keep="\n") if isinstance(value, str) and not isinstance(value, Markup) else value


def write_page(reports: Sequence[RunReport], path: str | Path) -> Path:
    """Write the page to a file, atomically."""
    path, content = Path(path), render_page(reports)
    with atomic_write(path) as file:
        file.write(content.encode())
    return path


def _own_file(name: str) -> str:
    return files("hwbmpq.report.html").joinpath(name).read_text(encoding="utf-8")


def _section(report: RunReport) -> dict[str, Any]:
    """What the template asks of one report."""
    plots = [
        widths_plot(report),
        moves_plot(report),
        sensitivity_plot(report),
        learning_plot([report]),
        breakdown_plot(report),
        accuracy_plot(report) or frontier_plot([report]),
    ]
    costs = [] if report.plan is None else report.plan.costs.values()
    return {
        "report": report,
        "headlines": [_card(headline) for headline in report.headlines],
        "plots": _inline(plots),
        "network": _network(report) if report.facts.nodes else None,
        "memories": [cost for cost in costs if cost.capacity],
        "partial": [line for cost in costs for line in _partial(cost)],
        "cells": _cells(report),
        "slider_hint": _slider_hint(report),
    }


def _slider_hint(report: RunReport) -> str:
    """What the slider goes along."""
    if report.accuracy is not None:
        cost = report.accuracy.cost
        return f"Move the slider along the probes, from little {cost} to much; each was measured on validation images."
    cost = "cost" if report.trade_off is None else report.trade_off.cost
    hint = (
        f"Move the slider along the best widths for each {cost}. These widths would be chosen with the sensitivities of the "
        "last decision, without training again"
    )
    metrics = [headline.name for headline in report.headlines if headline.is_metric]
    is_classifier = all(name.endswith("accuracy") for name in metrics)
    return f"{hint}; hwbmpq frontier --accuracy measures them." if is_classifier else f"{hint}."


def _partial(cost: CostReport) -> Iterator[str]:
    """What is not known of a cost, or only estimated: also true of every plot of it."""
    if cost.is_lower_bound:
        yield f"{cost.name} is a lower bound, here and in the plots: {cost.no_figure}"
    if cost.estimated_share > 0:
        yield f"{cost.estimated_share:.0%} of {cost.name} rests on estimates: {', '.join(cost.estimated)}"


def _inline(plots: Sequence[Plot | None]) -> list[dict[str, Any]]:
    """The plots that there are; matplotlib has escaped what is in them."""
    return [{**vars(plot), "svg": Markup(plot.svg)} for plot in plots if plot is not None]


def _card(headline: Headline) -> dict[str, Any]:
    """A headline as text."""
    notes = []
    if headline.budget is not None:
        notes.append(f"budget {headline.text(headline.budget)}")
    if headline.reference is not None and headline.is_metric:
        difference = headline.value - headline.reference
        shown = f"{difference:+.2f}" if headline.unit else f"{difference:+.4g}"
        notes.append(f"float {headline.text(headline.reference)} ({shown})")
    elif headline.reference is not None and headline.value:
        times = headline.reference / headline.value
        notes.append(f"float {headline.text(headline.reference)}, {times:.1f} times as much")
    if headline.note:
        notes.append(headline.note)
    if headline.is_lower_bound:
        notes.append(no_figure(headline.uncosted))
    return {
        "name": headline.name,
        "is_met": headline.is_met,
        "is_unknown": headline.is_lower_bound and headline.budget is not None and headline.is_met is None,
        "value": headline.shown,
        "note": "; ".join(notes),
    }


def _cells(report: RunReport) -> list[dict[str, Any]]:
    """The strip that the slider repaints."""
    layers = () if report.plan is None else report.plan.layers
    return [
        {"name": layer.name, "bits": bits, "colours": _colours(bits), "is_fixed": layer.is_fixed}
        for layer in layers
        for bits in [layer.precision.weight_bits]
    ]


def _colours(bits: int) -> tuple[str, str]:
    """Of a cell and of the text in it."""
    return of_width(bits), text_on(of_width(bits))


def _data(reports: Sequence[RunReport]) -> dict[str, Any]:
    """What the script needs for the slider: measured points where there are some, else expected ones."""
    if len(reports) == 1 and reports[0].plan is not None and reports[0].accuracy is not None:
        return _slider(reports[0], reports[0].plan, *_measured(reports[0].accuracy))
    trade_off = reports[0].trade_off if len(reports) == 1 else None
    if trade_off is None or reports[0].plan is None:
        return {"points": []}
    points = [(point.weight_bits, point.costs, _benefit(point.share)) for point in trade_off.points]
    return _slider(reports[0], reports[0].plan, trade_off.cost, points)


_Stops = list[tuple[tuple[int, ...], Mapping[str, Number], str]]
"""Widths, costs, and what they are worth in words."""


def _benefit(share: float) -> str:
    return f"{100 * share:.1f} % of the expected benefit kept (100 % = all layers at their widest)"


def _measured(search: AccuracySearch) -> tuple[str, _Stops]:
    def worth(probe: AccuracyProbe) -> str:
        how = "trained" if probe.is_trained else "calibrated"
        change = search.metric.change(probe.value - search.in_float)
        return f"validation {search.metric.name} {search.metric.text(probe.value)} ({change} against float), {how}"

    return search.cost, [(probe.weight_bits, probe.costs, worth(probe)) for probe in search.curve]


def _slider(report: RunReport, plan: Plan, cost: str, stops: _Stops) -> dict[str, Any]:
    units = {name: one.unit for name, one in plan.costs.items()}
    own = float(plan.costs[cost].total) if cost in plan.costs else 0.0
    fitting = [place for place, (_, costs, _) in enumerate(stops) if float(costs[cost]) <= own]
    return {
        "layers": [layer.name for layer in report.facts.layers],
        "colours": {
            str(width): _colours(width) for width in sorted({w for bits, _, _ in stops for w in bits})
        },
        "chosen": fitting[-1] if fitting else 0,
        "points": [
            {
                "bits": list(bits),
                "worth": worth,
                "costs": {name: amount(value, units[name]) for name, value in costs.items() if name in units},
            }
            for bits, costs, worth in stops
        ],
    }


def _as_script(content: dict[str, Any]) -> Markup:
    """JSON that is safe inside a script element, whatever text is in it."""
    text = json.dumps(content)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _compared(reports: Sequence[RunReport]) -> dict[str, Any]:
    """Several runs: headlines side by side, curves over each other, widths below each other."""
    names = list(dict.fromkeys(one.name for report in reports for one in report.headlines))
    rows = []
    for name in names:
        by_run = [next((one for one in report.headlines if one.name == name), None) for report in reports]
        rows.append({"name": name, "cards": [None if one is None else _card(one) for one in by_run]})
    return {
        "rows": rows,
        "plots": _inline([learning_plot(reports), frontier_plot(reports)]),
        "strips": [{"name": report.name, "cells": _cells(report)} for report in reports],
    }


def _network(report: RunReport) -> dict[str, Any]:
    """Layers and joins as boxes from top to bottom, tie groups coloured, and lines between them as SVG paths."""
    facts = report.facts
    places = _places([node.name for node in facts.nodes], facts.edges)
    groups = {layer: number for number, group in enumerate(facts.ties) for layer in group.layers}
    bits = {} if report.plan is None else {layer.name: str(layer.precision) for layer in report.plan.layers}
    boxes = []
    for node in facts.nodes:
        x, y = places[node.name]
        group = groups.get(node.layer)
        tip = node.kind
        if node.layer:
            width = f", {bits[node.layer]}" if node.layer in bits else ""
            tie = None if group is None else facts.ties[group]
            tip = f"{node.layer} ({node.kind}){width}"
            tip += "" if tie is None else f"; {tie.reason}: {', '.join(tie.layers)}"
        boxes.append(
            {
                "x": x,
                "y": y,
                "text": short(node.layer or node.kind or node.name, 24),
                "tip": tip,
                "colour": "" if group is None else colour_of(group),
                "is_layer": bool(node.layer),
            }
        )
    joins = sum(not node.layer for node in facts.nodes)
    return {
        "width": max(x for x, _ in places.values()) + _COLUMN / 2,
        "height": max(y for _, y in places.values()) + _ROW,
        "box_width": _BOX[0],
        "box_height": _BOX[1],
        "boxes": boxes,
        "lines": [_line(places[start], places[end]) for start, end in facts.edges],
        "caption": f"{len(facts.layers)} layers and {joins} other places (joins, inputs, outputs); {len(facts.ties)} "
        "groups of layers share a width (coloured).",
    }


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    """From the lower side of a box to the upper side of another; around those in between."""
    (x1, y1), (x2, y2) = start, end
    y1, y2 = y1 + _BOX[1] / 2, y2 - _BOX[1] / 2
    if x1 == x2 and y2 - y1 > _ROW:
        # A cubic curve reaches three quarters of the way to its control points.
        far = x1 + (_BOX[0] / 2 + 20) * 4 / 3
        return f"M{x1:g} {y1:g} C{far:g} {y1:g} {far:g} {y2:g} {x2:g} {y2:g}"
    return f"M{x1:g} {y1:g} L{x2:g} {y2:g}"


def _places(names: list[str], edges: tuple[tuple[str, str], ...]) -> dict[str, tuple[float, float]]:
    """A row for each step from the input on; nodes of the same step are side by side."""
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
