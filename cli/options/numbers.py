"""Numbers on the command line: argparse types that say what they want."""

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

from hwbmpq.values import MAX_BITS, MIN_BITS

N = TypeVar("N", int, float)


def positive(text: str) -> int:
    """A whole number above zero."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number above zero")
    return number


def between(fewest: int, most: int, what: str) -> Callable[[str], int]:
    """A type: so many of ``what``."""

    def parse(text: str) -> int:
        number = positive(text)
        if number < fewest:
            raise argparse.ArgumentTypeError(f"{text}: at least {fewest} {what} are needed")
        if number > most:
            raise argparse.ArgumentTypeError(f"{text}: at most {most} {what} can be kept")
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
            raise argparse.ArgumentTypeError(f"{text!r}: write {example}") from None

    return parse


def parse_bits(text: str) -> tuple[int, ...]:
    """``2,4,8`` as widths.

    >>> parse_bits("8, 2")
    (2, 8)
    """
    widths = tuple(sorted(set(several(int, "widths like 2,4,8")(text))))
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
