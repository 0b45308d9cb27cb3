"""Allocations at equal weight memory: the search of each tool, on one trained network, from tight budgets to loose ones.

    HWBMPQ_DATA=data python benchmarks/peers/allocation.py -o benchmarks/results/peers_allocation.json

Each tool searches in a process of its own, one thread, and is judged twice: with its own quantizer, and with the same
quantizers for all, so that only the widths differ. README.md says how to install the tools.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from tables import allocation

BUDGETS = (2.5, 3.0, 3.5, 4.0, 5.0)
OTHERS = ("ModelOpt", "MCT", "AIMET")
DEFAULT = "hwbmpq error"
PACKAGES = ("torch", "nvidia-modelopt", "model-compression-toolkit", "aimet-torch", "hwbmpq")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tools", nargs="+", help="only these, into a file that has the others")
    parser.add_argument(
        "--costs", action="store_true", help="only measure again, on a quiet machine, what each search costs"
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--search", nargs=2, metavar=("TOOL", "ACTIVATION_BITS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.search:
        _search_here(*args.search, output=args.output, budgets=BUDGETS[:1] if args.costs else BUDGETS)
        return
    import hwbmpq

    hwbmpq.keep_freed_memory()
    content = json.loads(args.output.read_text()) if args.output.exists() else {"rows": []}
    if args.costs:
        _measure_costs(content, args.output)
        return
    for tool in args.tools or _tools():
        content["rows"] = [row for row in content["rows"] if row["tool"] != tool]
        # With quantized activations only what is usual: the question there is the tools' own result.
        for activation_bits in (None, 8) if tool in (*OTHERS, DEFAULT) else (None,):
            content["rows"] += _judged(_search_apart(tool, activation_bits, args.output), content["rows"])
            _save(content, args.output)
    print("\n\n".join(allocation(content).values()))


def _tools() -> list[str]:
    from hwbmpq_search import WAYS

    return [*OTHERS, *(f"hwbmpq {way}" for way in WAYS)]


def _measure_costs(content: dict[str, Any], output: Path) -> None:
    """One tool after the other, the rest of the rows as they are."""
    for tool in _tools():
        (row, *_) = _search_apart(tool, None, output, "--costs")
        for known in content["rows"]:
            if (known["tool"], known["activation_bits"]) == (tool, None):
                known["search"] = row["search"]
        print(tool, row["search"], flush=True)
    _save(content, output)


def _save(content: dict[str, Any], path: Path) -> None:
    from task import accuracy, test_images, trained_network

    from hwbmpq.measure.kit_runner import machine_facts

    content.setdefault("float_accuracy", accuracy(trained_network(), test_images()))
    content["machine"] = machine_facts()
    content["packages"] = {name: metadata.version(name) for name in PACKAGES}
    path.write_text(json.dumps(content, indent=1) + "\n")


def _search_apart(tool: str, activation_bits: int | None, output: Path, *more: str) -> list[dict[str, Any]]:
    part = output.with_suffix(".part")
    activations = str(activation_bits or "float")
    command = [sys.executable, __file__, "--search", tool, activations, "-o", str(part), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if ended.returncode:
        raise SystemExit(f"{tool}: {ended.stderr[-2000:]}")
    rows: list[dict[str, Any]] = json.loads(part.read_text())
    part.unlink()
    return rows


def _search_here(tool: str, activations: str, *, output: Path, budgets: Sequence[float]) -> None:
    import torch

    import hwbmpq
    from hwbmpq.data.torchvision_import import import_torchvision

    import_torchvision()  # MCT and AIMET import it
    hwbmpq.keep_freed_memory()  # for all of them: it is the process that gets faster, not the tool
    torch.set_num_threads(1)
    activation_bits = None if activations == "float" else int(activations)
    searched = _tool(tool)(budgets, activation_bits)
    rows = [
        {"tool": tool, "activation_bits": activation_bits, **asdict(found), "search": asdict(searched.cost)}
        for found in searched.results
    ]
    output.write_text(json.dumps(rows))


def _judged(rows: list[dict[str, Any]], known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the accuracies of the common quantizers, unless activations are quantized."""
    from same_quantizer import judge

    for row in rows:
        if row["activation_bits"] is None:
            same = (other for other in known if other["widths"] == row["widths"] and "common" in other)
            row["common"] = next((other["common"] for other in same), None) or judge(row["widths"])
        print({name: value for name, value in row.items() if name != "widths"}, flush=True)
    return rows


def _tool(name: str) -> Callable[..., Any]:
    if name == "ModelOpt":
        from modelopt_search import search
    elif name == "MCT":
        from mct_search import search
    elif name == "AIMET":
        from aimet_search import search
    else:
        from hwbmpq_search import searches

        return searches()[name.removeprefix("hwbmpq ")]
    return search


if __name__ == "__main__":
    main()
