"""Accuracy without any training: plain rounding against ``post_training``, at equal weight memory.

ResNet-20 on CIFAR-10 (weights and images from the folder HWBMPQ_DATA names), weights at {2, 4, 8} bits per channel, ends at
8 bits, all activations at 8 bits. The budget is the average width times all weights. Plain: clipping points are calibrated,
weights rounded by the ordinary quantizer. Both use the same calibration images; seconds are those of sensitivity, allocation and
rounding together.

    HWBMPQ_DATA=data python benchmarks/post_training.py
"""

import argparse
import copy
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.allocate import greedy_fill, random_fill, solve, values_for
from hwbmpq.quant import assign, prepare
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.training.ptq.calibration import calibrate_inputs
from hwbmpq.training.ptq.run import post_training
from hwbmpq.values import Precision

WIDTHS = (2, 4, 8)
PAIRS = (("error", "enbg"), ("error", "weight_error"), ("linear", "enbg"))
SENSITIVITY_IMAGES = 256
MEAN, STD = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
Images = tuple[Tensor, Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bits", type=float, nargs="+", default=[3.0, 4.0, 5.0], help="average widths")
    parser.add_argument("--images", type=int, default=1024, help="to calibrate on")
    parser.add_argument("--test-images", type=int, default=5000)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/post_training.json"))
    args = parser.parse_args()
    folder = Path(os.environ["HWBMPQ_DATA"])
    bench = Bench(folder, _images(folder, "train", args.images), _images(folder, "test", args.test_images))
    rows: list[dict[str, Any]] = [{"allocation": "float", "post_training": bench.accuracy(bench.network)}]
    print(rows[0])
    for bits in args.bits:
        for name, allocate in bench.allocators().items():
            rows.append({"average_bits": bits, "allocation": name, **bench.row(allocate, bits)})
            print(rows[-1], flush=True)
    facts = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "calibration_images": args.images,
        "test_images": args.test_images,
    }
    args.output.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n")


class Bench:
    """The network, its candidates and costs, and the images."""

    def __init__(self, folder: Path, calibration: Images, test: Images) -> None:
        weights = folder.parent / "weights/cifar10_resnet20.pt"
        model = hwbmpq.models.load_model("hwbmpq:resnet20", weights=weights)
        self.network = model.network.eval()
        self.graph = hwbmpq.describe(self.network, model.example_input())
        self.calibration, self.test = calibration, test
        self.choices = {
            layer.name: tuple(
                Precision(weight_bits=bits, activation_bits=8) for bits in ((8,) if layer.is_end else WIDTHS)
            )
            for layer in self.graph
        }
        self.memory = {
            layer.name: {p: p.weight_bits * layer.parameters for p in self.choices[layer.name]}
            for layer in self.graph
        }

    def allocators(self) -> dict[str, Callable[[Mapping[str, float]], Any]]:
        """By name: from budgets to an allocation."""
        found: dict[str, Callable[[Mapping[str, float]], Any]] = {
            f"{objective} ({method})": lambda budgets, pair=(objective, method): solve(
                self._values(*pair), {"memory": self.memory}, budgets, self.graph.ties
            )
            for objective, method in PAIRS
        }
        costs = {"memory": self.memory}
        found["random"] = lambda budgets: random_fill(self.choices, costs, budgets, self.graph.ties, seed=0)
        sizes = {layer.name: layer.parameters for layer in self.graph}
        found["small layers first"] = lambda budgets: greedy_fill(
            self.choices, costs, budgets, self.graph.ties, sizes=sizes
        )
        return found

    def _values(self, objective: str, method: str) -> Any:
        images, labels = (part[:SENSITIVITY_IMAGES].split(16) for part in self.calibration)
        sensitivity = measure_sensitivity(
            self.network,
            self.graph,
            list(zip(images, labels, strict=True)),
            method=method,
            precisions={name: options[-1] for name, options in self.choices.items()},
            widths={name: [p.weight_bits for p in options] for name, options in self.choices.items()},
            per_channel=True,
        )
        return values_for(sensitivity, self.choices, objective)

    def row(self, allocate: Callable[[Mapping[str, float]], Any], bits: float) -> dict[str, Any]:
        start = time.perf_counter()
        allocation = allocate({"memory": bits * self.graph.weights})
        rounded = self._quantized(allocation)
        post_training(rounded, self.calibration[0].split(128))
        seconds = time.perf_counter() - start
        plain = self._quantized(allocation)
        calibrate_inputs(plain, self.calibration[0].split(128))
        return {
            "plain": self.accuracy(plain),
            "post_training": self.accuracy(rounded),
            "seconds": round(seconds, 1),
            "memory_bits": allocation.costs["memory"],
            "weight_bits": [precision.weight_bits for precision in allocation.bits.values()],
        }

    def _quantized(self, allocation: Any) -> nn.Module:
        network = prepare(copy.deepcopy(self.network), self.graph, per_channel=True)
        return assign(network, allocation)

    def accuracy(self, network: nn.Module) -> float:
        with torch.no_grad():
            hits = sum(
                int((network(images).argmax(1) == labels).sum())
                for images, labels in zip(self.test[0].split(250), self.test[1].split(250), strict=True)
            )
        return hits / len(self.test[1])


def _images(folder: Path, part: str, count: int) -> Images:
    with np.load(folder / "cifar10.npz") as arrays:
        images, labels = arrays[f"x_{part}"][:count], arrays[f"y_{part}"][:count]
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return (pixels - MEAN) / STD, torch.from_numpy(labels.astype(np.int64)).flatten()


if __name__ == "__main__":
    main()
