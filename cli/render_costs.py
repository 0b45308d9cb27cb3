"""Costs of a network drawn for a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from hwbmpq.cli.render import bar, largest_layers, plain_table, ratio, shorten

if TYPE_CHECKING:
    from hwbmpq.costs import CostTable, FigureUse, NetworkCosts
    from hwbmpq.graph import LayerGraph

_SCALES = {
    "bit": (("MiB", 8 * 2**20), ("KiB", 8 * 2**10), ("bit", 1)),
    "ms": (("s", 1e3), ("ms", 1), ("us", 1e-3)),
    "uJ": (("J", 1e6), ("mJ", 1e3), ("uJ", 1), ("nJ", 1e-3)),
    "bit-op": (("Gbit-op", 1e9), ("Mbit-op", 1e6), ("bit-op", 1)),
}
_NARROWEST_NAME = 12


def scale(value: float, unit: str) -> tuple[str, float]:
    """A unit in which ``value`` has few digits before the point, and its size."""
    for name, size in _SCALES.get(unit, ((unit, 1.0),)):
        if abs(value) >= size:
            return name, size
    return _SCALES.get(unit, ((unit, 1.0),))[-1]


def amount(value: float, unit: str) -> str:
    """``5.57 MiB``, ``7.70 ms``."""
    name, size = scale(value, unit)
    return f"{_digits(value / size)} {name}"


def _digits(value: float) -> str:
    return f"{value:.{_decimals(value)}f}"


def _decimals(largest: float) -> int:
    """Digits after the point that give a number of this size three or four in all."""
    return 3 if largest < 10 else 2 if largest < 100 else 1 if largest < 1000 else 0


def print_layer_costs(
    console: Console, graph: "LayerGraph", costs: "NetworkCosts", *, title: str, all_rows: bool
) -> None:
    """One table per cost: layers down, widths across."""
    console.print(f"[bold]{escape(title)} on {escape(costs.profile.target)}[/]\n", highlight=False)
    for table in costs.tables.values():
        if table.is_additive:
            _print_additive(console, graph, costs, table, all_rows=all_rows)
        else:
            _print_rows(console, costs, table)
        _print_remarks(console, costs, table)
    _print_missing(console, costs)


def _print_additive(
    console: Console, graph: "LayerGraph", costs: "NetworkCosts", table: "CostTable", *, all_rows: bool
) -> None:
    widths = sorted({precision.weight_bits for choices in costs.choices.values() for precision in choices})
    totals = {width: costs.total(table.name, width) for width in costs.widths}
    largest = max((value for layer in graph for value in table[layer.name].values()), default=0)
    unit, size = scale(largest, table.unit)
    decimals = _decimals(largest / size)
    shown = list(graph) if all_rows else largest_layers(graph.layers)
    longest = max(len(layer.name) for layer in shown)
    cell = max(len(f"{value / size:.{decimals}f}") for value in [largest, *totals.values()])
    room = console.width - (cell + 2) * len(widths) - 1  # for the names and the bars
    name_width = max(_NARROWEST_NAME, min(longest, room))
    bar_width = max(0, min(12, (room - name_width) // len(widths) - 2))
    view = plain_table(f"{table.name} in {unit}, by weight width")
    view.add_column("layer", no_wrap=True)
    for width in widths:
        view.add_column(f"W{width}", no_wrap=True, justify="right")
        if bar_width:
            view.add_column("", no_wrap=True)
    for layer in shown:
        by_width = {precision.weight_bits: value for precision, value in table[layer.name].items()}
        cells: list[str | Text] = [Text(shorten(layer.name, name_width))]
        for width in widths:
            value = by_width.get(width)
            cells.append(Text("·", style="dim") if value is None else f"{value / size:.{decimals}f}")
            if bar_width:
                cells.append("" if value is None else bar(ratio(value, largest), bar_width))
        view.add_row(*cells)
    if len(shown) < len(graph):
        view.add_row(Text(f"… {len(graph) - len(shown)} smaller layers (--all)", style="dim"))
    view.add_section()
    last: list[str | Text] = [Text("all layers", style="bold")]
    for width in widths:
        last.append(Text(f"{totals[width] / size:.{decimals}f}" if width in totals else "", style="bold"))
        if bar_width:
            last.append("")
    view.add_row(*last)
    console.print(view)


def _print_rows(console: Console, costs: "NetworkCosts", table: "CostTable") -> None:
    """A cost that is the largest of several sums: at each width, the sum that decides."""
    view = plain_table(f"{table.name}, worst step")
    view.add_column("weight width", no_wrap=True)
    view.add_column("peak", justify="right", no_wrap=True)
    view.add_column("at", overflow="fold")
    for width in costs.widths:
        peak = costs.peak(table.name, width)
        view.add_row(f"W{width}", amount(costs.total(table.name, width), table.unit), Text(peak.label))
    console.print(view)


def _print_remarks(console: Console, costs: "NetworkCosts", table: "CostTable") -> None:
    if table.model and table.model != table.name:
        console.print(f"[dim]by the cost model {escape(table.model)}[/]")
    if table.is_flat:
        console.print(f"[yellow]![/] on this device, widths do not change the {table.name}", highlight=False)
    for note in table.notes:
        console.print(f"[yellow]![/] {escape(note)}", highlight=False)
    if table.capacity is not None:
        too_large = [f"W{w}" for w in costs.widths if costs.total(table.name, w) > table.capacity.bits]
        verdict = f"[red]does not at {', '.join(too_large)}[/]" if too_large else "does at every width"
        size = amount(table.capacity.bits, "bit")
        console.print(f"has to fit in {escape(table.capacity.level)} ({size}): {verdict}", highlight=False)
    if table.doubtful_figures:
        console.print(f"[yellow]![/] rests on {_doubts(table.doubtful_figures)}", highlight=False)
    console.print()


def _doubts(figures: Sequence["FigureUse"]) -> str:
    return escape(", ".join(f"{figure.path} ({figure.kind})" for figure in figures))


def _print_missing(console: Console, costs: "NetworkCosts") -> None:
    for name, reason in costs.missing.items():
        console.print(f"[yellow]no {escape(name)}:[/] {escape(reason)}", highlight=False)


def print_comparison(console: Console, all_costs: Sequence["NetworkCosts"], *, title: str) -> None:
    """What each width buys on each device: one table per cost."""
    names = list(dict.fromkeys(name for costs in all_costs for name in [*costs.tables, *costs.missing]))
    widths = sorted({width for costs in all_costs for width in costs.widths})
    console.print(f"[bold]{escape(title)}, every layer at one weight width[/]\n", highlight=False)
    for name in names:
        view = plain_table(name)
        view.add_column("", no_wrap=True)
        for costs in all_costs:
            view.add_column(costs.profile.target, justify="right", overflow="fold")
            view.add_column("gain", justify="right", no_wrap=True)
        for width in widths:
            cells = [cell for costs in all_costs for cell in _comparison_cells(costs, name, width)]
            view.add_row(f"W{width}", *cells)
        console.print(view)
    console.print(
        "[dim]gain: against the widest weights of the same device; ends stay at their own width[/]\n"
    )
    for costs in all_costs:
        flat = [name for name, table in costs.tables.items() if table.is_flat]
        if flat:
            console.print(
                f"{escape(costs.profile.target)}: widths do not change {', '.join(flat)}", highlight=False
            )
        for caveat in costs.profile.caveats:
            console.print(f"{escape(costs.profile.target)}: {escape(caveat)}", highlight=False)
        doubts = {figure.path: figure for table in costs.tables.values() for figure in table.doubtful_figures}
        if doubts:
            rests = f"rests on {_doubts(list(doubts.values()))}"
            console.print(f"{escape(costs.profile.target)}: [yellow]{rests}[/]", highlight=False)
        for cost, reason in costs.missing.items():
            console.print(
                f"{escape(costs.profile.target)}: [yellow]no {cost}:[/] {escape(reason)}", highlight=False
            )


def _comparison_cells(costs: "NetworkCosts", name: str, width: int) -> tuple[Text, Text]:
    """The total at a width, and what it gains."""
    if name not in costs.tables or width not in costs.widths:
        return Text("·", style="dim"), Text("")
    widest = max(costs.widths)
    value, base = costs.total(name, width), costs.total(name, widest)
    gain = base / value if value else 1.0
    text = "" if width == widest else f"{gain:.2f}x"
    return Text(amount(value, costs.tables[name].unit)), Text(text, style="green" if gain > 1.005 else "dim")
