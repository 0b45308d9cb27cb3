"""Commands, and the options that nearly all of them have."""

import argparse
import functools
from collections.abc import Callable
from typing import Any

from hwbmpq.cli.options.numbers import positive


@functools.cache
def _common() -> argparse.ArgumentParser:
    """What every command takes."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    return parser


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], None] | None,
    text: str,
    description: str = "",
    epilog: str = "",
) -> argparse.ArgumentParser:
    """A command, or an action of one; ``text`` is its one line of help. ``run`` is None if it has actions."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[_common()],
        help=text,
        description=description or f"{text[0].upper()}{text[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if run is not None:
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
