"""Without training: ``--calibrate fast`` and ``best``, a trained ResNet-20 on CIFAR-10 at several budgets.

    HWBMPQ_DATA=data python benchmarks/calibrated.py

Widths {2, 4, 8} on ``mpic``, 8-bit activations and ends. Nothing is chosen by the 5,000 test images: each network is measured
on them once. Runs that the results hold are not repeated.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from trained import resnet20_settings

import hwbmpq
from hwbmpq.measure.kit_runner import machine_facts

BITS = (2.5, 3.0, 4.0)


def run(bits: float, calibrate: str, seed: int) -> dict[str, Any]:
    settings = resnet20_settings(
        target="mpic",
        bits=(2, 4, 8),
        activation_bits=8,
        budgets={"weight_memory": f"{bits}b/weight"},
        epochs=0,
        calibrate=calibrate,
        seed=seed,
    )
    data = hwbmpq.data.open_data(settings.data).sized((3, 32, 32), seed=0)
    network = hwbmpq.models.load_model(settings.model, num_classes=10, weights=settings.weights).network
    start = time.process_time()
    result = hwbmpq.pipeline.compress(network, data, settings)
    return {
        "bits": bits,
        "calibrate": calibrate,
        "seed": seed,
        "accuracy": result.evaluation.value,
        "float": result.progress.float_accuracy,
        "images": result.evaluation.images,
        "widths": {name: str(width) for name, width in result.decisions[-1].after.items()},
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def show(runs: list[dict[str, Any]]) -> None:
    for bits, calibrate in sorted({(one["bits"], one["calibrate"]) for one in runs}):
        found = [
            100 * one["accuracy"] for one in runs if (one["bits"], one["calibrate"]) == (bits, calibrate)
        ]
        spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
        print(f"{bits} bits, {calibrate}: {statistics.mean(found):.2f}{spread} % ({len(found)} seeds)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/calibrated.json"))
    args = parser.parse_args()
    done = json.loads(args.output.read_text())["runs"] if args.output.exists() else []
    known = {(one["bits"], one["calibrate"], one["seed"]) for one in done}
    for seed in args.seeds:
        for bits in BITS:
            for calibrate in ("fast", "best"):
                if (bits, calibrate, seed) in known:
                    continue
                done.append(run(bits, calibrate, seed))
                print(done[-1] | {"widths": "…"}, flush=True)
                facts = {
                    "machine": machine_facts(),
                    "threads": torch.get_num_threads(),
                    "torch": torch.__version__,
                }
                args.output.write_text(json.dumps({**facts, "runs": done}, indent=1) + "\n")
    show(done)


if __name__ == "__main__":
    main()
