"""Curves: sensitivity and learning over time, the objective over a cost; of one run or several."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hwbmpq.report import RunReport, TradeOff
from hwbmpq.report.html.colours import of_depth
from hwbmpq.report.html.plot_style import Plot, colour_of, count_epochs, make_logarithmic, short
from hwbmpq.report.html.svg import INK, Tips
from hwbmpq.units import amount, scale


def sensitivity_plot(report: RunReport) -> Plot | None:
    """Scores of the layers at each decision."""
    if len(report.sensitivities) < 2:
        return None
    epochs = sorted(report.sensitivities)
    names = [layer.name for layer in report.facts.layers if layer.name in report.sensitivities[epochs[0]]]

    def paint(figure: Figure) -> Tips:
        axes = figure.subplots()
        tips = {}
        for place, name in enumerate(names):
            values = [report.sensitivities[epoch].get(name, math.nan) for epoch in epochs]
            (line,) = axes.plot(
                epochs,
                values,
                color=of_depth(place / max(1, len(names) - 1)),
                linewidth=1.6,
                marker=".",
                markersize=4,
            )
            line.set_gid(f"score{place}")
            tips[f"score{place}"] = (
                f"{name}: {values[0]:.3g} after epoch {epochs[0]}, {values[-1]:.3g} after {epochs[-1]}"
            )
        make_logarithmic(axes)
        count_epochs(axes, "decision after epoch")
        axes.set_ylabel("sensitivity (logarithmic)")
        return tips

    method = report.plan.sensitivity.method if report.plan is not None else "score"
    caption = f"{method} of {len(names)} layers, dark: first layers, light: last ones."
    return Plot.drawn("sensitivity", 4.2, paint, title="Sensitivity at each decision", caption=caption)


def learning_plot(reports: Sequence[RunReport]) -> Plot | None:
    """Loss and accuracy by epoch, of one run or several."""
    trained = [report for report in reports if len(report.epochs) > 1]
    if not trained:
        return None

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for place, report in enumerate(trained):
            name = f"{short(report.name)}: " if len(reports) > 1 else ""
            epochs = [epoch.epoch for epoch in report.epochs]
            for axes, style, what, values in (
                (left, "-", "training", [epoch.loss for epoch in report.epochs]),
                (left, "--", "test", [epoch.test_loss for epoch in report.epochs]),
                (right, "-", "training", [_percent(epoch.train_accuracy) for epoch in report.epochs]),
                (right, "--", "test", [_percent(epoch.test_accuracy) for epoch in report.epochs]),
            ):
                axes.plot(epochs, values, style, color=colour_of(place), label=f"{name}{what}")
        for axes, label in ((left, "loss"), (right, "accuracy (%)")):
            count_epochs(axes)
            axes.set_ylabel(label)
            axes.legend(fontsize=8)

    results = [
        f"{f'{report.name}, after' if len(reports) > 1 else 'After'} epoch {last.epoch}: {last.test_accuracy:.2%} of the test "
        f"images right, loss {last.test_loss:.3f}."
        for report in trained
        for last in report.epochs[-1:]
    ]
    untrained = [report.name for report in reports if report not in trained]
    missing = f" No curve: {', '.join(untrained)}." if untrained else ""
    return Plot.drawn("learning", 3.8, paint, title="Learning curves", caption=" ".join(results) + missing)


def _percent(share: float | None) -> float:
    return math.nan if share is None else 100 * share


def frontier_plot(reports: Sequence[RunReport]) -> Plot | None:
    """What each amount of a cost buys, with the runs' own points and simpler choices."""
    found = [(report, report.trade_off) for report in reports if report.trade_off is not None]
    if not found:
        return None
    first = found[0][1]
    drawn = [(report, trade_off) for report, trade_off in found if trade_off.cost == first.cost]
    unit, size = scale(max(float(point.costs[first.cost]) for point in first.points), first.unit)

    def paint(figure: Figure) -> Tips:
        axes = figure.subplots()
        tips: dict[str, str] = {}
        for place, (report, trade_off) in enumerate(drawn):
            name = f"{short(report.name)}: " if len(reports) > 1 else ""
            tips |= _draw_trade_off(axes, trade_off, place, size, name, report.facts.limits.get(first.cost))
        kinds = {control.kind for _, trade_off in drawn for control in trade_off.controls}
        for kind, (marker, label) in _MARKERS.items():
            if kind in kinds:
                axes.plot([], [], marker, color=INK, label=label)
        axes.set_xlabel(f"{first.cost} ({unit})")
        axes.set_ylabel("objective (% of its range)")
        axes.set_ylim(-5, 108)
        axes.legend(fontsize=8, loc="lower right")
        return tips

    captions = [_trade_off_caption(report, trade_off, len(reports) > 1) for report, trade_off in drawn]
    if len(drawn) > 1:
        captions.append("Shares are of each network's own range.")
    return Plot.drawn("frontier", 4.6, paint, title=f"What {first.cost} buys", caption=" ".join(captions))


def _trade_off_caption(report: RunReport, trade_off: TradeOff, is_one_of_many: bool) -> str:
    who = f"The widths of {report.name}" if is_one_of_many else "The run's widths"
    reach = f"{trade_off.chosen.share:.1%} of the objective's range at {amount(trade_off.chosen.cost, trade_off.unit)}"
    shares = [control.share for control in trade_off.controls if control.kind == "random"]
    spread = f"{min(shares):.0%} to {max(shares):.0%}" if shares else ""
    others = f"; random widths within the same budget {spread}" if shares else ""
    return f"{who} reach {reach}{others}."


_MARKERS = {
    "uniform": ("s", "one width for all"),
    "greedy": ("^", "small layers first"),
    "random": ("x", "random widths within the budget"),
}
"""By the kind of a control."""


def _draw_trade_off(
    axes: Axes, trade_off: TradeOff, place: int, size: float, name: str, limit: float | None
) -> dict[str, str]:
    """One run's line and points; their tips."""
    colour, cost, unit = colour_of(place), trade_off.cost, trade_off.unit
    axes.step(
        [float(point.costs[cost]) / size for point in trade_off.points],
        [100 * point.share for point in trade_off.points],
        where="post",  # a budget between two points buys the cheaper one
        color=colour,
        label=f"{name}best widths",
    )
    tips = {}
    for number, control in enumerate([*trade_off.controls, trade_off.chosen]):
        is_chosen = control is trade_off.chosen
        marker = "*" if is_chosen else _MARKERS[control.kind][0]
        style = {"markersize": 16, "markeredgecolor": INK} if is_chosen else {"markersize": 7, "alpha": 0.8}
        label = f"{name}{control.name}" if is_chosen else None
        (mark,) = axes.plot(
            control.cost / size, 100 * control.share, marker, color=colour, label=label, **style
        )
        mark.set_gid(f"control{place}-{number}")
        tips[f"control{place}-{number}"] = (
            f"{name}{control.name}: {amount(control.cost, unit)}, {control.share:.1%} of the objective's range"
            + ("" if control.fits else ", over budget")
        )
    if limit is not None and math.isfinite(limit):
        axes.axvline(limit / size, color=colour, linestyle=":", linewidth=1.2, label=f"{name}budget")
    return tips
