"""Frontiers as a table and as a picture."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwbmpq.cli.console import Console, Text, escape
from hwbmpq.cli.render.tables import bar, plain_table
from hwbmpq.errors import HwbmpqError
from hwbmpq.units import amount, counted, scale

if TYPE_CHECKING:
    from hwbmpq.allocate import Frontier, FrontierPoint

_DECADE = 10
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


def plot_frontiers(
    frontiers: "Mapping[str, Frontier]",
    costs: Sequence[str],
    units: Mapping[str, str],
    path: Path,
    *,
    title: str,
    objective: str,
) -> None:
    """The objective over a cost, one line per device; with two costs, points coloured by the objective."""
    import matplotlib  # takes a second, and tables need none
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.add_subplot()
        label = f"objective ({objective}), % of its range"
        totals = [frontier.totals for frontier in frontiers.values()]
        largest = [max(float(each[:, place].max()) for each in totals) for place in range(len(costs))]
        scales = [scale(most, units[cost]) for most, cost in zip(largest, costs, strict=True)]
        if len(costs) > 1:
            figure.colorbar(
                _draw_points(axes, frontiers, *(size for _, size in scales)), ax=axes, label=label
            )
        else:
            _draw_lines(axes, frontiers, scales[0][1])
        names = [f"{cost} ({unit})" for cost, (unit, _) in zip(costs, scales, strict=True)]
        axes.set_xlabel(names[0])
        axes.set_ylabel([*names, label][1])
        axes.set_title(title if len(frontiers) > 1 else f"{title} on {next(iter(frontiers))}")
        axes.grid(alpha=0.3)
        if len(frontiers) > 1:
            axes.legend(frameon=False)
        try:
            figure.savefig(path, dpi=160, metadata={"Title": f"Frontier of {title}"})
        except OSError as error:
            raise HwbmpqError(f"cannot write {path}: {error.strerror or error}") from error


def _draw_lines(axes: Any, frontiers: "Mapping[str, Frontier]", size: float) -> None:
    from hwbmpq.report.html.plot_style import DISTINCT

    for colour, (target, frontier) in zip(cycle([*DISTINCT, "black"]), frontiers.items(), strict=False):
        axes.step(
            frontier.totals[:, 0] / size,
            100 * frontier.shares,
            where="post",  # a budget between two points buys the cheaper one
            marker="o" if len(frontier) <= 60 else "",
            markersize=3,
            color=colour,
            label=target,
        )
    largest = [float(frontier.totals[:, 0].max()) for frontier in frontiers.values()]
    if 0 < min(largest) * _DECADE < max(largest):
        axes.set_xscale("log")  # devices that lie far apart
    axes.set_ylim(-5, 105)


def _draw_points(axes: Any, frontiers: "Mapping[str, Frontier]", x_size: float, y_size: float) -> Any:
    """What a colour bar explains."""
    for marker, (target, frontier) in zip("osD^vPX" * len(frontiers), frontiers.items(), strict=False):
        x, y = frontier.totals[:, 0] / x_size, frontier.totals[:, 1] / y_size
        points = axes.scatter(
            x, y, c=100 * frontier.shares, cmap="viridis", vmin=0, vmax=100, marker=marker, label=target
        )
    return points
