"""JSON that others wrote: bounded in size, values and depth before anything is built from it."""

import json
import os
from typing import Any

from hwbmpq.errors import HwbmpqError
from hwbmpq.io import read_regular
from hwbmpq.printable import cut, printable
from hwbmpq.units import shown

MOST_BYTES = 32 << 20
MOST_VALUES = 2_000_000
"""A value takes about a hundred bytes, whatever it is."""


def read_json(
    path: str | os.PathLike[str], *, most_bytes: int = MOST_BYTES, most_values: int = MOST_VALUES
) -> Any:
    """The value in a file; for ``.jsonl`` the list of its lines' values. ``HwbmpqError`` if there is none.

    Keys that appear twice are refused: readers differ in which of the two they take.
    """
    try:
        data = read_regular(path, most_bytes)
    except (OSError, ValueError) as error:  # ValueError: a path that cannot be
        what = getattr(error, "strerror", None) or error
        raise HwbmpqError(f"{os.fspath(path)}: cannot be read: {what}") from error
    try:
        return parse_json(data, most_values=most_values, lines=os.fspath(path).endswith(".jsonl"))
    except RecursionError:
        raise HwbmpqError(f"{os.fspath(path)}: is nested too deeply") from None
    except ValueError as error:
        raise HwbmpqError(f"{os.fspath(path)}: is not valid JSON: {cut(printable(str(error)))}") from None


def parse_json(data: bytes, *, most_values: int = MOST_VALUES, lines: bool = False) -> Any:
    """The value in a text, or those of its lines. ``ValueError`` or ``RecursionError`` if there is none."""
    if sum(map(data.count, (b",", b"[", b"{", b"\n") if lines else (b",", b"[", b"{"))) > most_values:
        raise ValueError(f"more than {most_values:,} values")
    if lines:
        return [_parse(line) for line in data.splitlines() if line.strip()]
    return _parse(data)


def _parse(data: bytes) -> Any:
    return json.loads(data, object_pairs_hook=_without_duplicates)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{shown(twice)} is there twice")
    return found
