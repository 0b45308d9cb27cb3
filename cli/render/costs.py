"""Costs of a network drawn for a terminal."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.table import Table

import hwbmpq
from hwbmpq.cli.console import Console, Text, escape, escape_lines
from hwbmpq.cli.render.tables import (
    bar,
    fits,
    largest_layers,
    plain_table,
    print_remarks,
    print_side_by_side,
    print_table,
    ratio,
    shorten,
)
from hwbmpq.cli.render.targets import figure_name
from hwbmpq.units import SCALES, amount, decimals, scale

if TYPE_CHECKING:
    from hwbmpq.costs import CostTable, FigureUse, NetworkCosts
    from hwbmpq.graph import LayerGraph

_NARROWEST_NAME = 12
_SMALLEST_SHOWN = 0.005


def _scale_for_all(values: Sequence[float], unit: str) -> tuple[str, float, int]:
    """A unit for a table, its size, and the decimals that show every value."""
    positive = [value for value in values if value > 0] or [1.0]
    largest, smallest = max(positive), min(positive)
    fitting = [(name, size) for name, size in SCALES.get(unit, ((unit, 1.0),)) if largest >= size]
    name, size = next(
        ((name, size) for name, size in fitting if smallest >= _SMALLEST_SHOWN * size), scale(largest, unit)
    )
    return name, size, max(decimals(largest / size), 2 if smallest < size else 0)


def print_layer_costs(
    console: Console, graph: "LayerGraph", costs: "NetworkCosts", *, title: str, all_rows: bool
) -> None:
    """One table per cost: layers down, widths across."""
    console.print(f"[bold]{escape(title)} on {escape(costs.profile.target)}[/]\n")
    print_remarks(console, _remarks_on_network(costs))
    for table in costs.tables.values():
        if table.is_additive:
            _print_additive(console, graph, costs, table, all_rows=all_rows)
        else:
            _print_rows(console, costs, table)
        _print_remarks(console, costs, table)
    for name, error in costs.missing.items():
        hint = f" ({error.hint})" if error.hint else ""
        console.print(f"[yellow]no {escape(name)}:[/] {escape_lines(str(error) + hint)}")


def _print_additive(
    console: Console, graph: "LayerGraph", costs: "NetworkCosts", table: "CostTable", *, all_rows: bool
) -> None:
    """Layers down, weight widths across, with bars where there is room for them."""
    shown = list(graph) if all_rows else largest_layers(graph.layers)
    room = max(_NARROWEST_NAME, console.width // 3)
    names = {layer.name: shorten(layer.name, room) for layer in shown}
    widths = sorted({precision.weight_bits for choices in costs.choices.values() for precision in choices})
    draw = partial(_additive_table, costs=costs, table=table, names=names, hidden=len(graph) - len(shown))
    bars = next((bars for bars in (12, 8, 4) if fits(console, draw(widths, bars=bars))), 0)
    print_side_by_side(console, widths, partial(draw, bars=bars))


def _additive_table(
    widths: Sequence[int],
    *,
    costs: "NetworkCosts",
    table: "CostTable",
    names: Mapping[str, str],
    hidden: int,
    bars: int,
) -> Table:
    values = [value for choices in table.rows[0].costs.values() for value in choices.values()]
    unit, size, decimals = _scale_for_all(values, table.unit)

    def cells(by_width: Mapping[int, float], missing: str = "·", bars_to: float = max(values)) -> list[str]:
        cells = []
        for value in map(by_width.get, widths):
            cells.append(missing if value is None else f"{value / size:.{decimals}f}")
            cells += [bar(ratio(value or 0.0, bars_to), bars)] if bars else []
        return cells

    labels = [costs.label(width) if width in costs.widths else _pair(costs, width) for width in widths]
    columns = [column for label in labels for column in (f">{label}", *([""] if bars else []))]
    view = plain_table(f"{table.name} in {unit}, by weight width", "layer", *columns)
    for name, short in names.items():
        costed = table.rows[0].costs.get(name, {})
        by_width = {precision.weight_bits: value for precision, value in costed.items()}
        view.add_row(Text(short), *cells(by_width, missing="·" if costed else "no figure"))
    if hidden:
        view.add_row(Text(f"… {hidden} smaller (--all)", style="dim"))
    view.add_section()
    constant = table.rows[0].constant
    if constant:
        beside = "stored beside" if table.unit == "bit" else "between layers"
        view.add_row(beside, *cells(dict.fromkeys(widths, constant), bars_to=math.inf))
    totals = {width: costs.total(table.name, width) for width in widths if width in costs.widths}
    label, style = ("the network" if constant else "all layers"), "bold"
    if table.is_lower_bound:
        label, style = "at least", "bold red"
    view.add_row(label, *cells(totals, missing="", bars_to=math.inf), style=style)
    return view


def _pair(costs: "NetworkCosts", weight_bits: int) -> str:
    """A width that only layers without a choice have, with its activations."""
    pairs = {str(p) for options in costs.choices.values() for p in options if p.weight_bits == weight_bits}
    return pairs.pop() if len(pairs) == 1 else f"W{weight_bits}"


def _print_rows(console: Console, costs: "NetworkCosts", table: "CostTable") -> None:
    """A cost that is the largest of several sums: at each width, the sum that decides."""
    rows = []
    for width in costs.widths:
        total = amount(costs.total(table.name, width), table.unit)
        rows.append((costs.label(width), total, Text(costs.peak(table.name, width).label)))
    print_table(console, f"{table.name}, worst step", ("weight width", ">peak", "~at"), rows)


def _print_remarks(console: Console, costs: "NetworkCosts", table: "CostTable") -> None:
    if table.model and table.model != table.name:
        console.print(f"[dim]by the cost model {escape(table.model)}[/]")
    flat = [f"these widths do not change the {table.name}"] if table.is_flat else []
    left_out = [table.leaves_out] if table.leaves_out else []
    print_remarks(console, [*flat, *left_out, *table.notes])
    for line in bound_lines(table):
        console.print(line)
    if table.capacity is not None:
        too_large = [costs.label(w) for w in costs.widths if costs.total(table.name, w) > table.capacity.bits]
        fits = "not shown to" if table.is_lower_bound else "does at every width"
        verdict = f"[red]does not at {', '.join(too_large)}[/]" if too_large else fits
        size = amount(table.capacity.bits, "bit")
        if _is_shared(costs, table.capacity.level):
            verdict += ", by itself: weights and activations share it"
        console.print(f"has to fit in {escape(table.capacity.level)} ({size}): {verdict}")
    if table.name in costs.profile.budgets:
        budget = hwbmpq.costs.parse_budget(table.name, str(costs.profile.budgets[table.name]))
        over = [costs.label(w) for w in costs.widths if costs.total(table.name, w) > costs.limit(budget)]
        met = "[red]not shown to be met[/]" if table.is_lower_bound else "met at every width"
        verdict = f"[red]not met at {', '.join(over)}[/]" if over else met
        limit = amount(costs.limit(budget), table.unit)
        console.print(f"default budget {costs.profile.budgets[table.name]} ({limit}): {verdict}")
    if table.doubtful_figures:
        print_remarks(console, [f"rests on {_doubts(costs, table.doubtful_figures)}"])
    console.print()


def bound_lines(table: "CostTable") -> list[str]:
    """That a cost is a lower bound, and why."""
    if not table.is_lower_bound:
        return []
    return [
        f"[red]{escape(table.name)} is a lower bound: {escape(table.no_figure)}[/]",
        f"[dim]{escape(table.uncosted[0].why)}[/]",
    ]


def _doubts(costs: "NetworkCosts", figures: Sequence["FigureUse"]) -> str:
    return ", ".join(f"{figure_name(costs.profile, figure.path)} ({figure.kind})" for figure in figures)


def _is_shared(costs: "NetworkCosts", level: str) -> bool:
    holds = next(memory.holds for memory in costs.profile.memory if memory.name == level)
    return "weights" in holds and "activations" in holds


def _remarks_on_network(costs: "NetworkCosts") -> list[str]:
    """What holds whatever the cost."""
    remarks = []
    if len(costs.widths) == 1:
        remarks.append(f"one width to choose from, {costs.label(costs.widths[0])}: nothing to allocate")
    return remarks


def print_comparison(console: Console, all_costs: Sequence["NetworkCosts"], *, title: str) -> None:
    """What each width buys on each device: one table per cost."""
    names = list(dict.fromkeys(name for costs in all_costs for name in [*costs.tables, *costs.missing]))
    pairs = {(width, costs.label(width)) for costs in all_costs for width in costs.widths}
    console.print(f"[bold]{escape(title)}, every layer at one weight width[/]\n")
    for name in names:
        print_side_by_side(
            console, all_costs, partial(_comparison, name=name, pairs=sorted(pairs, key=_by_bits))
        )
    console.print(
        "[dim]W2A8: weights of 2 bits, activations of 8. gain: against the widest weights of "
        "the same device; the first and the last layer keep their width[/]\n"
    )
    for costs in all_costs:
        for remark in _remarks(costs):
            console.print(f"[bold]{escape(costs.profile.target)}:[/] {remark}")
        for name in names:
            if name not in costs.tables and name not in costs.missing:
                console.print(
                    f"[bold]{escape(costs.profile.target)}:[/] [yellow]no {name}:[/] it has no model for it"
                )


def _by_bits(pair: tuple[int, str]) -> tuple[int, int, str]:
    """W2A8 before W2A16."""
    width, label = pair
    return width, len(label), label


def _comparison(group: Sequence["NetworkCosts"], name: str, pairs: Sequence[tuple[int, str]]) -> Table:
    columns = [column for costs in group for column in (f">{costs.profile.target}", ">gain")]
    view = plain_table(name, "", *columns)
    for width, label in pairs:
        cells = [cell for costs in group for cell in _comparison_cells(costs, name, width, label)]
        view.add_row(label, *cells)
    return view


def _remarks(costs: "NetworkCosts") -> list[str]:
    """What to know before believing a device's column."""
    remarks = [escape(caveat) for caveat in costs.profile.caveats] + _remarks_on_network(costs)
    flat = [name for name, table in costs.tables.items() if table.is_flat]
    if flat:
        remarks.append(f"widths do not change {', '.join(flat)}")
    notes = dict.fromkeys(note for table in costs.tables.values() for note in table.notes)
    remarks += [escape(note) for note in notes]
    doubts = {figure.path: figure for table in costs.tables.values() for figure in table.doubtful_figures}
    if doubts:
        remarks.append(f"[yellow]rests on {escape(_doubts(costs, list(doubts.values())))}[/]")
    return remarks + [
        f"[yellow]no {name}:[/] {escape_lines(str(error))}" for name, error in costs.missing.items()
    ]


def _comparison_cells(costs: "NetworkCosts", name: str, width: int, label: str) -> tuple[Text, Text]:
    """The total at a pair of widths, and what it gains."""
    if name not in costs.tables or width not in costs.widths or costs.label(width) != label:
        return Text("·", style="dim"), Text("")
    widest = max(costs.widths)
    value, base = costs.total(name, width), costs.total(name, widest)
    gain = base / value if value else 1.0
    text = "" if width == widest else f"{gain:.2f}x"
    shown, is_bound = amount(value, costs.tables[name].unit), costs.tables[name].is_lower_bound
    return (
        Text(f"≥ {shown}" if is_bound else shown, style="red" if is_bound else ""),
        Text("" if is_bound else text, style="green" if gain > 1.005 else "dim"),
    )
