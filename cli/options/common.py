"""What the options of all commands are made of: commands, types of values, names that a registry knows, output files."""

import argparse
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from hwbmpq.cli.options.parser import HelpFormatter
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.registry import Registry
from hwbmpq.units import parse_share
from hwbmpq.values import MAX_BITS, MIN_BITS

N = TypeVar("N", int, float)
HTML = (".html", ".htm")


@functools.cache
def _common() -> argparse.ArgumentParser:
    """What every command takes."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    return parser


def add_command(commands: Any, name: str, documented: Any) -> argparse.ArgumentParser:
    """A command, or an action of one: a module with a function ``run``, or a function.

    Its docstring is the help: one line for the list of commands, the description, and examples.
    """
    summary, _, rest = inspect.cleandoc(documented.__doc__).partition("\n\n")
    description, examples, epilog = rest.partition("examples:\n")
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[_common()],
        help=f"{summary[0].lower()}{summary[1:].removesuffix('.')}",
        description=description.strip() or summary,
        epilog=examples + epilog,
        formatter_class=HelpFormatter,
    )
    run = documented if callable(documented) else getattr(documented, "run", None)
    if run is not None:  # a command with actions has none of its own
        parser.set_defaults(run=run)
    return parser


def add_count(parser: argparse._ActionsContainer, flag: str, default: int, text: str, **options: Any) -> None:
    """A flag with a whole number above zero."""
    text = f"{text} (default: %(default)s)".lstrip()
    parser.add_argument(flag, **{"type": positive, **options}, default=default, metavar="N", help=text)


def add_output_options(parser: argparse._ActionsContainer, *, rows: str = "") -> None:
    """``--json``, and ``--all`` where a long table of ``rows`` is cut."""
    if rows:
        parser.add_argument("--all", action="store_true", help=f"list every {rows}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text and tables")


def check_output(flag: str, path: Path | str | None, suffixes: Iterable[str] = ()) -> None:
    """Refuse a file that cannot be written, or another kind of file given by mistake, before anything slow."""
    if path is None:
        return
    path = Path(path).expanduser()
    if suffixes and path.suffix.lower() not in suffixes:
        raise HwbmpqError(f"{flag} {path}: the name has to end with {', '.join(suffixes)}")
    if not path.absolute().parent.is_dir():
        raise HwbmpqError(
            f"{flag} {path} cannot be written: there is no folder {path.parent}",
            hint=f"mkdir -p {quote(str(path.parent))}",
        )


@dataclass(frozen=True)
class RegistryNames:
    """A registry as argparse's ``type`` and ``choices``: asked when a name is given or help is printed, not before."""

    registry: Registry[Any]
    also: tuple[str, ...] = ()
    """Words that mean something without being registered."""

    def __call__(self, text: str) -> str:
        name, colon, detail = text.partition(":")  # folder:PATH
        if name in self.also:
            return text
        try:
            return f"{self.registry.resolve(name)}{colon}{detail}"
        except UnknownNameError:
            error = UnknownNameError(self.registry.what, name, self)
            raise argparse.ArgumentTypeError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter([*self.also, *(name.replace("_", "-") for name in self.registry.names())])

    def __contains__(self, name: object) -> bool:
        return True  # called before, as the type


def positive(text: str) -> int:
    """A whole number above zero."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number above zero")
    return int(text)


def share(text: str) -> float:
    """``1%`` or ``0.01``."""
    try:
        return parse_share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def between(fewest: int, most: int, what: str) -> Callable[[str], int]:
    """A type: so many of ``what``."""

    def parse(text: str) -> int:
        number = positive(text)
        if not fewest <= number <= most:
            raise argparse.ArgumentTypeError(f"{text}: give {fewest} to {most} {what}")
        return number

    return parse


def seconds(text: str) -> float:
    """A time above zero."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds above zero")
    return number


def several(number: Callable[[str], N], example: str) -> Callable[[str], tuple[N, ...]]:
    """A type: numbers between commas."""

    def parse(text: str) -> tuple[N, ...]:
        try:
            return tuple(number(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: write numbers like {example}") from None

    return parse


def parse_bits(text: str) -> tuple[int, ...]:
    """``2,4,8`` as widths.

    >>> parse_bits("8, 2")
    (2, 8)
    """
    widths = tuple(sorted(set(several(int, "2,4,8")(text))))
    if not all(MIN_BITS <= width <= MAX_BITS for width in widths):
        raise argparse.ArgumentTypeError(f"{text!r}: widths are {MIN_BITS} to {MAX_BITS} bits")
    return widths


def activation_bits(*words: str) -> Callable[[str], str | int]:
    """A type: one of the words, or a width."""

    def parse(text: str) -> str | int:
        if text in words:
            return text
        try:
            return parse_bits(text)[0]
        except argparse.ArgumentTypeError:
            raise argparse.ArgumentTypeError(
                f"{text!r}: use {', '.join(words)} or {MIN_BITS} to {MAX_BITS} bits"
            ) from None

    return parse
