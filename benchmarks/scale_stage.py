"""One stage on one network, in a fresh process: the part of scale.py that measures. Prints JSON.

Memory is what the first run adds to the process at its peak: VmHWM, reset before, less VmRSS before (Linux).

    python benchmarks/scale_stage.py gap9_ne16 inspect 200 16      # device, stage, layers, channels of the stem
"""

import ctypes
import gc
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hwbmpq
from hwbmpq import pipeline
from hwbmpq.values import Sensitivity

SHARES = (0.25, 0.5, 0.75)
"""Of the way from the smallest to the largest cost: the budgets of a plan."""
SECONDS = 4.0
"""For the repetitions, of which there are at most nine."""


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.downsample(x))


def residual(layers: int, width: int = 16) -> nn.Module:
    """A residual network of so many layers: a stem, three stages, two downsample layers, and a head."""
    count = (layers - 4) // 2
    channels = [width, *(width * 2 ** (3 * block // count) for block in range(count))]
    blocks = [Block(*pair) for pair in itertools.pairwise(channels)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 10)]
    return nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), *blocks, *head)


def largest() -> nn.Module:
    """For the commands: ``--model file:scale_stage.py:largest``."""
    return residual(2000)


def on_meta(layers: int, width: int) -> tuple[nn.Module, torch.Tensor]:
    with torch.device("meta"):
        return residual(layers, width), torch.empty(1, 3, 32, 32)


def stage(target: str, name: str, layers: int, width: int) -> Callable[[], dict[str, Any]]:
    """What to time, with all that it needs at hand."""
    network, images = on_meta(layers, width)
    if name == "inspect":
        return lambda: {"layers found": len(hwbmpq.describe(network, images))}
    graph = hwbmpq.describe(network, images)
    profile = hwbmpq.load_profile(target)
    if name == "costs":  # a copy has not computed its schedule yet
        return lambda: {"costs": list(hwbmpq.costs.tabulate(replace(graph), profile).tables)}
    space = pipeline.build_search_space(graph, profile, {"memory": "100%"})
    sensitivity = Sensitivity(method="given", scores=scores([x.name for x in graph]))
    if name == "frontier":

        def trade_off() -> dict[str, Any]:
            found = pipeline.trade_off(space, sensitivity, ["memory"])
            return {"points": len(found), "is_exact": found.is_exact}

        return trade_off
    costs, shares = (["memory"], SHARES) if name == "plan" else (["memory", "latency"], SHARES[1:2])
    ranges = {cost: space.costs.smallest_and_largest(cost) for cost in costs}
    budgets = [{cost: low + share * (high - low) for cost, (low, high) in ranges.items()} for share in shares]

    def plan() -> dict[str, Any]:
        plans = [
            pipeline.plan(
                pipeline.build_search_space(graph, profile, budget), sensitivity, with_explanation=False
            )
            for budget in budgets
        ]
        solver = sum(found.allocation.seconds for found in plans)
        return {"solver_s": solver, "are_optimal": all(found.allocation.optimal for found in plans)}

    return plan


def scores(names: list[str]) -> dict[str, float]:
    generator = random.Random(0)
    return {name: generator.lognormvariate(0, 2) for name in names}


def memory(field: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def measure(target: str, name: str, layers: int, width: int) -> dict[str, Any]:
    stage(target, name, 20, 16)()  # imports, caches of torch
    run = stage(target, name, layers, width)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not serve unseen
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    seconds, solver, facts = [], [], {}
    while not seconds or (sum(seconds) < SECONDS and len(seconds) < 9):
        start = time.perf_counter()
        facts = run()
        seconds.append(time.perf_counter() - start)
        solver.append(facts.pop("solver_s", 0.0))
        if len(seconds) == 1:
            peak = memory("VmHWM") - before
    result = {"seconds": statistics.median(seconds), "runs": len(seconds), "peak_bytes": peak, **facts}
    if any(solver):
        result["solver_s"] = statistics.median(solver)
        result["rest_s"] = statistics.median(t - s for t, s in zip(seconds, solver, strict=True))
    if any(solver) and sum(seconds) < 2 * SECONDS:
        result["rest_without_gc_s"] = statistics.median(rest_without_gc(run) for _ in range(5))
    return result


def rest_without_gc(run: Callable[[], dict[str, Any]]) -> float:
    """All but the solver, while nothing is collected: full collections come in steps, which bend a short line."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        facts = run()
        return time.perf_counter() - start - float(facts["solver_s"])
    finally:
        gc.enable()


def main() -> None:
    target, name, layers, width = sys.argv[1:]
    found = measure(target, name, int(layers), int(width))
    network, _ = on_meta(int(layers), int(width))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(json.dumps({"layers": int(layers), "parameters": parameters, **found}))


if __name__ == "__main__":
    main()
