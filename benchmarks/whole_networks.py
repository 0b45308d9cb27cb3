"""Whether a memory budget counts the whole network: networks beyond plain CNNs, predicted and packed, to the byte.

Each network gets widths for a budget half-way between its smallest and its largest memory on the profile ``generic``, by
random sensitivities. ``memory`` is the figure that the budget bounds; the packed file holds that, and its header.

    python benchmarks/whole_networks.py [-o benchmarks/results/whole_networks.json]
"""

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from networks import NETWORKS, build
from scale import machine, markdown
from torch import nn

import hwbmpq
from hwbmpq.allocate import solve, values_for
from hwbmpq.data.inputs import tensors
from hwbmpq.export import save_packed
from hwbmpq.hardware import load_profile
from hwbmpq.quant import assign, prepare
from hwbmpq.search.space import SearchSpace, build_search_space
from hwbmpq.values import Sensitivity

TARGET = "generic"


def measure(
    name: str, *, per_channel: bool = False, target: str = TARGET, **candidates: Any
) -> dict[str, Any]:
    """Coverage of one network, what its memory was predicted to be, and what its packed file takes.

    ``candidates``: ``bits``, ``keep_float`` and the like, as ``build_search_space`` takes them.
    """
    example = build(name)
    graph = hwbmpq.describe(example.model, example.args).with_scales(per_channel=per_channel)
    space = half_way(graph, target, **candidates)
    bits = _widths(space)
    prepare(example.model, graph, per_channel=per_channel)
    assign(example.model, space.as_trained(bits))
    with torch.no_grad():
        example.model(*example.args)  # clipping points begin with what they see
        expected = list(tensors(example.model(*example.args)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        account = save_packed(example.model, path, example_input=example.args)
        file_bytes = path.stat().st_size
        loaded = hwbmpq.load(path, model=build(name).model)
    return {
        "network": name,
        "parameters": graph.parameters,
        "covered_parameters": graph.weights / graph.parameters,
        "covered_macs": graph.layer_macs / graph.macs,
        "budget_bytes": space.limits["memory"] / 8,
        "weight_bits": {layer: precision.weight_bits for layer, precision in bits.items()},
        "memory_bytes": space.costs.table("memory").total(bits) / 8,
        "file_bytes": file_bytes,
        "lines": {line.label: line.actual_bytes for line in account.lines},
        "loaded_is_equal": _equals(loaded, example.args, expected),
    }


def half_way(graph: hwbmpq.LayerGraph, target: str, **candidates: Any) -> SearchSpace:
    """The network on a device under a budget in the middle of its range."""
    profile = load_profile(target)
    whole = build_search_space(graph, profile, {"memory": "100%"}, **candidates)
    smallest, largest = whole.costs.smallest_and_largest("memory")
    return build_search_space(graph, profile, {"memory": (smallest + largest) / 2}, **candidates)


def _widths(space: SearchSpace) -> dict[str, hwbmpq.Precision]:
    draw = random.Random(0)
    scores = {layer.name: draw.random() for layer in space.graph}
    values = values_for(Sensitivity(method="random", scores=scores), space.choices, "linear")
    return dict(solve(values, space.costs.tables, space.limits, space.graph.ties).bits)


def _equals(model: nn.Module, args: tuple[torch.Tensor, ...], expected: list[torch.Tensor]) -> bool:
    with torch.no_grad():
        found = list(tensors(model.eval()(*args)))
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def tables(content: dict[str, Any]) -> dict[str, str]:
    """The networks down; coverage and bytes across."""
    head = [
        "network",
        "parameters",
        "of them quantized",
        "of the MACs",
        "`memory`, bytes",
        "header, bytes",
        "file, bytes",
    ]
    rows = [
        [
            row["network"],
            f"{row['parameters']:,}",
            f"{row['covered_parameters']:.1%}",
            f"{row['covered_macs']:.1%}",
            f"{row['memory_bytes']:,.0f}",
            f"{row['lines']['file header']:,}",
            f"{row['file_bytes']:,}",
        ]
        for row in content["networks"]
    ]
    return {"bytes": markdown(head, rows)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/whole_networks.json"))
    args = parser.parse_args()
    rows = []
    for name in NETWORKS:
        rows.append(measure(name))
        print(rows[-1], flush=True)
    content = {"machine": machine(), "target": TARGET, "networks": rows}
    args.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
