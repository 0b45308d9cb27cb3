"""Frontiers as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from hwbmpq.errors import HwbmpqError
from hwbmpq.report.html.plot_style import DISTINCT
from hwbmpq.units import scale

if TYPE_CHECKING:
    from hwbmpq.allocate import Frontier

_DECADE = 10
_COLOURS = (*DISTINCT, "#000000")


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
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.add_subplot()
        label = f"objective ({objective}), % of its range"
        scales = [_scale(frontiers, place, units[cost]) for place, cost in enumerate(costs)]
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


def _scale(frontiers: "Mapping[str, Frontier]", position: int, unit: str) -> tuple[str, float]:
    """A unit for a cost, and its size."""
    largest = max(float(frontier.totals[:, position].max()) for frontier in frontiers.values())
    return scale(largest, unit)


def _draw_lines(axes: Any, frontiers: "Mapping[str, Frontier]", size: float) -> None:
    for position, (target, frontier) in enumerate(frontiers.items()):
        axes.step(
            frontier.totals[:, 0] / size,
            100 * frontier.shares,
            where="post",  # a budget between two points buys the cheaper one
            marker="o" if len(frontier) <= 60 else "",
            markersize=3,
            color=_COLOURS[position % len(_COLOURS)],
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
