"""Putting the page together."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hwbmpq.errors import HwbmpqError
from hwbmpq.io import atomic_write
from hwbmpq.report import Headline, RunReport
from hwbmpq.report.html.network_plot import network_picture
from hwbmpq.report.html.plot_style import Plot, of_width, text_on
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


def render_page(reports: Sequence[RunReport]) -> str:
    """One run or plan in full, or several side by side, as HTML that needs nothing else."""
    if not 1 <= len(reports) <= _MOST_COMPARED:
        raise HwbmpqError(f"a page shows 1 to {_MOST_COMPARED} runs, not {len(reports)}")
    # Everything that is put in is escaped unless it is marked as markup of our own.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["amount"] = amount
    template = environment.from_string(_own_file("page.html.jinja"))
    return template.render(
        reports=reports,
        style=Markup(_own_file("style.css")),
        script=Markup(_own_file("script.js")),
        data=_as_script(_data(reports)),
        sections=[_Section(report) for report in reports] if len(reports) == 1 else [],
        compared=_compared(reports) if len(reports) > 1 else None,
    )


def write_page(reports: Sequence[RunReport], path: str | Path) -> Path:
    """Write the page to a file, atomically."""
    path, content = Path(path), render_page(reports)
    with atomic_write(path) as file:
        file.write(content.encode())
    return path


def _own_file(name: str) -> str:
    return files("hwbmpq.report.html").joinpath(name).read_text(encoding="utf-8")


class _Section:
    """What the template asks of one report."""

    def __init__(self, report: RunReport) -> None:
        self.report = report
        self.headlines = [_Card(one) for one in report.headlines]
        self.plots = _inline(
            [
                widths_plot(report),
                moves_plot(report),
                sensitivity_plot(report),
                learning_plot([report]),
                breakdown_plot(report),
                frontier_plot([report]),
            ]
        )
        self.network = network_picture(report)
        self.levels = [] if report.plan is None else [c for c in report.plan.costs.values() if c.capacity]
        """Memories, and what is in them."""
        self.cells = _cells(report)


def _inline(plots: Sequence[Plot | None]) -> list[dict[str, Any]]:
    """The plots that there are; matplotlib has escaped what is in them."""
    return [{**vars(plot), "svg": Markup(plot.svg)} for plot in plots if plot is not None]


class _Card:
    """A headline as text."""

    def __init__(self, headline: Headline) -> None:
        self.name = headline.name
        self.is_met = headline.is_met
        self.value = headline.text(headline.value)
        parts = []
        if headline.budget is not None:
            parts.append(f"budget {headline.text(headline.budget)}")
        if headline.reference is not None and headline.unit == "%":
            difference = headline.value - headline.reference
            parts.append(f"float {headline.text(headline.reference)} ({difference:+.2f})")
        elif headline.reference is not None and headline.value:
            times = headline.reference / headline.value
            parts.append(f"float {headline.text(headline.reference)}, {times:.1f} times as much")
        self.note = "; ".join(parts)


def _cells(report: RunReport) -> list[dict[str, Any]]:
    """The strip that the slider repaints."""
    layers = () if report.plan is None else report.plan.layers
    bits = [(layer, layer.precision.weight_bits) for layer in layers]
    return [
        {
            "name": layer.name,
            "bits": width,
            "colour": of_width(width),
            "ink": text_on(of_width(width)),
            "is_fixed": layer.is_fixed,
        }
        for layer, width in bits
    ]


def _data(reports: Sequence[RunReport]) -> dict[str, Any]:
    """What the script needs for the slider."""
    trade_off = reports[0].trade_off if len(reports) == 1 else None
    if trade_off is None or reports[0].plan is None:
        return {"points": []}
    widths = sorted({bits for point in trade_off.points for bits in point.weight_bits})
    units = {name: cost.unit for name, cost in reports[0].plan.costs.items()}
    totals = [float(point.costs[trade_off.cost]) for point in trade_off.points]
    fitting = [place for place, total in enumerate(totals) if total <= float(trade_off.chosen.cost)]
    return {
        "layers": [layer.name for layer in reports[0].facts.layers],
        "colours": {str(bits): [of_width(bits), text_on(of_width(bits))] for bits in widths},
        "chosen": fitting[-1] if fitting else 0,
        "points": [
            {
                "bits": list(point.weight_bits),
                "share": point.share,
                "costs": {
                    name: amount(value, units[name]) for name, value in point.costs.items() if name in units
                },
            }
            for point in trade_off.points
        ],
    }


def _as_script(content: dict[str, Any]) -> Markup:
    """JSON that no text in it can break out of."""
    text = json.dumps(content)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _compared(reports: Sequence[RunReport]) -> dict[str, Any]:
    """Several runs: headlines side by side, curves over each other, widths below each other."""
    names = list(dict.fromkeys(one.name for report in reports for one in report.headlines))
    rows = []
    for name in names:
        by_run = [next((one for one in report.headlines if one.name == name), None) for report in reports]
        rows.append({"name": name, "cards": [None if one is None else _Card(one) for one in by_run]})
    return {
        "rows": rows,
        "plots": _inline([learning_plot(reports), frontier_plot(reports)]),
        "strips": [{"name": report.name, "cells": _cells(report)} for report in reports],
    }
