"""Who decides widths, everything else being equal: BMPQ's default against other methods, trained from given weights.

    HWBMPQ_DATA=data python benchmarks/methods.py --seeds 0 1 2

ResNet-20 on CIFAR-10, 8-bit activations, widths {2, 4, 8} and 8-bit ends on ``mpic``; every run is calibrated and trained by the
default recipe, one epoch of 5,000 images. The same budgets of weight memory for all; ``uniform`` is the widest single width
that fits, and AD, which keeps no budget, is met by BMPQ at AD's own size. Figures are of the 4,000 test images that choose
nothing. Runs that the results hold are not repeated.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from trained import resnet20_settings, split_test_images

import hwbmpq
from hwbmpq.measure.kit_runner import machine_facts

BUDGETS = ("2.2b/weight", "2.5b/weight", "3b/weight")
METHODS: dict[str, dict[str, Any]] = {
    "BMPQ": {},
    "random": {"method": "random"},
    "greedy": {"method": "greedy"},
    "HAWQ": {"method": "hawq"},
}
UNIFORM = {"method": "hpq", "bits": (2,)}


def run(name: str, budget: str | float, seed: int, given: dict[str, Any]) -> dict[str, Any]:
    own = {
        "target": "mpic",
        "bits": (2, 4, 8),
        "activation_bits": 8,
        "epochs": 1,
        "train_images": 5_000,
        "seed": seed,
    }
    budgets = {} if given.get("method") in ("hpq", "ad") else {"budgets": {"weight_memory": budget}}
    settings = resnet20_settings(**{**own, **budgets, **given})
    data = hwbmpq.data.open_data(settings.data).sized((3, 32, 32), train_limit=settings.train_images, seed=0)
    network = hwbmpq.models.load_model(settings.model, num_classes=10, weights=settings.weights).network
    result = hwbmpq.pipeline.compress(network, split_test_images(data), settings)
    assert result.plan is not None
    layers = result.plan.layers
    stored = sum(layer.parameters * layer.precision.weight_bits for layer in layers)
    return {
        "method": name,
        "budget": budget,
        "seed": seed,
        "accuracy": result.evaluation.value,
        "float": result.progress.float_accuracy,
        "weight_memory": stored,
        "average_bits": stored / sum(layer.parameters for layer in layers),
        "widths": {layer.name: str(layer.precision) for layer in layers},
    }


class Results:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []

    def get(self, name: str, budget: str | float, seed: int, given: dict[str, Any]) -> dict[str, Any]:
        for one in self.runs:
            if (one["method"], one["budget"], one["seed"]) == (name, budget, seed):
                return one
        self.runs.append(run(name, budget, seed, given))
        print({key: value for key, value in self.runs[-1].items() if key != "widths"}, flush=True)
        facts = {
            "machine": machine_facts(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        self._path.write_text(json.dumps({**facts, "runs": self.runs}, indent=1) + "\n")
        return self.runs[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/methods.json"))
    args = parser.parse_args()
    results = Results(args.output)
    for seed in args.seeds:
        for budget in BUDGETS:
            for name, given in METHODS.items():
                results.get(name, budget, seed, given)
        results.get("uniform", "2 bits", seed, UNIFORM)
        ad = results.get("AD", "none", seed, {"method": "ad"})
        results.get("BMPQ at AD's size", "AD's", seed, {"budgets": {"weight_memory": ad["weight_memory"]}})


if __name__ == "__main__":
    main()
