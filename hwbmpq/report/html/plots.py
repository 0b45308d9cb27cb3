"""Plots of one report: widths over depth and over time, costs by layer."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hwbmpq.report import LayerReport, Plan, RunReport
from hwbmpq.report.html.colours import DISTINCT, of_width
from hwbmpq.report.html.plot_style import (
    Plot,
    add_legend,
    add_width_legend,
    colour_of,
    count_epochs,
    label_layers,
    make_logarithmic,
    readable,
    short,
)
from hwbmpq.report.html.svg import INK, Tips
from hwbmpq.units import amount

_MOST_LAYERS, _MOST_ROWS = 30, 60
_ROW = 0.22


def widths_plot(report: RunReport) -> Plot | None:
    """Bits, sensitivity and parameters over the depth."""
    if report.plan is None:
        return None
    layers = report.plan.layers
    total = sum(layer.parameters for layer in layers) or 1

    def paint(figure: Figure) -> Tips:
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1.3, 1.3))
        tips = {}
        for place, layer in enumerate(layers):
            bits = layer.precision.weight_bits
            (rectangle,) = top.bar(place, bits, color=of_width(bits), width=0.85)
            rectangle.set_gid(f"layer{place}")
            tips[f"layer{place}"] = (
                f"{layer.name}: {layer.precision}{', fixed' if layer.is_fixed else ''}; {layer.parameters:,} weights "
                f"({layer.parameters / total:.1%}), sensitivity {layer.sensitivity:.3g}"
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
        return tips

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

    def paint(figure: Figure) -> Tips:
        axes = figure.subplots()
        tips = _draw_stretches(axes, report) | _draw_moves(axes, report)
        axes.set_xlim(epochs[0].epoch - 0.5, epochs[-1].epoch + 0.5)
        count_epochs(axes)
        axes.grid(visible=False)
        _label_rows(axes, [layer.name for layer in layers])
        add_width_legend(axes, [bits for epoch in epochs for bits in epoch.weight_bits])
        return tips

    decisions = sum(epoch.has_decision for epoch in epochs)
    height = min(16.0, 1.6 + _ROW * min(len(layers), _MOST_ROWS))
    caption = f"{decisions} decisions (dotted lines) moved {len(report.moves)} layers (circles; point at one for the reason)."
    return Plot.drawn("moves", height, paint, title="How the widths moved during training", caption=caption)


def _label_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names on the left, from the top, as many as can be read."""
    places = readable(names, _MOST_ROWS)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(list(places), [short(names[place]) for place in places], fontsize=8)
    axes.set_ylabel("layer")


def _draw_stretches(axes: Axes, report: RunReport) -> dict[str, str]:
    """A bar for every stretch of epochs in which a layer kept its width."""
    tips = {}
    for row, layer in enumerate(report.facts.layers):
        widths = ((epoch.weight_bits[row], epoch.epoch) for epoch in report.epochs)
        for bits, stretch in groupby(widths, key=itemgetter(0)):
            epochs = [epoch for _, epoch in stretch]
            first, last = epochs[0], epochs[-1]
            (piece,) = axes.barh(row, last - first + 1, left=first - 0.5, height=0.9, color=of_width(bits))
            piece.set_gid(f"stretch{row}-{first}")
            tips[f"stretch{row}-{first}"] = f"{layer.name}: {bits} bits, epochs {first} to {last}"
    return tips


def _draw_moves(axes: Axes, report: RunReport) -> dict[str, str]:
    """A line for every decision, and a circle for every layer that it moved."""
    rows = {layer.name: row for row, layer in enumerate(report.facts.layers)}
    tips = {}
    for epoch in report.epochs:
        if epoch.has_decision:
            axes.axvline(epoch.epoch + 0.5, color=INK, linewidth=0.8, linestyle=":")
    for number, move in enumerate(report.moves):
        place = (move.epoch + 0.5, rows[move.layer])
        (mark,) = axes.plot(*place, "o", color="#ffffff", markeredgecolor="#000000", markersize=6)
        mark.set_gid(f"move{number}")
        tips[f"move{number}"] = (
            f"after epoch {move.epoch}: {move.layer} {move.before} to {move.after}; {move.why}"
        )
    return tips


def breakdown_plot(report: RunReport) -> Plot | None:
    """Each cost, layer by layer."""
    plan = report.plan
    if plan is None:
        return None
    costs = [name for name in plan.costs if name in plan.layers[0].costs]
    if not costs:
        return None
    shown = _most_expensive(plan, costs)

    def paint(figure: Figure) -> Tips:
        axes = figure.subplots()
        tips = _draw_costs(axes, plan, shown, costs)
        axes.set_xlabel("share of the layers' sum (%)")
        axes.grid(visible=False, axis="y")
        _label_rows(axes, [layer.name for layer in shown])
        add_legend(axes, {name: colour_of(number) for number, name in enumerate(costs)})
        return tips

    is_part = len(shown) < len(plan.layers)
    part = f"the {len(shown)} most expensive of {len(plan.layers)} layers" if is_part else "all layers"
    height = 1.4 + max(3, len(shown)) * 0.3
    caption = f"Shares of {', '.join(costs)}, {part}."
    return Plot.drawn("breakdown", height, paint, title="What each layer costs", caption=caption)


def _sum_of(plan: Plan, cost: str) -> float:
    return float(sum(layer.costs[cost] for layer in plan.layers)) or 1.0


def _most_expensive(plan: Plan, costs: Sequence[str]) -> list[LayerReport]:
    """The layers that take the most of any cost, in the network's order."""
    totals = {name: _sum_of(plan, name) for name in costs}
    order = sorted(plan.layers, key=lambda one: -max(one.costs[name] / totals[name] for name in costs))
    names = {layer.name for layer in order[:_MOST_LAYERS]}
    return [layer for layer in plan.layers if layer.name in names]


def _draw_costs(axes: Axes, plan: Plan, shown: Sequence[LayerReport], costs: Sequence[str]) -> dict[str, str]:
    height = 0.85 / len(costs)
    tips = {}
    for number, name in enumerate(costs):
        total, colour = _sum_of(plan, name), colour_of(number)
        for row, layer in enumerate(shown):
            share, top = layer.costs[name] / total, row + number * height - 0.4
            (piece,) = axes.barh(top, 100 * share, height=height, align="edge", color=colour)
            piece.set_gid(f"cost{number}-{row}")
            cost = amount(layer.costs[name], plan.costs[name].unit)
            tips[f"cost{number}-{row}"] = f"{layer.name}, {name}: {cost}, {share:.1%} of the layers' sum"
    return tips
