"""What the plots of a report have in common: colours that colour-blind readers can tell apart, labels, and SVG that
follows the page's colours and whose parts have tooltips."""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter

from hwbmpq.errors import printable

DISTINCT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's."""
_PLACES = {2: 0.0, 3: 0.16, 4: 0.32, 5: 0.44, 6: 0.54, 7: 0.62, 8: 0.72, 16: 0.92}
_FLOAT = "#8a8a8a"


def of_width(bits: int) -> str:
    """From dark (narrow) to light (wide), in a scale whose lightness tells the order; float is grey."""
    if bits > max(_PLACES):
        return _FLOAT
    known = _PLACES.get(bits, 0.72 + (bits - 8) * 0.025)
    return to_hex(colormaps["viridis"](known))


def text_on(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


def of_depth(share: float) -> str:
    """For layers from the first (0) to the last (1)."""
    return to_hex(colormaps["viridis"](0.9 * share))


_SVG = "http://www.w3.org/2000/svg"
_LINK = "http://www.w3.org/1999/xlink"
INK = "#010203"
"""Replaced by the colour of the page's text."""
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "hwbmpq",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "text.parse_math": False,  # a layer may be called $x$
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"),
        INK,
    ),
    "grid.color": INK,
    "legend.frameon": False,
}


class Tooltips(dict[str, str]):
    """The text shown when a part of a plot is pointed at, by the id that the part gets."""

    def add(self, part: Artist, text: str) -> None:
        part.set_gid(f"tip{len(self)}")
        self[f"tip{len(self)}"] = printable(text)


def _draw(name: str, height: float, paint: Callable[[Figure, Tooltips], None]) -> str:
    tips = Tooltips()
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(_PAGE_WIDTH, height), layout="constrained")
        figure.patch.set_alpha(0)
        paint(figure, tips)
        for axes in figure.axes:
            axes.patch.set_alpha(0)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _for_page(printable(buffer.getvalue(), keep="\n"), name, tips)


def _for_page(text: str, name: str, tips: Tooltips) -> str:
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _LINK)
    root = ElementTree.fromstring(text)
    for entry in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(entry)
    for element in root.iter():
        ident = element.get("id", "")
        if ident in tips:
            element.set("data-tip", tips[ident])
            element.set("class", "tipped")
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    root.set("aria-hidden", "true")  # the figure's caption describes it
    made = ElementTree.tostring(root, encoding="unicode")
    # Several figures share one page: their ids must differ.
    made = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', made)
    made = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", made)
    made = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', made)
    return made.replace(INK, "currentColor")


_PAGE_WIDTH = 11.0
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
        cls, name: str, height: float, paint: Callable[[Figure, Tooltips], None], *, title: str, caption: str
    ) -> "Plot":
        """A picture as wide as the page. ``paint`` draws it and adds tooltips to its parts."""
        return cls(name=name, title=title, caption=caption, svg=_draw(name, height, paint))


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
    """Cut the middle out of a long name, and spell out what is not a letter."""
    name = printable(name)
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
    handles = [Patch(color=colour, label=short(label)) for label, colour in colours.items()]
    axes.legend(handles=handles, ncols=len(handles), loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=9)
