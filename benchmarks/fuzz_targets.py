"""What ``fuzz.py`` lets be read of profiles, packed files, budgets and kits, and what it begins with."""

import json
import re
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fuzz_changes import BETWEEN

ZEROS = b"0" * 64
Read = Callable[[bytes], None]


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
