"""How ``fuzz.py`` changes JSON, and bytes around it."""

import copy
import json
import random
from typing import Any

BETWEEN = b"\n\0\n"
"""Stands between a JSON text and what follows it, such as the tensors of a packed file."""
NASTY = [
    None,
    True,
    0,
    1,
    2,
    16,
    -1,
    2**31,
    2**53,
    2**63,
    10**30,
    0.5,
    1e-300,
    1e308,
    "",
    "W2A2",
    "W99A99",
    "F32",
    "U8",
]
NASTY += [
    "int8",
    "conv2d",
    "0.weight",
    "hwbmpq:scales",
    "\0",
    "x" * 300,
    "[/red]",
    "[bold red]\x1b[2J\u202e\n",
    "\ud800<script>",
    [],
    {},
    [1],
    [1 << 40],
    [[1]],
    {"a": 1},
]
TOKENS = [
    b"0",
    b"9",
    b"-",
    b"e9",
    b"null",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"\\u0000",
    b"\xff",
    b"\0",
    b"NaN",
    BETWEEN,
]


def mutated(data: bytes, max_size: int, seed: int) -> bytes:
    """The first byte, and the JSON behind it changed in a value or a few; or any bytes changed."""
    chance = random.Random(seed)
    head, between, tail = data[1:].partition(BETWEEN)
    if chance.random() < 0.5:
        try:
            changed = data[:1] + _changed_text(head, chance) + between + tail
        except (ValueError, RecursionError):
            changed = b""  # no JSON any more
        if 0 < len(changed) <= max_size:
            return changed
    return _changed_bytes(data, chance)[:max_size]


def _changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """Ours: atheris 3.0.0 refuses its own ``Mutate`` in a mutator."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 5)):
        place = chance.randrange(len(changed) + 1)
        kind = chance.choice(["flip", "insert", "remove", "overwrite", "cut"])
        if kind == "flip" and place < len(changed):
            changed[place] ^= 1 << chance.randrange(8)
        elif kind == "insert":
            changed[place:place] = chance.choice(TOKENS)
        elif kind == "remove":
            del changed[place : place + chance.randrange(1, 20)]
        elif kind == "overwrite":
            changed[place : place + 4] = chance.randbytes(4)
        elif chance.random() < 0.2:
            del changed[place:]
    return bytes(changed)


def _changed_text(text: bytes, chance: random.Random) -> bytes:
    content = json.loads(text)
    for _ in range(chance.randrange(1, 4)):
        _change(content, chance)
    return json.dumps(content, separators=(",", ":")).encode()


def _change(content: Any, chance: random.Random) -> None:
    places = _places(content)
    if not places:
        return
    holder, key = chance.choice(places)
    kind = chance.choice(["value", "value", "number", "copy", "remove", "inner"])
    if kind == "inner" and key == "hwbmpq" and isinstance(holder[key], str):  # JSON in a string of the JSON
        holder[key] = _changed_text(holder[key].encode(), chance).decode()
    elif kind == "remove":
        del holder[key]
    elif kind == "copy":
        other, name = chance.choice(places)
        holder[key] = copy.deepcopy(other[name])
    elif kind == "number" and type(holder[key]) in (int, float):
        holder[key] = chance.choice([holder[key] + 1, holder[key] - 1, holder[key] * 2, holder[key] // 2])
    else:
        holder[key] = copy.deepcopy(chance.choice(NASTY))


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys."""
    found: list[tuple[Any, Any]] = []
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            found += [(content, key), *_places(content[key])]
    return found
