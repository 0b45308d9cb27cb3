"""The look of everything that is printed: consoles, tables, bars, amounts; and the layers of a network."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rich import box
from rich.table import Table

from hwbmpq.cli.console import Console, Text, escape
from hwbmpq.units import amount, counted
from hwbmpq.values import Layer

if TYPE_CHECKING:
    from hwbmpq.graph import LayerGraph

_MOST_ROWS = 60
_WIDE = 120  # columns from which shapes are shown
_ROOM_FOR_BARS = 78
_NARROWEST_NAME = 12
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class OutputConsole(Console):
    """A console that leaves a closed pipe to ``main`` (rich itself would exit with 1) and colours only what we say."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, indent=2) + "\n")  # ASCII: escapes what could act on a terminal


def line_console() -> OutputConsole:
    """For sentences and commands to paste: wrapped at words in a terminal, whole lines elsewhere."""
    console = OutputConsole()
    console.soft_wrap = not console.is_terminal
    return console


def print_wrapped(console: Console, text: "str | Text") -> None:
    """Wrapped at words in a terminal; in a file or a pipe, a sentence stays on its line."""
    console.print(text, soft_wrap=not console.is_terminal)


def print_remarks(console: Console, remarks: Iterable[str]) -> None:
    """What a user should know, each on a line of its own."""
    for remark in remarks:
        text = f"[yellow]![/] {escape(remark)}"
        if console.stderr:
            print_wrapped(console, text)
        else:
            console.print(text)


def print_graph(console: Console, graph: "LayerGraph", *, title: str, all_rows: bool = False) -> None:
    """The layers, ties and coverage of a network."""
    shown = list(graph.layers) if all_rows else largest_layers(graph.layers)
    console.print(_layer_table(graph, shown, title, width=console.width))
    hidden = len(graph) - len(shown)
    if hidden:
        share = 1 - ratio(sum(layer.parameters for layer in shown), graph.weights)
        console.print(
            f"{hidden} smaller layers with {share:.1%} of the weights are not shown; --all lists them"
        )
    console.print(_totals(graph) + "\n")
    if graph.ties:
        ties = ((Text(", ".join(group.layers)), Text(group.reason)) for group in graph.ties)
        print_table(console, "Layers that share a width", ("~layers", "~why"), ties)
    if graph.uncovered:
        columns = ("what", ">places", ">parameters", ">share", ">MACs", ">share", "~why")
        print_table(console, "Left in float", columns, _uncovered_rows(graph))


def bar(share: float, width: int) -> str:
    """A horizontal bar, ``share`` of ``width`` characters long."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def compact(count: int) -> str:
    """Three digits or so and a unit: ``118.0 M``, ``9.2 k``, ``640``."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)


def in_bytes(size: int) -> str:
    return amount(size * 8, "bit")


def and_more(items: Sequence[str], most: int) -> str:
    """The first of them, and how many others there are: ``a, b and 3 more``."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{', '.join(items[:most])}{more}"


def shorten(name: str, width: int) -> str:
    """Cut the middle out of a long name: both ends of a layer's path say where it is."""
    if len(name) <= width:
        return name
    head = (width - 1) // 3  # the end says more than the beginning
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


_T = TypeVar("_T")


class _Sized(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> int: ...


_L = TypeVar("_L", bound=_Sized)


def largest_layers(layers: Sequence[_L]) -> list[_L]:
    """The layers to show of a large network, in their order."""
    if len(layers) <= _MOST_ROWS:
        return list(layers)
    names = {layer.name for layer in sorted(layers, key=lambda layer: -layer.parameters)[:_MOST_ROWS]}
    return [layer for layer in layers if layer.name in names]


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def plain_table(title: str, *columns: str) -> Table:
    """The look of our tables. A column is given by its heading: ``>`` before it aligns right, ``~`` folds long cells."""
    table = Table(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        heading = column.lstrip(">~")
        if column[:1] == "~":
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(heading, justify="right" if column[:1] == ">" else "left", no_wrap=True)
    return table


def print_table(
    console: Console, title: str, columns: Iterable[str], rows: Iterable[Sequence[str | Text]]
) -> None:
    table = plain_table(title, *columns)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def fits(console: Console, table: Table) -> bool:
    unlimited = console.options.update_width(10_000)
    return console.measure(table, options=unlimited).maximum <= console.width


def print_side_by_side(console: Console, items: Sequence[_T], draw: Callable[[Sequence[_T]], Table]) -> None:
    """A table with all items across, or several tables with fewer in each: a number is never cut."""
    for size in range(len(items), 0, -1):
        tables = [draw(items[start : start + size]) for start in range(0, len(items), size)]
        if size == 1 or all(fits(console, table) for table in tables):
            break
    for table in tables:
        console.print(table)


def _layer_table(graph: "LayerGraph", shown: Sequence[Layer], title: str, *, width: int) -> Table:
    is_wide = width >= _WIDE
    bar_width = 12 if is_wide else 4 if width >= _ROOM_FOR_BARS else 0
    others = 94 if is_wide else 48 + 2 * (bar_width + 1)  # what the other columns take
    most_weights = max(layer.parameters for layer in graph)
    most_macs = max(layer.macs for layer in graph)
    shape_columns = ("weight", "output") if is_wide else ()
    table = plain_table(title, "layer", "kind", *shape_columns, ">weights", "share", ">MACs", "share")
    for layer in shown:
        shapes = (layer.weight_shape, layer.output_shape[1:]) if is_wide else ()
        table.add_row(
            Text(shorten(layer.name, max(_NARROWEST_NAME, width - others))),
            _kind(layer),
            *("x".join(map(str, shape)) for shape in shapes),
            f"{layer.parameters:,}",
            _share(layer.parameters, graph.weights, most_weights, bar_width),
            compact(layer.macs),
            _share(layer.macs, graph.macs, most_macs, bar_width),
        )
    return table


def _share(part: int, whole: int, largest: int, bar_width: int) -> str:
    """Percentage of the whole, and a bar that is full for the largest part."""
    share = f"{ratio(part, whole):5.1%}"
    return f"{share} {bar(ratio(part, largest), bar_width)}" if bar_width else share


def _kind(layer: Layer) -> str:
    """``conv2d``, ``conv2d dw`` (depthwise), ``conv2d /32`` (32 groups), ``linear x2`` (runs twice)."""
    marks = [layer.kind]
    if layer.is_depthwise:
        marks.append("dw")
    elif layer.groups > 1:
        marks.append(f"/{layer.groups}")
    if layer.calls > 1:
        marks.append(f"x{layer.calls}")
    return " ".join(marks)


def _totals(graph: "LayerGraph") -> str:
    return (
        f"[bold]{counted(len(graph), 'layer')}[/], [bold]{graph.weights:,} weights[/] "
        f"({ratio(graph.weights, graph.parameters):.2%} of {graph.parameters:,} parameters), "
        f"[bold]{graph.layer_macs:,} MACs[/] ({ratio(graph.layer_macs, graph.macs):.2%} of all), "
        f"traced by {graph.traced_by}" + "".join(f"\n[dim]not by {escape(note)}[/]" for note in graph.notes)
    )


def _uncovered_rows(graph: "LayerGraph") -> Iterator[Sequence[str]]:
    for entry in sorted(graph.uncovered_by_reason, key=lambda entry: -entry.parameters):
        yield (
            entry.reason,
            str(entry.places),
            f"{entry.parameters:,}",
            f"{ratio(entry.parameters, graph.parameters):.2%}",
            compact(entry.macs),
            f"{ratio(entry.macs, graph.macs):.2%}",
            entry.why,
        )
