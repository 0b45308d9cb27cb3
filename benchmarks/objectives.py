"""Which objective allocates best without training: accuracy after each at equal weight memory.

ResNet-20 on CIFAR-10 (weights and images from the folder HWBMPQ_DATA names), weights quantized at {2, 4, 8} bits per tensor,
ends at 16 bits, activations in float, nothing trained or re-estimated afterwards. So only the allocation differs.

    HWBMPQ_DATA=data python benchmarks/objectives.py
"""

import argparse
import copy
import json
import os
import platform
from pathlib import Path

import numpy as np
import torch
from torch import nn

import hwbmpq
from hwbmpq.allocate import solve, values_for
from hwbmpq.values import Precision

WIDTHS = (2, 4, 8)
METHODS = ("enbg", "weight_error", "hessian_trace", "uniform")
PAIRS = [
    ("linear", "enbg"),
    ("linear", "uniform"),
    ("error", "enbg"),
    ("error", "weight_error"),
    ("hawq", "hessian_trace"),
]
MEAN, STD = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bits", type=float, nargs="+", default=[3.0, 4.0, 5.0], help="average weight widths"
    )
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--images", type=int, default=256, help="for the calibration pass")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/objectives.json"))
    args = parser.parse_args()
    folder = Path(os.environ["HWBMPQ_DATA"])
    model = hwbmpq.models.load_model("hwbmpq:resnet20", weights=folder.parent / "weights/cifar10_resnet20.pt")
    network = model.network.eval()
    graph = hwbmpq.describe(network, model.example_input())
    choices = {
        layer.name: tuple(
            Precision(weight_bits=bits, activation_bits=32) for bits in ((16,) if layer.is_end else WIDTHS)
        )
        for layer in graph
    }
    data = hwbmpq.data.load_images(
        f"npz:{folder / 'cifar10.npz'}", input_size=model.input_size, count=args.images
    )
    sensitivities = {
        method: hwbmpq.pipeline.measure(network, graph, [choices], data, method=method) for method in METHODS
    }
    test = _test_images(folder, args.test_images)
    memory = {
        layer.name: {p: p.weight_bits * layer.parameters for p in choices[layer.name]} for layer in graph
    }
    results = {"float": _accuracy(network, test)}
    print(f"float {results['float']:.1%}")
    free = sum(layer.parameters for layer in graph if not layer.is_end)
    ends = sum(max(memory[layer.name].values()) for layer in graph if layer.is_end)
    for average in args.bits:
        for objective, method in PAIRS:
            values = values_for(sensitivities[method], choices, objective)
            allocation = solve(values, {"memory": memory}, {"memory": ends + average * free}, graph.ties)
            accuracy = _quantized_accuracy(network, graph, allocation.bits, test)
            results[f"{objective} ({method}) at {average:g} bits"] = accuracy
            print(f"{average:g} bits  {objective:8}{method:15}{accuracy:.1%}", flush=True)
    facts = {"test_images": args.test_images, "calibration_images": args.images, "torch": torch.__version__}
    args.output.write_text(
        json.dumps({"machine": platform.machine(), **facts, "accuracy": results}, indent=2) + "\n"
    )


def _test_images(folder: Path, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(folder / "cifar10.npz") as arrays:
        images, labels = arrays["x_test"][:count], arrays["y_test"][:count]
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return (pixels - MEAN) / STD, torch.from_numpy(labels.astype(np.int64)).flatten()


def _accuracy(network: nn.Module, test: tuple[torch.Tensor, torch.Tensor]) -> float:
    with torch.no_grad():
        hits = sum(
            int((network(images).argmax(1) == labels).sum())
            for images, labels in zip(test[0].split(250), test[1].split(250), strict=True)
        )
    return hits / len(test[1])


def _quantized_accuracy(
    network: nn.Module, graph: object, bits: object, test: tuple[torch.Tensor, torch.Tensor]
) -> float:
    copied = copy.deepcopy(network)
    hwbmpq.quant.prepare(copied, graph)  # type: ignore[arg-type]
    hwbmpq.quant.assign(copied, bits)
    return _accuracy(copied.eval(), test)


if __name__ == "__main__":
    main()
