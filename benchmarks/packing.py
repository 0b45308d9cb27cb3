"""Speed of packing and unpacking weights at every width, and time and size of whole packed files.

Speeds are counted twice: in bytes of the packed weights, and in bytes of the float32 weights that they stand for.
Each figure is the best of several rounds on one thread. Files are those of a network with random weights, its inner
layers at 2 or 4 bits at random, the ends at 16.

    python benchmarks/packing.py [--rounds 5] [--model timm:resnet18] [--json FILE]
"""

import argparse
import json
import platform
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import hwbmpq
from hwbmpq.export import pack, predicted_size, save_packed, unpack
from hwbmpq.quant import assign, prepare

COUNT = 1 << 24
"""Weights packed at once; more than any cache holds."""


def best_seconds(work: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure_width(bits: int, rounds: int) -> dict[str, float]:
    top = 2 ** (bits - 1) - 1
    values = np.random.default_rng(0).integers(-top, top + 1, COUNT)
    codes = values.astype(np.int8 if bits <= 8 else np.int16)
    packed = pack(codes, bits)
    assert np.array_equal(unpack(packed, bits, COUNT), codes)
    found: dict[str, float] = {"bits": bits}
    for name, work in (
        ("pack", lambda: pack(codes, bits)),
        ("unpack", lambda: unpack(packed, bits, COUNT)),
    ):
        seconds = best_seconds(work, rounds)
        found[f"{name}_mb_s"] = round(packed.nbytes / seconds / 1e6)
        found[f"{name}_float32_mb_s"] = round(4 * COUNT / seconds / 1e6)
    return found


def measure_file(spec: str, per_channel: bool, rounds: int) -> dict[str, object]:
    loaded = hwbmpq.models.load_model(spec, num_classes=1000, seed=0)
    example = torch.zeros(1, *loaded.input_size)
    graph = hwbmpq.describe(loaded.network, example)
    choose = random.Random(0)
    widths = {layer.name: 16 if layer.is_end else choose.choice([2, 4]) for layer in graph}
    predicted = predicted_size(loaded.network, graph, widths, per_channel=per_channel)
    model = assign(prepare(loaded.network, graph, per_channel=per_channel), widths).eval()
    origin = {"model": spec, "num_classes": 1000, "input_size": loaded.input_size}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        account = save_packed(model, path, example_input=example, origin=origin)
        save = best_seconds(lambda: save_packed(model, path, example_input=example, origin=origin), rounds)
        load = best_seconds(lambda: hwbmpq.load(path), rounds)
        build = best_seconds(lambda: hwbmpq.models.load_model(spec, num_classes=1000, seed=0), rounds)
        size = path.stat().st_size
    return {
        "model": spec,
        "per_channel": per_channel,
        "file_bytes": size,
        "predicted_bytes": predicted.predicted_bytes,
        "save_s": round(save, 3),
        "load_s": round(load, 3),
        "of_that_building_the_float_network_s": round(build, 3),
        "lines": account.to_dict()["lines"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="timm:resnet18")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    widths = [measure_width(bits, args.rounds) for bits in range(2, 17)]
    for found in widths:
        print(
            f"{found['bits']:2} bits: pack {found['pack_mb_s']} MB/s of packed bytes, "
            f"{found['pack_float32_mb_s']} of float32; unpack {found['unpack_mb_s']}, "
            f"{found['unpack_float32_mb_s']}"
        )
    files = [measure_file(args.model, per_channel, args.rounds) for per_channel in (False, True)]
    for file in files:
        print(
            f"{file['model']}, a scale per {'channel' if file['per_channel'] else 'tensor'}: {file['file_bytes']} bytes, "
            f"predicted {file['predicted_bytes']}; saved in {file['save_s']} s, loaded in {file['load_s']} s"
        )
    if args.json:
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "threads": 1,
            "numpy": np.__version__,
            "torch": torch.__version__,
        }
        content = {
            "machine": machine,
            "rounds": args.rounds,
            "weights": COUNT,
            "widths": widths,
            "files": files,
        }
        args.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
