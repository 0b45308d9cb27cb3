"""A training step under DDP: float against W4A4 with bit gradients; the part of scale.py that needs several processes.

ResNet-20 on images of 32x32, gloo, one thread and the same batch size for each rank. Inside a process, float and quantized
networks, each as it is and under DDP, take turns; ratios are medians over the rounds, as rank 0 sees them. "Extra" is what
DDP adds to a quantized step beyond what it adds to one in float.

    python benchmarks/scale_ddp.py          # prints JSON
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn

import hwbmpq
from hwbmpq import distributed

BATCH, ROUNDS = 32, 60
Rounds = dict[str, list[float]]


def make_step(kind: str, is_wrapped: bool) -> Callable[[], None]:
    """One whole training step of a network of its own."""
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    network = hwbmpq.models.load_model("hwbmpq:resnet20", seed=0).network.train()
    allocator = None
    if kind == "w4a4":
        options: dict[str, Any] = {"target": "generic", "bits": (2, 4), "activation_bits": "same"}
        allocator = hwbmpq.BitAllocator(network, images[:1], epochs=2, **options)
        assert str(allocator.bits["layer1.0.conv1"]) == "W4A4"
    forward = nn.parallel.DistributedDataParallel(network) if is_wrapped else network
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        nn.functional.cross_entropy(forward(images), labels).backward()
        if allocator is not None:
            # Without DDP a network trains for itself: there is nothing to agree on with other ranks.
            with mock.patch.object(distributed, "is_distributed", return_value=is_wrapped):
                allocator.step()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure_rank() -> Rounds:
    """Milliseconds of each kind of step, by round."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    is_distributed = "RANK" in os.environ
    if is_distributed:
        torch.distributed.init_process_group("gloo")
    kinds = [
        (kind, wrapped)
        for kind in ("float", "w4a4")
        for wrapped in ([False, True] if is_distributed else [False])
    ]
    steps = {kind + " ddp" * wrapped: make_step(kind, wrapped) for kind, wrapped in kinds}
    found: Rounds = {name: [] for name in steps}
    for turn in range(hwbmpq.quant.CALIBRATION_BATCHES + 1 + ROUNDS):
        for name, step in steps.items():
            if is_distributed:
                torch.distributed.barrier()
            start = time.perf_counter()
            step()
            if turn > hwbmpq.quant.CALIBRATION_BATCHES:  # past the initialisation of α
                found[name].append(1e3 * (time.perf_counter() - start))
    if is_distributed:
        torch.distributed.destroy_process_group()
    return found


def figures_of(rounds: Rounds) -> dict[str, Any]:
    """Medians, and medians of the ratios inside the rounds."""

    def ratio(above: str, below: str) -> float | None:
        if above not in rounds or below not in rounds:
            return None
        return statistics.median(a / b for a, b in zip(rounds[above], rounds[below], strict=True))

    def added(kind: str) -> list[float]:
        return [a - b for a, b in zip(rounds[f"{kind} ddp"], rounds[kind], strict=True)]

    figures: dict[str, Any] = {f"{name}_ms": statistics.median(ms) for name, ms in rounds.items()}
    figures["quantized"] = ratio("w4a4", "float")
    figures["quantized ddp"] = ratio("w4a4 ddp", "float ddp")
    figures["ddp of float"] = ratio("float ddp", "float")
    figures["ddp of w4a4"] = ratio("w4a4 ddp", "w4a4")
    if "float ddp" in rounds:
        extra = [q - f for q, f in zip(added("w4a4"), added("float"), strict=True)]
        low, figures["extra_ms"], high = statistics.quantiles(extra, n=4)
        figures["extra_quartiles_ms"] = [low, high]
        figures["extra"] = statistics.median(e / f for e, f in zip(extra, rounds["float ddp"], strict=True))
    return figures


def run(count: int) -> Rounds:
    """Start so many ranks; 0 is a process without a group. What the first of them measures."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    processes = []
    for rank in range(max(count, 1)):
        role = {"RANK": str(rank), "WORLD_SIZE": str(count), **place} if count else {}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **role}
        command = [sys.executable, __file__, "--rank"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{count} ranks: one of them failed")
    found: Rounds = json.loads(outputs[0].splitlines()[-1])
    return found


def main() -> None:
    if "--rank" in sys.argv:
        print(json.dumps(measure_rank()))
        return
    runs = []
    for count in (0, 1, 2):
        rounds = run(count)
        runs.append({"ranks": count, "batch": BATCH, **figures_of(rounds), "rounds_ms": rounds})
    print(json.dumps({"runs": runs}))


if __name__ == "__main__":
    main()
