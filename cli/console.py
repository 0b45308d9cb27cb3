"""The one way to the terminal: what others wrote (names, titles, notes, paths, errors) cannot act on it."""

import sys
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import rich.console
import rich.markup
import rich.text
from rich.segment import Segment

from hwbmpq.errors import printable

_LINES = "\n"


def escape(text: str, *, keep: str = "") -> str:
    r"""A name or a sentence of others as markup that shows it; ``[red]`` and control characters are shown as such.

    >>> print(escape("[red]\x1b[2J"))
    \[red]\x1b[2J
    """
    return rich.markup.escape(printable(text, keep=keep))


def escape_lines(text: str) -> str:
    """The same for a text of several lines."""
    return escape(text, keep=_LINES)


def print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As Python prints it, but for what the message may hold."""
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(printable(text, keep=_LINES))


class Text(rich.text.Text):
    """A text of others as a cell of a table."""

    def __init__(self, text: str = "", *args: Any, **options: Any) -> None:
        super().__init__(printable(text, keep=_LINES), *args, **options)

    def append_text(self, text: rich.text.Text) -> Self:
        super().append_text(text)
        return self


class Console(rich.console.Console):
    """Nothing but rich's own styles reaches the terminal as an escape sequence, whatever is printed and however."""

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        # Before the layout, so that columns are as wide as what is shown.
        return super().render_str(printable(text, keep=_LINES), **options)

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, keep=_LINES), segment.style)
