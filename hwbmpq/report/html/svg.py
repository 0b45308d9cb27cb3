"""matplotlib's figures as SVG that stands in a page: it follows the page's colours, and its parts have tips."""

import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

_SVG = "http://www.w3.org/2000/svg"
_LINK = "http://www.w3.org/1999/xlink"
INK = "#010203"
"""Drawn as whatever colour the page's text has."""
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

Tips = Mapping[str, str]
"""The text shown when a part is pointed at, by its gid."""


@contextmanager
def house_style() -> Iterator[None]:
    with matplotlib.rc_context(_SETTINGS):
        yield


def draw(name: str, size: tuple[float, float], paint: Callable[[Figure], Tips | None]) -> str:
    """A figure as SVG. ``paint`` draws into it and gives tips for the parts that it set a gid on."""
    with house_style():
        figure = Figure(figsize=size, layout="constrained")
        figure.patch.set_alpha(0)
        tips = paint(figure) or {}
        for axes in figure.axes:
            axes.patch.set_alpha(0)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _for_page(buffer.getvalue(), name, tips)


def _for_page(text: str, name: str, tips: Tips) -> str:
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
    root.set("aria-hidden", "true")  # the figure's caption says what is to be seen
    made = ElementTree.tostring(root, encoding="unicode")
    # Several figures share one page: their names must not meet.
    made = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', made)
    made = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", made)
    made = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', made)
    return made.replace(INK, "currentColor")
