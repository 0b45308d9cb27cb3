"""Accuracy against a cost, as a table and as a picture."""

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from hwbmpq.cli.console import Console, Text, escape
from hwbmpq.cli.render.tables import bar, plain_table
from hwbmpq.errors import HwbmpqError
from hwbmpq.units import amount, counted, scale

if TYPE_CHECKING:
    from hwbmpq.report import AccuracySearch

_BAR = 16
_NARROW = 78


def print_accuracy(console: Console, search: "AccuracySearch", *, title: str) -> None:
    """Every probe from cheap to expensive, with what was asked and found."""
    metric = search.metric
    has_bars = (
        metric.is_share and console.width >= _NARROW and search.least is None
    )  # else verdicts need the room
    columns = (f">{search.cost}", ">average bits", f">validation {escape(metric.name)}", "", ">change", "")
    table = plain_table(title, *columns)
    for probe in search.curve:
        notes = ["trained"] if probe.is_trained else []
        notes += {True: ["holds"], False: ["too low"], None: []}[probe.holds]
        if search.budget is not None and probe.costs[search.cost] <= search.budget and probe.holds:
            notes.append("chosen")
        table.add_row(
            amount(probe.costs[search.cost], search.unit),
            f"{probe.average_bits:.2f}",
            metric.text(probe.value),
            bar(probe.value, _BAR) if has_bars else "",
            metric.change(probe.value - search.in_float),
            Text(", ".join(notes), style="green" if probe.holds else ""),
        )
    console.print(table)
    kind = "calibrated" if any(probe.is_trained for probe in search.probes) else "calibrated without training"
    probes = counted(len(search.probes), "probe")
    console.print(f"[dim]{escape(search.question)}; {probes}, {kind}[/]\n")


def plot_accuracy(curves: "Mapping[str, AccuracySearch]", path: Path, *, title: str) -> None:
    """One line per device, and the network in float."""
    import matplotlib  # takes a second, and tables need none
    from matplotlib.figure import Figure

    from hwbmpq.report.html.plot_style import DISTINCT

    first = next(iter(curves.values()))
    most = max(float(probe.costs[first.cost]) for curve in curves.values() for probe in curve.probes)
    unit, size = scale(most, first.unit)
    times = 100 if first.metric.is_share else 1
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for colour, (target, curve) in zip(cycle([*DISTINCT, "black"]), curves.items(), strict=False):
            x = [float(probe.costs[curve.cost]) / size for probe in curve.curve]
            axes.plot(x, [times * probe.value for probe in curve.curve], "o-", color=colour, label=target)
        axes.axhline(times * first.in_float, color="grey", linestyle="--", linewidth=1, label="float")
        axes.set_xlabel(f"{first.cost} ({unit})")
        axes.set_ylabel(f"validation {first.metric.name}" + (" (%)" if first.metric.is_share else ""))
        axes.set_title(title if len(curves) > 1 else f"{title} on {next(iter(curves))}")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="lower right")
        try:
            figure.savefig(path, dpi=160, metadata={"Title": f"Accuracy of {title}"})
        except OSError as error:
            raise HwbmpqError(f"cannot write {path}: {error.strerror or error}") from error
