"""What the plots of a report have in common."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter

from hwbmpq.report.html.colours import DISTINCT, of_width
from hwbmpq.report.html.svg import Tips, draw

WIDE = 11.0
"""Inches."""
_MOST_LABELS = 40


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture with a title and what it says in words."""

    name: str
    title: str
    caption: str
    svg: str

    @classmethod
    def drawn(
        cls, name: str, height: float, paint: Callable[[Figure], Tips | None], *, title: str, caption: str
    ) -> "Plot":
        """A picture as wide as the page. ``paint`` draws it and gives tips for the parts that it set a gid on."""
        return cls(name=name, title=title, caption=caption, svg=draw(name, (WIDE, height), paint))


def colour_of(place: int) -> str:
    """For the runs or costs of a plot in their order."""
    return DISTINCT[place % len(DISTINCT)]


def count_epochs(axes: Axes, label: str = "epoch") -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(label)


def readable(names: Sequence[str], most: int) -> range:
    """Places of the names that there is room for."""
    return range(0, len(names), max(1, math.ceil(len(names) / most)))


def short(name: str, width: int = 26) -> str:
    """Cut the middle out of a long name."""
    return name if len(name) <= width else f"{name[: width // 3]}…{name[-(width - width // 3 - 1) :]}"


def label_layers(axes: Axes, names: Sequence[str]) -> None:
    """Names below, as many as can be read."""
    places = readable(names, _MOST_LABELS)
    axes.set_xticks(list(places), [short(names[place], 20) for place in places], rotation=90, fontsize=8)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(visible=False, axis="x")


def make_logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def add_width_legend(axes: Axes, widths: Sequence[int]) -> None:
    add_legend(axes, {f"{bits} bit": of_width(bits) for bits in sorted(set(widths))})


def add_legend(axes: Axes, colours: Mapping[str, str]) -> None:
    """Names with their colours in a row above a plot."""
    handles = [Patch(color=colour, label=label) for label, colour in colours.items()]
    axes.legend(handles=handles, ncols=len(handles), loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=9)
