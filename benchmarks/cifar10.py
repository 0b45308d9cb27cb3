"""BMPQ against float, uniform widths, AD, HAWQ and controls on CIFAR-10, at one budget, schedule and set of seeds.

    python benchmarks/cifar10.py resnet20 --data npz:cifar10.npz --weights cifar10_resnet20.pt --json FILE
    python benchmarks/cifar10.py resnet8 --data npz:cifar10.npz --json FILE

``resnet20`` starts from trained float weights, ``resnet8`` from scratch. The budget is half way between all inner
layers at 2 and all at 4 bits: an average of 3. Runs that FILE holds already are not repeated, so that a
stopped benchmark goes on where it was.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import hwbmpq

CASES: dict[str, dict[str, Any]] = {
    "resnet20": {"epochs": 4, "train_images": 4_864, "lr": 0.02, "lr_schedule": "cosine"},
    "resnet8": {"epochs": 10, "train_images": 5_120, "lr": 0.1, "lr_schedule": "cosine"},
}
METHODS: dict[str, dict[str, Any]] = {
    "float": {"method": "fp32"},
    "uniform 4": {"method": "hpq", "bits": (4,)},
    "BMPQ": {"method": "bmpq", "bits": (2, 4)},
    "BMPQ, decided once": {"method": "bmpq", "bits": (2, 4), "decide_after": (1,)},
    "uniform 2": {"method": "hpq", "bits": (2,)},
    "random": {"method": "random", "bits": (2, 4)},
    "AD": {"method": "ad"},
    "AD from 4 bits": {"method": "ad", "bits": (2, 3, 4)},
    "greedy (smallest first)": {"method": "greedy", "bits": (2, 4)},
    "reversed ENBG": {"method": "reversed", "bits": (2, 4)},
    "HAWQ": {"method": "hawq", "bits": (2, 4)},
    "BMPQ, objective error": {"method": "bmpq", "bits": (2, 4), "objective": "error"},
}


def half_way(spec: str) -> float:
    """Memory in bits of the network with its inner layers at 3 bits on average."""
    model = hwbmpq.models.load_model(spec, num_classes=10)
    graph = hwbmpq.describe(model.network, model.example_input())
    space = hwbmpq.pipeline.build_search_space(
        graph,
        hwbmpq.load_profile("generic"),
        {"weight_memory": "100%"},
        bits=(2, 4),
        activation_bits="same",
    )
    return sum(space.costs.smallest_and_largest("weight_memory")) / 2


def run(args: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    settings = hwbmpq.training.resolve_settings(
        {
            "model": f"hwbmpq:{args.network}",
            "target": "generic",
            "budgets": {"weight_memory": half_way(f"hwbmpq:{args.network}")},
            "activation_bits": args.activation_bits,
            "data": args.data,
            "weights": args.weights,
            "seed": seed,
            "batch_size": 128,
            **CASES[args.network],
            **METHODS[name],
        }
    )
    opened = hwbmpq.data.open_data(settings.data)
    model = hwbmpq.models.load_model(
        settings.model, num_classes=opened.classes, weights=settings.weights, seed=seed
    )
    data = opened.sized(model.input_size, train_limit=settings.train_images, seed=0)
    start = time.perf_counter()
    result = hwbmpq.pipeline.compress(model.network, data, settings)
    plan = result.plan
    inner = [] if plan is None else plan.layers[1:-1]  # these networks have one first and one last layer
    return {
        "method": name,
        "seed": seed,
        "activation_bits": args.activation_bits,
        "accuracy": result.evaluation.accuracy,
        "mean_bits": sum(layer.parameters * layer.precision.weight_bits for layer in inner)
        / max(1, sum(layer.parameters for layer in inner)),
        "memory_bits": None if plan is None else plan.costs["weight_memory"].total,
        "widths": [layer.precision.weight_bits for layer in inner],
        "decisions": [
            {"epoch": d.epoch, "moves": len(d.moves), "enbg": dict(d.sensitivities)} for d in result.decisions
        ],
        "seconds": round(time.perf_counter() - start, 1),
    }


def table(runs: list[dict[str, Any]]) -> str:
    lines = ["| method | accuracy | mean bits | runs |", "| --- | --- | --- | --- |"]
    for name in METHODS:
        own = [entry for entry in runs if entry["method"] == name]
        if own:
            accuracies = [100 * entry["accuracy"] for entry in own]
            spread = f" ± {statistics.stdev(accuracies):.2f}" if len(own) > 1 else ""
            bits = statistics.mean(entry["mean_bits"] for entry in own)
            shown = f"{bits:.2f}" if bits else "32"
            lines.append(f"| {name} | {statistics.mean(accuracies):.2f}{spread} % | {shown} | {len(own)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=sorted(CASES))
    parser.add_argument("--data", required=True, help="npz:FILE or cifar10")
    parser.add_argument("--weights", help="float weights to start from")
    parser.add_argument("--activation-bits", default="same")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    if args.activation_bits.isdigit():
        args.activation_bits = int(args.activation_bits)
    if args.weights:
        CASES[args.network]["weights"] = args.weights
    content = json.loads(args.json.read_text()) if args.json.exists() else {"runs": []}
    for seed in args.seeds:
        for name in args.methods:
            key = (name, seed, args.activation_bits)
            if any((r["method"], r["seed"], r["activation_bits"]) == key for r in content["runs"]):
                continue
            entry = run(args, name, seed)
            print(f"{name}, seed {seed}: {entry['accuracy']:.2%} in {entry['seconds']} s", flush=True)
            content["runs"].append(entry)
            content["case"] = {"network": args.network, **CASES[args.network], "weights": bool(args.weights)}
            content["machine"] = {
                "cpu": platform.processor() or platform.machine(),
                "torch": torch.__version__,
            }
            args.json.write_text(json.dumps(content, indent=1) + "\n")
    print(table(content["runs"]))


if __name__ == "__main__":
    main()
