"""Plots of a report: widths over depth and over time, costs by layer; and curves of one run or several: sensitivity and
learning over time, the expected benefit over a cost."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hwbmpq.report import Epoch, LayerReport, Plan, RunReport, TradeOff
from hwbmpq.report.html.plot_style import (
    DISTINCT,
    INK,
    Plot,
    Tooltips,
    add_legend,
    add_width_legend,
    colour_of,
    count_epochs,
    label_layers,
    make_logarithmic,
    of_depth,
    of_width,
    readable,
    short,
)
from hwbmpq.units import amount, counted, scale

_MOST_LAYERS, _MOST_ROWS = 30, 60
_ROW = 0.22
_MARKERS = {
    "uniform": ("s", "one width for all"),
    "greedy": ("^", "small layers first"),
    "random": ("x", "random widths within the budget"),
}
"""By the kind of a control."""


def sensitivity_plot(report: RunReport) -> Plot | None:
    """Scores of the layers at each decision."""
    if len(report.sensitivities) < 2:
        return None
    epochs = sorted(report.sensitivities)
    names = [layer.name for layer in report.facts.layers if layer.name in report.sensitivities[epochs[0]]]

    def paint(figure: Figure, tips: Tooltips) -> None:
        axes = figure.subplots()
        for place, name in enumerate(names):
            values = [report.sensitivities[epoch].get(name, math.nan) for epoch in epochs]
            colour = of_depth(place / max(1, len(names) - 1))
            (line,) = axes.plot(epochs, values, ".-", color=colour, linewidth=1.6, markersize=4)
            change = f"{values[0]:.3g} after epoch {epochs[0]}, {values[-1]:.3g} after {epochs[-1]}"
            tips.add(line, f"{name}: {change}")
        make_logarithmic(axes)
        count_epochs(axes, "decision after epoch")
        axes.set_ylabel("sensitivity (logarithmic)")

    method = report.plan.sensitivity.method if report.plan is not None else "score"
    caption = f"{method} of {len(names)} layers, dark: first layers, light: last ones."
    return Plot.drawn("sensitivity", 4.2, paint, title="Sensitivity at each decision", caption=caption)


def learning_plot(reports: Sequence[RunReport]) -> Plot | None:
    """Loss and metric by epoch, of one run or several."""
    trained = [report for report in reports if len(report.epochs) > 1]
    if not trained:
        return None

    def paint(figure: Figure, _: Tooltips) -> None:
        left, right = figure.subplots(1, 2)
        for place, report in enumerate(trained):
            name = f"{short(report.name)}: " if len(reports) > 1 else ""
            epochs = [epoch.epoch for epoch in report.epochs]
            for axes, style, what, values in (
                (left, "-", "training", [epoch.loss for epoch in report.epochs]),
                (left, "--", report.epochs[-1].part, [epoch.compared_loss for epoch in report.epochs]),
                (right, "-", "training", [_percent(epoch.train_accuracy) for epoch in report.epochs]),
                (right, "--", report.epochs[-1].part, [_shown(epoch) for epoch in report.epochs]),
            ):
                if all(value is None or math.isnan(value) for value in values):
                    continue  # no right and wrong: there is no accuracy of training
                axes.plot(epochs, values, style, color=colour_of(place), label=f"{name}{what}")
        for axes, label in ((left, "loss"), (right, ", ".join(dict.fromkeys(map(_axis, trained))))):
            count_epochs(axes)
            axes.set_ylabel(label)
            axes.legend(fontsize=8)

    results = [
        f"{f'{report.name}, after' if len(reports) > 1 else 'After'} epoch {last.epoch}: {last.part} "
        f"{last.metric.name} {last.metric.text(last.value)}, loss {last.compared_loss:.3f}."
        for report in trained
        for last in report.epochs[-1:]
    ]
    untrained = [report.name for report in reports if report not in trained]
    missing = f" No curve: {', '.join(untrained)}." if untrained else ""
    return Plot.drawn("learning", 3.8, paint, title="Learning curves", caption=" ".join(results) + missing)


def _axis(report: RunReport) -> str:
    metric = report.epochs[-1].metric
    return f"{short(metric.name)} (%)" if metric.is_share else short(metric.name)


def _shown(epoch: Epoch) -> float:
    return _percent(epoch.value) if epoch.metric.is_share else epoch.value


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

    def paint(figure: Figure, tips: Tooltips) -> None:
        axes = figure.subplots()
        for place, (report, trade_off) in enumerate(drawn):
            name = f"{short(report.name)}: " if len(reports) > 1 else ""
            _draw_trade_off(axes, tips, trade_off, colour=colour_of(place), size=size, name=name)
            limit = report.facts.limits.get(first.cost)
            if limit is not None and math.isfinite(limit):
                label = f"{name}budget"
                axes.axvline(limit / size, color=colour_of(place), linestyle=":", linewidth=1.2, label=label)
        kinds = {control.kind for _, trade_off in drawn for control in trade_off.controls}
        for kind, (marker, label) in _MARKERS.items():
            if kind in kinds:
                axes.plot([], [], marker, color=INK, label=label)
        axes.set_xlabel(f"{short(first.cost)} ({short(unit)})")
        axes.set_ylabel("expected benefit kept (%)")
        axes.set_ylim(-5, 108)
        axes.legend(fontsize=8, loc="lower right")

    captions = [_trade_off_caption(report, trade_off, len(reports) > 1) for report, trade_off in drawn]
    if len(drawn) > 1:
        captions.append("Shares are of each network's own range.")
    return Plot.drawn("frontier", 4.6, paint, title=f"What {first.cost} buys", caption=" ".join(captions))


def _trade_off_caption(report: RunReport, trade_off: TradeOff, is_one_of_many: bool) -> str:
    who = f"The widths of {report.name}" if is_one_of_many else "The run's widths"
    reach = f"{trade_off.chosen.share:.1%} of the expected benefit (100 % = all layers at their widest) at {amount(trade_off.chosen.cost, trade_off.unit)}"
    shares = [control.share for control in trade_off.controls if control.kind == "random"]
    spread = f"{min(shares):.0%} to {max(shares):.0%}" if shares else ""
    others = f"; random widths within the same budget {spread}" if shares else ""
    return f"{who} keep {reach}{others}."


def _draw_trade_off(
    axes: Axes, tips: Tooltips, trade_off: TradeOff, *, colour: str, size: float, name: str
) -> None:
    """One run's line and points."""
    axes.step(
        [float(point.costs[trade_off.cost]) / size for point in trade_off.points],
        [100 * point.share for point in trade_off.points],
        where="post",  # a budget between two points buys the cheaper one
        color=colour,
        label=f"{name}best widths",
    )
    for control in [*trade_off.controls, trade_off.chosen]:
        is_chosen = control is trade_off.chosen
        marker = "*" if is_chosen else _MARKERS[control.kind][0]
        style = {"markersize": 16, "markeredgecolor": INK} if is_chosen else {"markersize": 7, "alpha": 0.8}
        label = f"{name}{control.name}" if is_chosen else None
        place = (control.cost / size, 100 * control.share)
        (mark,) = axes.plot(*place, marker, color=colour, label=label, **style)
        cost = amount(control.cost, trade_off.unit)
        budget = "" if control.fits else ", over budget"
        tips.add(mark, f"{name}{control.name}: {cost}, {control.share:.1%} of the expected benefit{budget}")


def widths_plot(report: RunReport) -> Plot | None:
    """Bits, sensitivity and parameters over the depth."""
    if report.plan is None:
        return None
    layers = report.plan.layers
    total = sum(layer.parameters for layer in layers) or 1

    def paint(figure: Figure, tips: Tooltips) -> None:
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1.3, 1.3))
        for place, layer in enumerate(layers):
            bits = layer.precision.weight_bits
            (bar,) = top.bar(place, bits, color=of_width(bits), width=0.85)
            tips.add(
                bar,
                f"{layer.name}: {layer.precision}{', fixed' if layer.is_fixed else ''}; {layer.parameters:,} weights "
                f"({layer.parameters / total:.1%}), sensitivity {layer.sensitivity:.3g}",
            )
        scores = [layer.sensitivity for layer in layers]
        middle.bar(range(len(layers)), scores, color=DISTINCT[0], width=0.85)
        if min(scores, default=0) > 0:
            make_logarithmic(middle)
        shares = [100 * layer.parameters / total for layer in layers]
        bottom.bar(range(len(layers)), shares, color=DISTINCT[1], width=0.85)
        for axes in (top, middle):
            axes.grid(visible=False, axis="x")
        top.set_ylabel("weight bits")
        middle.set_ylabel("sensitivity")
        bottom.set_ylabel("weights (%)")
        bottom.set_xlabel("layer, in the network's order")
        add_width_legend(top, [layer.precision.weight_bits for layer in layers])
        label_layers(bottom, [layer.name for layer in layers])

    counts = Counter(layer.precision.weight_bits for layer in layers)
    counted = ", ".join(f"{count} at {bits} bits" for bits, count in sorted(counts.items()))
    caption = (
        f"{len(layers)} layers: {counted}. Below each layer its sensitivity ({report.plan.sensitivity.method}) and its "
        "share of the weights."
    )
    return Plot.drawn("widths", 6.0, paint, title="Widths over the network's depth", caption=caption)


def moves_plot(report: RunReport) -> Plot | None:
    """Epoch × layer, coloured by width; a mark where a decision moved a layer."""
    epochs, layers = report.epochs, report.facts.layers
    if len(epochs) < 2 or report.is_in_float:
        return None

    def paint(figure: Figure, tips: Tooltips) -> None:
        axes = figure.subplots()
        _draw_stretches(axes, tips, report)
        _draw_moves(axes, tips, report)
        axes.set_xlim(epochs[0].epoch - 0.5, epochs[-1].epoch + 0.5)
        count_epochs(axes)
        axes.grid(visible=False)
        _label_rows(axes, [layer.name for layer in layers])
        add_width_legend(axes, [bits for epoch in epochs for bits in epoch.weight_bits])

    decisions = sum(epoch.has_decision for epoch in epochs)
    height = min(16.0, 1.6 + _ROW * min(len(layers), _MOST_ROWS))
    caption = (
        f"{counted(decisions, 'decision')} (dotted lines) moved {counted(len(report.moves), 'layer')} "
        "(circles; point at one for the reason)."
    )
    return Plot.drawn("moves", height, paint, title="How the widths moved during training", caption=caption)


def _label_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names on the left, from the top, as many as can be read."""
    places = readable(names, _MOST_ROWS)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(list(places), [short(names[place]) for place in places], fontsize=8)
    axes.set_ylabel("layer")


def _draw_stretches(axes: Axes, tips: Tooltips, report: RunReport) -> None:
    """A bar for every stretch of epochs in which a layer kept its width."""
    for row, layer in enumerate(report.facts.layers):
        widths = ((epoch.weight_bits[row], epoch.epoch) for epoch in report.epochs)
        for bits, stretch in groupby(widths, key=itemgetter(0)):
            epochs = [epoch for _, epoch in stretch]
            first, last = epochs[0], epochs[-1]
            (piece,) = axes.barh(row, last - first + 1, left=first - 0.5, height=0.9, color=of_width(bits))
            tips.add(piece, f"{layer.name}: {bits} bits, epochs {first} to {last}")


def _draw_moves(axes: Axes, tips: Tooltips, report: RunReport) -> None:
    """A line for every decision, and a circle for every layer that it moved."""
    rows = {layer.name: row for row, layer in enumerate(report.facts.layers)}
    for epoch in report.epochs:
        if epoch.has_decision:
            axes.axvline(epoch.epoch + 0.5, color=INK, linewidth=0.8, linestyle=":")
    for move in report.moves:
        place = (move.epoch + 0.5, rows[move.layer])
        (mark,) = axes.plot(*place, "o", color="#ffffff", markeredgecolor="#000000", markersize=6)
        tips.add(mark, f"after epoch {move.epoch}: {move.layer} {move.before} to {move.after}; {move.why}")


def breakdown_plot(report: RunReport) -> Plot | None:
    """Each cost, layer by layer."""
    plan = report.plan
    if plan is None:
        return None
    costs = [name for name in plan.costs if any(name in layer.costs for layer in plan.layers)]
    if not costs:
        return None
    shown = _most_expensive(plan, costs)

    def paint(figure: Figure, tips: Tooltips) -> None:
        axes = figure.subplots()
        _draw_costs(axes, tips, plan, shown, costs)
        axes.set_xlabel("share of the layers' sum (%)")
        axes.grid(visible=False, axis="y")
        _label_rows(axes, [layer.name for layer in shown])
        add_legend(axes, {name: colour_of(number) for number, name in enumerate(costs)})

    is_part = len(shown) < len(plan.layers)
    part = f"the {len(shown)} most expensive of {len(plan.layers)} layers" if is_part else "all layers"
    height = 1.4 + max(3, len(shown)) * 0.3
    caption = f"Shares of {', '.join(costs)}, {part}."
    return Plot.drawn("breakdown", height, paint, title="What each layer costs", caption=caption)


def _sum_of(plan: Plan, cost: str) -> float:
    return float(sum(layer.costs.get(cost, 0) for layer in plan.layers)) or 1.0


def _most_expensive(plan: Plan, costs: Sequence[str]) -> list[LayerReport]:
    """The layers that take the most of any cost, in the network's order."""
    totals = {name: _sum_of(plan, name) for name in costs}
    order = sorted(plan.layers, key=lambda one: -max(one.costs.get(name, 0) / totals[name] for name in costs))
    names = {layer.name for layer in order[:_MOST_LAYERS]}
    return [layer for layer in plan.layers if layer.name in names]


def _draw_costs(
    axes: Axes, tips: Tooltips, plan: Plan, shown: Sequence[LayerReport], costs: Sequence[str]
) -> None:
    height = 0.85 / len(costs)
    for number, name in enumerate(costs):
        total, colour = _sum_of(plan, name), colour_of(number)
        for row, layer in enumerate(shown):
            if name not in layer.costs:
                continue  # it has no figure
            share, top = layer.costs[name] / total, row + number * height - 0.4
            (piece,) = axes.barh(top, 100 * share, height=height, align="edge", color=colour)
            cost = amount(layer.costs[name], plan.costs[name].unit)
            tips.add(piece, f"{layer.name}, {name}: {cost}, {share:.1%} of the layers' sum")
