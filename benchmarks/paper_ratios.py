"""The paper's compression ratios: what its formula gives for the layer-wise bit widths of its Table 1.

Prints a Markdown table, our value beside the paper's. Compression ratio r32 = 32 * sum(p) / sum(p * q) over the
layers' weights p and widths q (paper, section 4); downsample layers have the width of the layer that feeds them.

    python benchmarks/paper_ratios.py
"""

from dataclasses import dataclass

import hwbmpq
from hwbmpq.values import Precision


@dataclass(frozen=True)
class BudgetRow:
    dataset: str
    network: str
    papers_ratio: float
    bits: str
    """Of the layers on the main path, in order."""


CLASSES = {"CIFAR-10": 10, "CIFAR-100": 100, "Tiny-ImageNet": 200}
INPUT_SIZE = {"CIFAR-10": (3, 32, 32), "CIFAR-100": (3, 32, 32), "Tiny-ImageNet": (3, 64, 64)}
# Kundu et al., BMPQ, DATE 2022 (arXiv:2112.13843), Table 1.
TABLE_1 = (
    BudgetRow("CIFAR-10", "vgg16", 10.5, "16 4 4 4 4 4 4 4 4 4 2 2 2 2 4 16"),
    BudgetRow("CIFAR-10", "vgg16", 15.4, "16 4 2 4 4 2 2 2 2 2 2 2 2 2 2 16"),
    BudgetRow("CIFAR-10", "resnet18", 13.4, "16 2 2 4 2 4 4 2 2 4 4 4 2 2 2 2 2 16"),
    BudgetRow("CIFAR-100", "vgg16", 14.6, "16 4 4 4 4 2 4 2 2 2 2 2 2 2 4 16"),
    BudgetRow("CIFAR-100", "vgg16", 15.4, "16 4 2 4 4 2 2 2 2 2 2 2 2 2 2 16"),
    BudgetRow("CIFAR-100", "resnet18", 9.4, "16 2 2 4 2 4 4 4 2 4 4 2 4 4 4 4 2 16"),
    BudgetRow("Tiny-ImageNet", "vgg16", 10.0, "16 4 4 4 4 4 4 2 4 4 2 2 4 2 4 16"),
    BudgetRow("Tiny-ImageNet", "resnet18", 8.8, "16 2 2 2 2 2 2 2 2 2 2 2 4 4 4 4 4 16"),
)


def ratio(row: BudgetRow, tie: str = "input") -> float:
    """The compression ratio of one row, counted by the cost model ``weight_memory``, the paper's formula."""
    model = hwbmpq.models.load_model(
        f"hwbmpq:{row.network}",
        num_classes=CLASSES[row.dataset],
        input_size=INPUT_SIZE[row.dataset],
        device="meta",
    )
    graph = hwbmpq.describe(model.network, model.example_input(), tie=tie)
    allocation = widths_by_layer(graph, [int(width) for width in row.bits.split()])
    table = hwbmpq.costs.get_cost_model("weight_memory").tabulate(
        graph, hwbmpq.load_profile("generic"), {name: [width] for name, width in allocation.items()}
    )
    return 32 * graph.weights / table.total(allocation)


def widths_by_layer(graph: hwbmpq.LayerGraph, bits: list[int]) -> dict[str, Precision]:
    """The paper lists the layers of the main path; a downsample layer follows its tie."""
    partner = {follower: group.layers[0] for group in graph.ties for follower in group.layers[1:]}
    listed = [layer.name for layer in graph if layer.name not in partner]
    found = {
        name: Precision(weight_bits=width, activation_bits=width)
        for name, width in zip(listed, bits, strict=True)
    }
    return {layer.name: found.get(layer.name) or found[partner[layer.name]] for layer in graph}


def markdown() -> str:
    lines = ["| dataset | network | paper | formula | difference |", "| --- | --- | --- | --- | --- |"]
    for row in TABLE_1:
        ours = ratio(row)
        lines.append(
            f"| {row.dataset} | {row.network} | {row.papers_ratio:.1f} | {ours:.2f} "
            f"| {ours / row.papers_ratio - 1:+.1%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
