"""Commands and the options that nearly all of them have."""

import argparse
from collections.abc import Callable
from typing import Any

Run = Callable[[argparse.Namespace], None]


def add_command(
    commands: Any,
    common: argparse.ArgumentParser,
    name: str,
    run: Run | None,
    text: str,
    description: str = "",
    epilog: str = "",
) -> argparse.ArgumentParser:
    """A command, or an action of one (``run`` is None for a command that has actions); ``text`` is its one line of help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[common],
        help=text,
        description=description or f"{text[0].upper()}{text[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def add_output_options(parser: argparse._ActionsContainer, *, rows: str = "") -> None:
    """``--json``, and ``--all`` where a long table of ``rows`` is cut."""
    if rows:
        parser.add_argument("--all", action="store_true", help=f"list every {rows}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text and tables")
