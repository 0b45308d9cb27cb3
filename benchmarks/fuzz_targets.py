"""What ``fuzz.py`` lets be read, what it begins with, and how it changes JSON."""

import copy
import json
import random
import re
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

ZEROS = b"0" * 64
BETWEEN = b"\n\0\n"
"""Stands between the header and the tensors of a packed file that is still to get its length and checksum."""
Read = Callable[[bytes], None]
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


# what is read, and with what to begin


def profile(folder: Path) -> tuple[Read, list[bytes]]:
    from hwbmpq.costs import check_cost_models
    from hwbmpq.hardware import check_profile, shipped_folder

    path = folder / "fuzzed.yaml"
    (folder / "tables").mkdir()
    for table in (shipped_folder() / "tables").glob("*.json"):
        (folder / "tables" / table.name).write_bytes(table.read_bytes())
    texts = [file.read_text() for file in sorted(shipped_folder().glob("*.yaml"))]
    seeds = [re.sub(r"^name: .*$", "name: fuzzed", text, flags=re.MULTILINE).encode() for text in texts]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        check_cost_models(check_profile(path))

    return read, seeds


def packed(folder: Path) -> tuple[Read, list[bytes]]:
    import torch
    from torch import nn

    import hwbmpq
    from hwbmpq.export import save_packed
    from hwbmpq.quant import assign, prepare

    def network() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(96, 5)
        )

    path, seeds = folder / "fuzzed.safetensors", []
    for bits in (2, 3, 8):
        model = network()
        images = torch.randn(4, 3, 8, 8)
        prepare(model, hwbmpq.describe(model, images[:1]), precision=bits, per_channel=bits == 3)
        assign(model, {"4": (32, 4)})
        model(images)
        save_packed(
            model, path, example_input=images[:1], origin={"model": "hwbmpq:resnet8", "num_classes": 5}
        )
        whole = path.read_bytes()
        length = int.from_bytes(whole[:8], "little")
        header = re.sub(rb'(?<="blake2b":")[0-9a-f]{64}', ZEROS, whole[8 : 8 + length], count=1)
        seeds += [b"\1" + header + BETWEEN + whole[8 + length :], b"\0" + whole]

    def read(data: bytes) -> None:
        path.write_bytes(_sealed(data[1:]) if data[:1] and data[0] % 4 else data[1:])
        hwbmpq.load(path, network())

    return read, seeds


def _sealed(data: bytes) -> bytes:
    header, _, body = data.partition(BETWEEN)
    whole = len(header).to_bytes(8, "little") + header + body
    return whole.replace(ZEROS, blake2b(whole, digest_size=32).hexdigest().encode(), 1)


def budget(folder: Path) -> tuple[Read, list[bytes]]:
    from hwbmpq.cli.options.settings import read_budgets
    from hwbmpq.costs import cost_models, parse_budget

    costs = sorted(cost_models())
    texts = "350KiB 1.5MB 12x 8ms 250us 40uJ 1.2mJ 30% 30GBOP 3e9 1_000kB .5s 4Mbit 10.5×".split()
    seeds = [
        bytes([number % 256]) + f"{cost}={text}".encode()
        for number, cost in enumerate(costs)
        for text in texts
    ]

    def read(data: bytes) -> None:
        text = data[1:].decode("utf-8", "surrogateescape")
        if data[:1] and data[0] % 2:
            parse_budget(costs[data[0] // 2 % len(costs)], text)
        for name, amount in read_budgets(text.split("\n")).items():
            parse_budget(name, amount)

    return read, seeds


def kit(folder: Path) -> tuple[Read, list[bytes]]:
    from hwbmpq.measure import (
        DEFAULT_WIDTHS,
        Measurement,
        kit_runner,
        layer_kernels,
        read_results,
        write_profile,
    )
    from hwbmpq.measure.manifest import kernel_files
    from hwbmpq.testing import conv_layer

    place = folder / "kit"
    place.mkdir()
    layers = [conv_layer(4, 4, size=6, padding=(1, 1), dilation=(1, 1))]
    kernels = layer_kernels([layers], DEFAULT_WIDTHS)
    for name, content in kernel_files(kernels, widths=DEFAULT_WIDTHS, models=["tiny"]):
        (place / name).write_bytes(content)
    results = kit_runner.measure(place, rounds=kit_runner.FEWEST_ROUNDS, threads=1)
    path = folder / "results.json"

    def read(data: bytes) -> None:
        content = data[1:]
        if data[:1] and data[0] % 4:
            content = _signed(content, kit_runner.digest)
        path.write_bytes(content)
        write_profile(
            Measurement.of(read_results(path)), "fuzzed", folder=folder / "profiles", overwrite=True
        )

    texts = [json.dumps(content).encode() for content in (results, _fewer_kernels(results))]
    return read, [b"\0" + texts[0], *(b"\1" + text for text in texts)]


def _fewer_kernels(results: dict[str, Any]) -> dict[str, Any]:
    """The same with few operations between layers, so that a change finds the rest."""
    kept = [
        entry
        for entry in results["manifest"]["kernels"]
        if not re.match("operation0(0[4-9]|[1-9])", entry["id"])
    ]
    times = {entry["id"]: results["times"][entry["id"]] for entry in kept}
    return {**results, "manifest": {**results["manifest"], "kernels": kept}, "times": times}


def _signed(content: bytes, digest: Callable[[Any], str]) -> bytes:
    try:
        data = json.loads(content)
        return json.dumps(
            {**data, "sha256": digest({k: v for k, v in data.items() if k != "sha256"})}
        ).encode()
    except (ValueError, TypeError, RecursionError, AttributeError):
        return content


TARGETS = {"profile": profile, "packed": packed, "budget": budget, "kit": kit}


# changes


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
