"""``--target``, widths and budgets, shared by every command that costs a network on a device."""

import argparse
from collections.abc import Sequence

from hwbmpq.cli.options.names import add_name_option
from hwbmpq.cli.options.numbers import activation_bits, parse_bits
from hwbmpq.errors import HwbmpqError
from hwbmpq.registry import SOLVERS

TARGET_HELP = (
    "a profile: its name (jetson_nano), name.yaml, name@mode (jetson_nano@5w), or the path of a file; names are "
    "looked up in your own folder first (HWBMPQ_PROFILES, or the platform's configuration folder)"
)


def add_width_options(parser: argparse._ActionsContainer) -> None:
    """The widths that a table of costs has columns for."""
    parser.add_argument(
        "--bits",
        type=parse_bits,
        metavar="2,4,8",
        help="weight widths (default: all integer widths of the device)",
    )
    parser.add_argument(
        "--activation-bits",
        type=activation_bits("same", "widest", "float"),
        default="same",
        metavar="same|widest|float|N",
        help="activation width that goes with each weight width: the same (or the next one that runs with it), "
        "the widest up to 8 for all, float, or a number (default: %(default)s)",
    )


def add_allocation_options(parser: argparse.ArgumentParser) -> None:
    """The widths to choose among, and who chooses."""
    group = parser.add_argument_group("widths")
    group.add_argument(
        "--bits",
        type=parse_bits,
        metavar="2,4,8",
        help="weight widths (default: 2,4 if the device has both, else all)",
    )
    group.add_argument(
        "--activation-bits",
        type=activation_bits("auto", "same", "widest", "float"),
        default="auto",
        metavar="auto|same|widest|float|N",
        help="activation width: auto (the widest up to 8, or the same as the weights if a budget depends on it), same, "
        "widest, float, or a number (default: %(default)s)",
    )
    text = "who solves the integer program: %(choices)s (default: %(default)s)"
    add_name_option(group, "--solver", SOLVERS, text, default="auto", also=("auto",))


def add_budget_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--budget",
        nargs="+",
        action="extend",
        default=[],
        metavar="COST=AMOUNT",
        help="an upper bound on a cost, such as memory=350KiB, memory=12x (a twelfth of float), latency=8ms, energy=40uJ or "
        "bops=30%%; several hold together (default: the profile's own)",
    )


def read_budgets(texts: Sequence[str]) -> dict[str, str]:
    """``["memory=350KiB", "latency=8ms"]`` by cost."""
    budgets: dict[str, str] = {}
    for text in texts:
        name, equals, amount = (part.strip() for part in text.partition("="))
        if not equals or not name or not amount:
            raise HwbmpqError(
                f"budget {text!r}: write COST=AMOUNT",
                hint="for example memory=350KiB, memory=12x, latency=8ms, energy=40uJ, bops=30%",
            )
        if name in budgets:
            raise HwbmpqError(f"two budgets on {name}: {budgets[name]} and {amount}")
        budgets[name] = amount
    return budgets
