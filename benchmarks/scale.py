"""Time and memory of inspect, cost tables, plan and frontier against the size of a network; steps under DDP.

Networks are residual ones on the meta device: 20 to 2,000 layers, and 50 layers with up to 300 million weights. Every
stage of every network is measured in a process of its own (scale_stage.py), which runs it on a small network first:
seconds are the median of several runs, memory is what the first run adds at its peak to the process. Slopes are those of a
least-squares line through the logarithms; 1 is linear. scale_ddp.py has the training steps.

    python benchmarks/scale.py -o benchmarks/results/scale.json [--only layers parameters commands ddp]
"""

import argparse
import importlib.metadata
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LAYERS = (20, 60, 200, 600, 2000)
WIDTHS = (16, 40, 96, 192, 336)
DEPTH = 50
"""Layers of the networks that grow in width."""
TARGET = "gap9_ne16"
STAGES = ("inspect", "costs", "plan", "plan, two budgets", "frontier")
LEAST_BYTES = 2**18
"""Peaks below are noise, and in no slope."""


def answer(script: str, *arguments: object) -> dict[str, Any]:
    """What a fresh process measures."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=settings, check=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def measure_family(sizes: list[tuple[int, int]], by: str) -> dict[str, Any]:
    networks = []
    for layers, width in sizes:
        stages = {name: answer("scale_stage.py", TARGET, name, layers, width) for name in STAGES}
        size = {key: stages[STAGES[0]][key] for key in ("layers", "parameters")}
        networks.append({**size, "stages": stages})
        print(networks[-1], flush=True)
    return {"networks": networks, "slopes": {name: slopes(networks, name, by) for name in STAGES}}


def slopes(networks: list[dict[str, Any]], name: str, by: str) -> dict[str, Any]:
    """For the figures of a stage that are worth one; ``tail``: through the three largest networks only."""
    found: dict[str, Any] = {}
    for figure in ("seconds", "solver_s", "rest_s", "rest_without_gc_s", "peak_bytes"):
        points = [(x[by], x["stages"][name][figure]) for x in networks if figure in x["stages"][name]]
        points = [(size, y) for size, y in points if y > (LEAST_BYTES if figure == "peak_bytes" else 0)]
        if len(points) > 2:
            found[figure] = {"all": slope(points), "tail": slope(points[-3:])}
    return found


def slope(points: list[tuple[float, float]]) -> float:
    fitted = statistics.linear_regression(
        *([math.log(n) for n in axis] for axis in zip(*points, strict=True))
    )
    return round(fitted.slope, 3)


def measure_commands() -> list[dict[str, Any]]:
    """The three commands on the largest network, as a person would call them."""
    model = ["--model", f"file:{HERE / 'scale_stage.py'}:largest", "--input", "3x32x32"]
    command = [sys.executable, "-m", "hwbmpq", "inspect", *model, "--json"]
    graph = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    generator = random.Random(0)
    scores = {layer["name"]: generator.lognormvariate(0, 2) for layer in graph["layers"]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.json"
        path.write_text(json.dumps(scores))
        device = ["--target", TARGET, "--sensitivity", str(path)]
        lines = {
            "inspect": ["inspect", *model],
            "plan --brief": ["plan", *model, *device, "--budget", "memory=10x", "--brief"],
            "plan": ["plan", *model, *device, "--budget", "memory=10x"],
            "frontier": ["frontier", *model, *device, "--no-plot"],
        }
        return [{"command": name, **measure_command(line)} for name, line in lines.items()]


def measure_command(line: list[str]) -> dict[str, Any]:
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "hwbmpq", *line], stdout=subprocess.DEVNULL, env=settings
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"hwbmpq {line[0]} failed")
    return {"seconds": time.perf_counter() - start, "peak_bytes": usage.ru_maxrss * 1024}


def tables(content: dict[str, Any]) -> dict[str, str]:
    """Markdown, by the part of the content that it shows."""
    makers = {
        "layers": lambda part: family_table(part, "layers"),
        "parameters": lambda part: family_table(part, "parameters"),
        "commands": commands_table,
        "ddp": ddp_table,
    }
    return {name: make(content[name]) for name, make in makers.items() if name in content}


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seconds_text(seconds: float) -> str:
    return (
        f"{1e3 * seconds:.1f} ms"
        if seconds < 0.1
        else f"{seconds:.2f} s"
        if seconds < 10
        else f"{seconds:.0f} s"
    )


def family_table(family: dict[str, Any], by: str) -> str:
    """Sizes across, stages down; seconds with the peak of memory behind them."""
    sizes = [f"{x[by]:,}" if by == "layers" else f"{x[by] / 1e6:.1f} M" for x in family["networks"]]
    rows = []
    for name in STAGES:
        found = [x["stages"][name] for x in family["networks"]]
        fits = family["slopes"][name]
        parts = {"rest_s": f"{name}: all but the solver", "solver_s": f"{name}: solver"}
        parts["rest_without_gc_s"] = f"{name}: all but solver and garbage collector"
        shown = {figure: title for figure, title in parts.items() if all(figure in x for x in found)}
        for figure, title in (shown or {"seconds": name}).items():
            rows.append([title, *(seconds_text(x[figure]) for x in found), *fit_texts(fits.get(figure))])
        peaks = [f"{x['peak_bytes'] / 2**20:.1f} MiB" for x in found]
        rows.append([f"{name}: peak memory", *peaks, *fit_texts(fits.get("peak_bytes"))])
    return markdown(["", *sizes, "slope", "of the last three"], rows)


def fit_texts(fit: dict[str, float] | None) -> list[str]:
    return [f"{fit[part]:.2f}" if fit else "·" for part in ("all", "tail")]


def commands_table(commands: list[dict[str, Any]]) -> str:
    rows = [
        [f"`hwbmpq {x['command']}`", seconds_text(x["seconds"]), f"{x['peak_bytes'] / 2**20:.0f} MiB"]
        for x in commands
    ]
    return markdown(["command", "time", "peak memory"], rows)


def ddp_table(runs: list[dict[str, Any]]) -> str:
    def text(run: dict[str, Any], name: str, form: str) -> str:
        return "·" if run.get(name) is None else form.format(run[name])

    rows = []
    for run in runs:
        ranks = f"{run['ranks']} rank{'s' * (run['ranks'] > 1)}" if run["ranks"] else "no process group"
        times = [text(run, f"{name}_ms", "{:.0f} ms") for name in ("float", "float ddp", "w4a4", "w4a4 ddp")]
        names = ("ddp of float", "ddp of w4a4", "quantized", "quantized ddp")
        extra = text(run, "extra_ms", "{:+.1f} ms") + text(
            run, "extra_quartiles_ms", " ({0[0]:+.1f} to {0[1]:+.1f})"
        )
        rows.append([ranks, *times, *(text(run, name, "{:.2f}") for name in names), extra.replace("··", "·")])
    head = ["", "float", "float, DDP", "W4A4", "W4A4, DDP"]
    head += [
        "DDP / plain, float",
        "DDP / plain, W4A4",
        "W4A4 / float",
        "W4A4 / float, DDP",
        "added (quartiles)",
    ]
    return markdown(head, rows)


def machine() -> dict[str, Any]:
    from hwbmpq.measure.kit_runner import machine_facts

    packages = ("hwbmpq", "torch", "pyomo", "highspy", "networkx")
    return {**machine_facts(), "packages": {name: importlib.metadata.version(name) for name in packages}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON; what it holds and is not measured now stays")
    parts = {
        "layers": lambda: measure_family([(layers, WIDTHS[0]) for layers in LAYERS], "layers"),
        "parameters": lambda: measure_family([(DEPTH, width) for width in WIDTHS], "parameters"),
        "commands": measure_commands,
        "ddp": lambda: answer("scale_ddp.py")["runs"],
    }
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    args = parser.parse_args()
    content = json.loads(args.output.read_text()) if args.output and args.output.exists() else {}
    content |= {"machine": machine(), "target": TARGET}
    content |= {name: parts[name]() for name in args.only}
    for table in tables(content).values():
        print(table, end="\n\n")
    if args.output:
        args.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
