"""Frontiers drawn for a terminal."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from hwbmpq.cli.render.tables import bar, counted, plain_table
from hwbmpq.units import amount

if TYPE_CHECKING:
    from hwbmpq.allocate import Frontier, FrontierPoint

_MOST_ROWS = 20
_BAR = 16


def thinned(frontier: "Frontier", most: int | None) -> "list[FrontierPoint]":
    """So many points, evenly spread along the first cost, both ends included; all if there are fewer."""
    if most is None or len(frontier) <= most:
        return list(frontier)
    costs = frontier.totals[:, 0].tolist()  # ascending
    steps = (costs[0] + (costs[-1] - costs[0]) * step / (most - 1) for step in range(most))
    positions = {min(bisect_left(costs, wanted), len(costs) - 1) for wanted in steps}
    return [frontier[position] for position in sorted(positions | {len(costs) - 1})]


def print_frontier(
    console: Console, frontier: "Frontier", units: Mapping[str, str], *, title: str, all_rows: bool
) -> None:
    costs = (f">{cost}" for cost in frontier.costs)
    table = plain_table(title, *costs, ">objective", "", "~layers at each width")
    low, high = frontier.objective_range
    shown = thinned(frontier, None if all_rows else _MOST_ROWS)
    for point in shown:
        share = (point.objective - low) / (high - low) if high > low else 1.0
        widths = Counter(str(choice) for choice in point.bits.values())
        table.add_row(
            *(amount(point.costs[cost], units[cost]) for cost in frontier.costs),
            f"{share:.1%}",
            bar(share, _BAR) if console.width >= 78 else "",
            Text(", ".join(f"{count}×{width}" for width, count in sorted(widths.items()))),
        )
    console.print(table)
    kind = (
        "all non-dominated allocations" if frontier.is_exact else "a sample of the non-dominated allocations"
    )
    more = "; --all lists them" if len(shown) < len(frontier) else ""
    console.print(f"[dim]{escape(kind)}: {counted(len(frontier), 'point')}, {len(shown)} shown{more}[/]\n")
