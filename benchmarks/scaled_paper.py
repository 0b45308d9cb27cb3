"""The paper's tables, scaled to two cores: VGG16 at a quarter of its width, a tenth of the epochs, part of CIFAR-10.

    python benchmarks/scaled_paper.py --data npz:cifar10.npz -o benchmarks/results/scaled_paper.json

Every run is one of the recipes (``hwbmpq compress --recipe``), with fewer epochs and images and batches of 64; networks of this size
learn little in the few steps that batches of 128 would leave. Runs that the file holds already are not repeated. Columns
are the paper's: Table 1 (float, BMPQ at two budgets, and HPQ beside them) and Table 2 (AD against BMPQ after three fifths of the
epochs); the ENBG of every decision is kept for the ranking that the paper's Figure 3 shows.
"""

import argparse
import json
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import nn

import hwbmpq
from hwbmpq.measure.kit_runner import machine_facts
from hwbmpq.models.vgg import SmallImageVGG

SHRINK = 4
EPOCHS = 20
SCALED = {"epochs": EPOCHS, "train_images": 16_000, "batch_size": 64, "lr": 0.05}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "Full precision": ("bmpq-cifar10-vgg16", {"method": "fp32"}),
    "BMPQ": ("bmpq-cifar10-vgg16", {}),
    "BMPQ, small": ("bmpq-cifar10-vgg16-small", {}),
    "AD": ("ad-cifar10-vgg16", {"epochs": EPOCHS * 3 // 5}),
    "HPQ, 4 bits": ("bmpq-cifar10-vgg16", {"method": "hpq", "bits": (4,)}),
    "HPQ, 2 bits": ("bmpq-cifar10-vgg16", {"method": "hpq", "bits": (2,)}),
}


def network() -> nn.Module:
    return SmallImageVGG(10, shrink=SHRINK)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="npz:FILE or cifar10")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    content = json.loads(args.output.read_text()) if args.output.exists() else {"runs": []}
    content |= {"machine": machine_facts(), "scaled": {"shrink": SHRINK, **SCALED}}
    for seed in args.seeds:
        for name in RUNS:
            if any((run["name"], run["seed"]) == (name, seed) for run in content["runs"]):
                continue
            content["runs"].append(run(name, seed, args.data))
            print(f"{name}, seed {seed}: {content['runs'][-1]['accuracies'][-1]:.2%}", flush=True)
            args.output.write_text(json.dumps(content, indent=1) + "\n")
    print("\n\n".join(tables(content).values()))


def run(name: str, seed: int, data: str) -> dict[str, Any]:
    recipe, changes = RUNS[name]
    given = {**hwbmpq.training.get_paper_recipe(recipe).settings, "data": data, **SCALED, **changes}
    settings = hwbmpq.training.resolve_settings({**given, "seed": seed}, recipe=recipe)
    images = hwbmpq.data.open_data(data).sized((3, 32, 32), train_limit=settings.train_images, seed=0)
    torch.manual_seed(seed)
    start = time.perf_counter()
    result = hwbmpq.pipeline.compress(network(), images, settings)
    plan = result.plan
    return {
        "name": name,
        "seed": seed,
        "accuracies": [record["test_accuracy"] for record in result.progress.records],
        "widths": None if plan is None else [layer.precision.weight_bits for layer in plan.layers],
        "ratio": None
        if plan is None
        else 32
        * sum(layer.parameters for layer in plan.layers)
        / sum(layer.parameters * layer.precision.weight_bits for layer in plan.layers),
        "decisions": [
            {"epoch": d.epoch, "moves": len(d.moves), "enbg": dict(d.sensitivities)} for d in result.decisions
        ],
        "seconds": round(time.perf_counter() - start),
    }


def tables(content: dict[str, Any]) -> dict[str, str]:
    """Markdown by name, from what was measured."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for entry in content["runs"]:
        by_name.setdefault(entry["name"], []).append(entry)
    return {"table 1": _table_1(by_name), "table 2": _table_2(by_name), "ranking": _ranking(by_name)}


def _percent(runs: list[dict[str, Any]], epoch: int = 0) -> str:
    """Mean and range over the seeds, after an epoch or at the end."""
    found = [100 * run["accuracies"][epoch - 1] for run in runs]
    return f"{statistics.mean(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def _table_1(by_name: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "| dataset | model | run | layer-wise bit width (first seed) | test acc (%) | compression ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in ("Full precision", "BMPQ", "BMPQ, small", "HPQ, 4 bits", "HPQ, 2 bits"):
        runs = by_name[name]
        widths = runs[0]["widths"]
        shown = "32" if widths is None else f"`{' '.join(map(str, widths))}`"
        ratios = sorted({f"{run['ratio'] or 1:.1f}" for run in runs})
        lines.append(
            f"| CIFAR-10, scaled | VGG16, quarter width | {name} | {shown} | {_percent(runs)} | {' / '.join(ratios)}x |"
        )
    return "\n".join(lines)


def _table_2(by_name: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "| model | dataset | AD acc (%) | AD ratio | BMPQ run | BMPQ acc (%) | improved compression |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    ad = by_name["AD"]
    ad_ratio = statistics.mean(run["ratio"] for run in ad)
    for name in ("BMPQ", "BMPQ, small"):
        improved = statistics.mean(run["ratio"] for run in by_name[name]) / ad_ratio
        lines.append(
            f"| VGG16, quarter width | CIFAR-10, scaled | {_percent(ad)} | {ad_ratio:.1f}x | {name} "
            f"| {_percent(by_name[name], EPOCHS * 3 // 5)} | {improved:.1f}x |"
        )
    return "\n".join(lines)


def _ranking(by_name: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "| run, seed | decided after epoch | rank correlation with the decision before | layers that moved |",
        "| --- | --- | --- | --- |",
    ]
    for name in ("BMPQ", "BMPQ, small"):
        for entry in by_name[name]:
            decisions = entry["decisions"]
            agreement = [
                f"{rank_correlation(before['enbg'], after['enbg']):.2f}"
                for before, after in pairwise(decisions)
            ]
            epochs = ", ".join(str(decision["epoch"]) for decision in decisions)
            moves = ", ".join(str(decision["moves"]) for decision in decisions)
            lines.append(f"| {name}, {entry['seed']} | {epochs} | ·, {', '.join(agreement)} | {moves} |")
    return "\n".join(lines)


def rank_correlation(before: dict[str, float], after: dict[str, float]) -> float:
    """Spearman's: 1 for the same order of the layers, 0 for unrelated orders."""
    return float(spearmanr(list(before.values()), [after[name] for name in before]).statistic)


if __name__ == "__main__":
    main()
