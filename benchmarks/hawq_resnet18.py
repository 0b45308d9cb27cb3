"""HAWQ-V3's integer program for ResNet18 on a T4, solved by this allocator.

Each layer takes 4 or 8 bits; Σ trace · ‖W - Q(W)‖² is minimised while a cost stays below C4 + f (C8 - C4). Prints a
Markdown table: the proven optimum beside the assignment that the HAWQ repository trains with.

    python benchmarks/hawq_resnet18.py [--solver auto] [--json FILE]

Sources: Yao et al., HAWQ-V3, ICML 2021 (arXiv:2011.10680); https://github.com/Zhen-Dong/HAWQ (MIT):
ILP.ipynb (commit 1616df69fdd99f100a8d8a6e78742e0a89292634) for the numbers, bit_config.py (commit
800ed9c170ac0b8ca75022ec382093e4785c4198) for the assignments. The first convolution and the last layer are not part
of it. The notebook says of latencies only that they were "measured
on T4 GPU"; milliseconds are presumed. Its array "bops" holds MACs; bit operations are MACs · w · a.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from hwbmpq.allocate import Allocation, solve


@dataclass(frozen=True)
class Layer:
    name: str
    parameters: int
    macs: int
    trace: float
    """Average Hessian trace, by Hutchinson's method."""
    error_4: float
    """Squared distance of the weights to their quantized values at 4 bits."""
    error_8: float
    latency_4: float
    latency_8: float


LAYERS = (
    Layer("layer1.0.conv1", 36864, 115605504, 0.06857826, 6.743, 0.0235, 0.21094404, 0.36189111),
    Layer("layer1.0.conv2", 36864, 115605504, 0.03162379, 3.9691, 0.0125, 0.21092674, 0.36211718),
    Layer("layer1.1.conv1", 36864, 115605504, 0.03298575, 3.3281, 0.0102, 0.21104113, 0.31141909),
    Layer("layer1.1.conv2", 36864, 115605504, 0.01205663, 2.6796, 0.0082, 0.21086851, 0.30454471),
    Layer("layer2.0.conv1", 73728, 57802752, 0.02222431, 4.7277, 0.0145, 0.13642465, 0.19184896),
    Layer("layer2.0.conv2", 147456, 115605504, 0.00596336, 10.5966, 0.0344, 0.19167506, 0.38948934),
    Layer("layer2.0.downsample.0", 8192, 6422528, 0.06931772, 0.6827, 0.0023, 0.02532183, 0.0334169),
    Layer("layer2.1.conv1", 147456, 115605504, 0.00807129, 9.0942, 0.0287, 0.19148203, 0.38904905),
    Layer("layer2.1.conv2", 147456, 115605504, 0.00372905, 4.8857, 0.0148, 0.19142914, 0.3892859),
    Layer("layer3.0.conv1", 294912, 57802752, 0.00530698, 10.7599, 0.0333, 0.11395316, 0.19134735),
    Layer("layer3.0.conv2", 589824, 115605504, 0.00209011, 21.7546, 0.0682, 0.20556011, 0.34307431),
    Layer("layer3.0.downsample.0", 32768, 6422528, 0.00737569, 0.8603, 0.0027, 0.01917474, 0.02802354),
    Layer("layer3.1.conv1", 589824, 115605504, 0.00210454, 14.5324, 0.0448, 0.20566918, 0.34313329),
    Layer("layer3.1.conv2", 589824, 115605504, 0.00151197, 10.9651, 0.0336, 0.20566509, 0.34310756),
    Layer("layer4.0.conv1", 1179648, 57802752, 0.00158041, 18.7706, 0.0576, 0.13185102, 0.21117103),
    Layer("layer4.0.conv2", 2359296, 115605504, 0.00078146, 36.4044, 0.113, 0.22287786, 0.37376585),
    Layer("layer4.0.downsample.0", 131072, 6422528, 0.00451841, 3.1572, 0.0102, 0.01790088, 0.02896843),
    Layer("layer4.1.conv1", 2359296, 115605504, 0.00098745, 29.6994, 0.0947, 0.22304611, 0.37398187),
    Layer("layer4.1.conv2", 2359296, 115605504, 0.00072944, 17.4016, 0.0532, 0.22286099, 0.37405185),
)
TIES = (
    ("layer2.0.conv1", "layer2.0.downsample.0"),
    ("layer3.0.conv1", "layer3.0.downsample.0"),
    ("layer4.0.conv1", "layer4.0.downsample.0"),
)
SHARES = (0.25, 0.5, 0.75)
# bit_config.py, bit_config_resnet18_*: the widths of LAYERS, in order.
PUBLISHED = {
    ("size", 0.75): "8888 888 88 888 84 888 84",
    ("size", 0.5): "8888 888 88 888 88 848 44",
    ("size", 0.25): "8888 888 88 888 88 444 44",
    ("bops", 0.75): "8888 888 84 888 84 848 84",
    ("bops", 0.5): "8884 888 84 888 44 444 44",
    ("bops", 0.25): "8884 848 44 444 44 444 44",
    ("latency", 0.75): "8888 888 84 888 84 848 84",
    ("latency", 0.5): "8888 848 84 888 44 848 44",
    ("latency", 0.25): "8884 848 44 444 44 444 44",
}
VALUES = {layer.name: {4: -layer.trace * layer.error_4, 8: -layer.trace * layer.error_8} for layer in LAYERS}
COSTS: dict[str, dict[str, dict[int, float]]] = {
    "size": {layer.name: {bits: layer.parameters * bits for bits in (4, 8)} for layer in LAYERS},
    "bops": {layer.name: {bits: layer.macs * bits * bits for bits in (4, 8)} for layer in LAYERS},
    "latency": {layer.name: {4: layer.latency_4, 8: layer.latency_8} for layer in LAYERS},
}
UNITS = {"size": (8 * 2**20, "MiB"), "bops": (1e9, "G"), "latency": (1, "ms")}


def limit(cost: str, share: float) -> float:
    """C4 + share · (C8 - C4)."""
    at_4, at_8 = (sum(numbers[bits] for numbers in COSTS[cost].values()) for bits in (4, 8))
    return at_4 + share * (at_8 - at_4)


def solve_under(*costs: str, share: float, solver: str = "auto") -> Allocation:
    """The least perturbation under limits on some of the costs; the objective is its negative."""
    return solve(VALUES, COSTS, {cost: limit(cost, share) for cost in costs}, ties=TIES, solver=solver)


def published_bits(cost: str, share: float) -> dict[str, int]:
    widths = PUBLISHED[cost, share].replace(" ", "")
    return {layer.name: int(width) for layer, width in zip(LAYERS, widths, strict=True)}


def perturbation(bits: dict[str, int]) -> float:
    return -sum(VALUES[name][width] for name, width in bits.items())


def total(cost: str, bits: dict[str, int]) -> float:
    return sum(COSTS[cost][name][width] for name, width in bits.items())


def pattern(bits: dict[str, int]) -> str:
    """Widths in the layers' order, a space between the blocks."""
    widths = "".join(str(bits[layer.name]) for layer in LAYERS)
    groups = [4, 3, 2, 3, 2, 3, 2]
    starts = [sum(groups[:position]) for position in range(len(groups))]
    return " ".join(widths[start : start + size] for start, size in zip(starts, groups, strict=True))


def results(solver: str = "auto") -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    cases = [(cost,) for cost in COSTS] + [tuple(COSTS)]
    for costs in cases:
        for share in SHARES:
            allocation = solve_under(*costs, share=share, solver=solver)
            bits = {name: int(width) for name, width in allocation.bits.items()}  # type: ignore[call-overload]
            theirs = published_bits(costs[0], share) if len(costs) == 1 else None
            found.append(
                {
                    "limits": {cost: limit(cost, share) for cost in costs},
                    "share": share,
                    "bits": pattern(bits),
                    "costs": {cost: total(cost, bits) for cost in COSTS},
                    "perturbation": perturbation(bits),
                    "proven": bool(allocation.optimal),
                    "published_bits": pattern(theirs) if theirs else None,
                    "published_perturbation": perturbation(theirs) if theirs else None,
                    "published_costs": {cost: total(cost, theirs) for cost in costs} if theirs else None,
                }
            )
    return found


def markdown(found: list[dict[str, object]]) -> str:
    lines = [
        "| limit on | f | limit | ours: cost | Σ trace·‖ΔW‖² | bits | published: cost | Σ trace·‖ΔW‖² | same bits |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        limits: dict[str, float] = row["limits"]  # type: ignore[assignment]
        costs: dict[str, float] = row["costs"]  # type: ignore[assignment]
        theirs: dict[str, float] = row["published_costs"] or {}  # type: ignore[assignment]
        lines.append(
            f"| {', '.join(limits) if len(limits) < 3 else 'all three'} | {row['share']} "
            f"| {_shown(limits)} | {_shown({cost: costs[cost] for cost in limits})} "
            f"| {row['perturbation']:.6f} | `{row['bits']}` | {_shown(theirs) or '-'} | "
            + (f"{row['published_perturbation']:.6f}" if theirs else "-")
            + f" | {'-' if not theirs else 'yes' if row['bits'] == row['published_bits'] else 'no'} |"
        )
    return "\n".join(lines)


def _shown(numbers: dict[str, float]) -> str:
    digits = {"size": 3, "bops": 3, "latency": 5}
    return ", ".join(
        f"{number / UNITS[cost][0]:.{digits[cost]}f} {UNITS[cost][1]}" for cost, number in numbers.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "hawq_resnet18.json")
    args = parser.parse_args()
    found = results(args.solver)
    print(markdown(found))
    source = {
        "repository": "https://github.com/Zhen-Dong/HAWQ",
        "commits": {
            "ILP.ipynb": "1616df69fdd99f100a8d8a6e78742e0a89292634",
            "bit_config.py": "800ed9c170ac0b8ca75022ec382093e4785c4198",
        },
        "paper": "HAWQ-V3, ICML 2021, arXiv:2011.10680",
    }
    args.json.write_text(json.dumps({"source": source, "results": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
