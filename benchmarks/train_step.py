"""Time of one training step (forward and backward), float against W4A4.

Both networks run in turn inside one process, so that a noisy machine slows both alike; the figure is the
median of the per-round ratios.

    python benchmarks/train_step.py [--rounds 15] [--threads 2] [--json FILE]
"""

import argparse
import copy
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import nn

import hwbmpq

CASES = (
    # model, input, batch size
    ("hwbmpq:resnet20", (3, 32, 32), 128),
    ("timm:resnet18", (3, 224, 224), 8),
)


def step_seconds(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    start = time.perf_counter()
    loss = nn.functional.cross_entropy(network(images), labels)
    loss.backward()
    seconds = time.perf_counter() - start
    network.zero_grad(set_to_none=True)
    return seconds


def measure(spec: str, size: tuple[int, ...], batch: int, rounds: int) -> dict[str, object]:
    model = hwbmpq.models.load_model(spec, num_classes=10, input_size=size)
    images, labels = torch.randn(batch, *size), torch.randint(10, (batch,))
    plain = model.network.train()
    quantized = copy.deepcopy(plain)
    graph = hwbmpq.describe(quantized, images)
    hwbmpq.quant.prepare(quantized, graph, precision=4, end_precision=None)
    for _ in range(hwbmpq.quant.CALIBRATION_BATCHES + 1):  # past the initialisation of α
        step_seconds(quantized, images, labels)
    step_seconds(plain, images, labels)
    pairs = []
    for turn in range(rounds):
        order = (plain, quantized) if turn % 2 else (quantized, plain)
        seconds = {id(network): step_seconds(network, images, labels) for network in order}
        pairs.append((seconds[id(plain)], seconds[id(quantized)]))
    return {
        "model": spec,
        "input": list(size),
        "batch": batch,
        "float_ms": round(1e3 * statistics.median(p for p, _ in pairs), 2),
        "w4a4_ms": round(1e3 * statistics.median(q for _, q in pairs), 2),
        "ratio": round(statistics.median(q / p for p, q in pairs), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--default-malloc", action="store_true", help="do not ask the C library to keep freed memory"
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    keeps = not args.default_malloc and hwbmpq.keep_freed_memory()
    print(f"freed memory is {'kept' if keeps else 'returned to the system'}, {args.threads} threads")
    results = []
    for spec, size, batch in CASES:
        result = measure(spec, size, batch, args.rounds)
        results.append(result)
        print(
            f"{result['model']} batch {batch}: float {result['float_ms']} ms, W4A4 {result['w4a4_ms']} ms, "
            f"median ratio {result['ratio']}"
        )
    if args.json:
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "threads": args.threads,
            "keeps_freed_memory": keeps,
            "torch": torch.__version__,
        }
        args.json.write_text(
            json.dumps({"machine": machine, "rounds": args.rounds, "results": results}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
