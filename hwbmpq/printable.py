"""Text that others wrote, as it may be shown: what a terminal or a page would act on is spelled out."""

import re

_ACTS = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: colours, the cursor, the window's title
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, and marks that reverse what is read
    "\ud800-\udfff\ufffe\uffff]"  # bytes of file names that are not UTF-8, which nothing can encode
)
LONGEST = 300
"""Characters of a value that a message repeats."""


def printable(text: str, *, keep: str = "") -> str:
    r"""``text`` with control characters written as Python writes them; those in ``keep`` stay.

    >>> print(printable("conv1\x1b[2J"))
    conv1\x1b[2J
    """
    return _ACTS.sub(lambda found: found[0] if found[0] in keep else _spelled(found[0]), text)


def _spelled(character: str) -> str:
    return repr(character)[1:-1] if not character.isprintable() else f"\\u{ord(character):04x}"


def cut(text: str, length: int = LONGEST) -> str:
    """The beginning of a text that may be long."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
