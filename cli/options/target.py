"""``--target`` and the widths, shared by every command that costs a network on a device."""

import argparse
from typing import Any

from hwbmpq.values import MAX_BITS, MIN_BITS

TARGET_HELP = (
    "a profile: its name (jetson_nano), name.yaml, name@mode (jetson_nano@5w), or the path of a file; names are "
    "looked up in your own folder first (HWBMPQ_PROFILES, or the platform's configuration folder)"
)


def add_action(
    actions: Any, common: argparse.ArgumentParser, name: str, run: Any, text: str
) -> argparse.ArgumentParser:
    """A subcommand with its one-line description."""
    parser: argparse.ArgumentParser = actions.add_parser(
        name, parents=[common], help=text, description=f"{text[0].upper()}{text[1:]}."
    )
    parser.set_defaults(run=run)
    return parser


def add_width_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--bits",
        type=parse_bits,
        metavar="2,4,8",
        help="weight widths (default: all integer widths of the device)",
    )
    parser.add_argument(
        "--activation-bits",
        type=parse_activation_bits,
        default="same",
        metavar="same|widest|float|N",
        help="activation width that goes with each weight width: the same (or the next one that runs with it), "
        "the widest up to 8 for all, float, or a number (default: %(default)s)",
    )


def parse_bits(text: str) -> tuple[int, ...]:
    """``2,4,8`` as widths.

    >>> parse_bits("8, 2")
    (2, 8)
    """
    try:
        widths = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write widths like 2,4,8") from None
    if not all(MIN_BITS <= width <= MAX_BITS for width in widths):
        raise argparse.ArgumentTypeError(f"{text!r}: widths are {MIN_BITS} to {MAX_BITS} bits")
    return widths


def parse_activation_bits(text: str) -> str | int:
    if text in ("same", "widest", "float"):
        return text
    try:
        return parse_bits(text)[0]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: use same, widest, float or {MIN_BITS} to {MAX_BITS} bits"
        ) from None
