"""Seconds to a proven optimum, Pyomo model included, beside PuLP with CBC and plain HiGHS on the same raw numbers.

Prints medians per size and solver, and writes every run to a JSON file. What another solver claims is checked: how far
its answer is from the proven best (relative; positive is worse), and by how much it overshoots a budget.

    python benchmarks/allocate.py [--seeds 3] [--time-limit 60] [--json FILE]
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwbmpq.allocate import solve

SIZES = {(21, 2, 1): 0.1, (54, 3, 3): 0.3, (200, 7, 3): 1.0, (1000, 7, 3): 3.0}
"""Layers × widths × budgets, and the seconds that we aim at."""
FAMILIES = ("log", "uni", "lin")
OURS = ("auto", "highs", "glpk")
Floats = NDArray[np.float64]
Picks = list[int]


@dataclass(frozen=True)
class Instance:
    """Values are layers × widths, costs budgets × layers × widths."""

    values: Floats
    costs: Floats
    budgets: Floats

    def objective(self, picks: Picks) -> float:
        return float(self.values[np.arange(len(picks)), picks].sum())

    def overshoot(self, picks: Picks) -> float:
        """The largest share of a budget by which it is exceeded, from exact sums."""
        worst = Fraction(0)
        for table, budget in zip(self.costs, self.budgets, strict=True):
            total = sum((Fraction(float(table[i, j])) for i, j in enumerate(picks)), Fraction(0))
            worst = max(worst, (total - Fraction(float(budget))) / Fraction(float(budget)))
        return float(worst)


def make(layers: int, widths: int, budgets: int, seed: int, family: str) -> Instance:
    """``log``: log-normal sizes and sensitivities, values as in the paper, costs that grow with the bits; ``uni``:
    independent uniform values and costs, sorted; ``lin``: uniform sensitivities times the position of the width."""
    rng = np.random.default_rng(seed)
    bits = np.array([2, 3, 4, 5, 6, 7, 8][:widths]) if widths != 2 else np.array([2, 4])
    if family == "log":
        size = np.exp(rng.normal(0, 1.5, layers)) * 1e4
        values = (np.exp(rng.normal(0, 2, layers)) * 1e-4)[:, None] * np.arange(widths)
        costs = np.empty((budgets, layers, widths))
        for i in range(budgets):
            unit = size if i == 0 else np.exp(rng.normal(0, 1.2, layers)) * 1e4
            costs[i] = np.round(unit[:, None] * bits[None] ** (1 if i != 1 else 1.6))
    elif family == "uni":
        values = np.sort(rng.random((layers, widths)), axis=1)
        costs = np.sort(np.round(rng.random((budgets, layers, widths)) * 1e6), axis=2)
    else:
        values = rng.random(layers)[:, None] * np.arange(widths)
        costs = np.round(rng.random((budgets, layers)) * 1e5)[:, :, None] * bits
    low, high = costs.min(axis=2).sum(axis=1), costs.max(axis=2).sum(axis=1)
    return Instance(values=values, costs=costs, budgets=np.floor(low + 0.4 * (high - low)))


def run_ours(solver: str) -> Callable[[Instance, float], dict[str, Any]]:
    def run(instance: Instance, time_limit: float) -> dict[str, Any]:
        layers, widths = range(instance.values.shape[0]), range(instance.values.shape[1])

        def table(numbers: Floats) -> dict[str, dict[int, float]]:
            return {f"l{i}": {j: float(numbers[i, j]) for j in widths} for i in layers}

        costs = {f"c{r}": table(numbers) for r, numbers in enumerate(instance.costs)}
        budgets = {f"c{r}": float(budget) for r, budget in enumerate(instance.budgets)}
        start = time.perf_counter()
        allocation = solve(table(instance.values), costs, budgets, solver=solver, time_limit=time_limit)
        assert allocation.model is not None
        seconds = time.perf_counter() - start
        picks = [int(allocation.bits[f"l{i}"]) for i in layers]  # type: ignore[call-overload]
        return {
            "seconds": seconds,
            "status": "optimal" if allocation.optimal else f"gap {allocation.gap:.1e}",
            "proven": bool(allocation.optimal),
            "bound": float(allocation.bound),
            "picks": picks,
        }

    return run


def run_cbc(instance: Instance, time_limit: float) -> dict[str, Any]:
    """CBC with its defaults, through PuLP, on the numbers as they are."""
    try:
        import pulp
    except ImportError as error:
        raise SystemExit(f"this comparison needs PuLP (pip install pulp): {error}") from None
    layers, widths = instance.values.shape
    start = time.perf_counter()
    problem = pulp.LpProblem("allocation", pulp.LpMaximize)
    picks = [[pulp.LpVariable(f"x_{i}_{j}", cat="Binary") for j in range(widths)] for i in range(layers)]
    pairs = [(i, j) for i in range(layers) for j in range(widths)]
    problem += pulp.lpSum(float(instance.values[i, j]) * picks[i][j] for i, j in pairs)
    for row in picks:
        problem += pulp.lpSum(row) == 1
    for table, budget in zip(instance.costs, instance.budgets, strict=True):
        problem += pulp.lpSum(float(table[i, j]) * picks[i][j] for i, j in pairs) <= float(budget)
    problem.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=time_limit, threads=1))
    seconds = time.perf_counter() - start
    chosen = [[variable.varValue or 0.0 for variable in row] for row in picks]
    # PuLP calls a point that CBC found before its time was up "Optimal"; sol_status tells them apart.
    is_proven = problem.sol_status == pulp.LpSolutionOptimal
    status = pulp.LpSolution[problem.sol_status]
    return {"seconds": seconds, "status": status, "proven": is_proven, "picks": _rounded(np.array(chosen))}


def run_plain_highs(instance: Instance, time_limit: float) -> dict[str, Any]:
    """HiGHS with its defaults, through scipy, on the numbers as they are."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    layers, widths = instance.values.shape
    count = layers * widths
    start = time.perf_counter()
    one = csr_array((np.ones(count), (np.repeat(np.arange(layers), widths), np.arange(count))))
    result = milp(
        -instance.values.ravel(),
        constraints=[
            LinearConstraint(one, 1, 1),
            LinearConstraint(instance.costs.reshape(-1, count), -np.inf, instance.budgets),
        ],
        integrality=np.ones(count),
        bounds=Bounds(0, 1),
        options={"time_limit": time_limit},
    )
    seconds = time.perf_counter() - start
    chosen = np.zeros(count) if result.x is None else result.x
    status = {0: "Optimal", 1: "Limit"}.get(result.status, str(result.status))
    return {
        "seconds": seconds,
        "status": status,
        "proven": result.status == 0,
        "picks": _rounded(chosen.reshape(layers, widths)),
    }


def _rounded(chosen: Floats) -> Picks:
    return [int(j) for j in chosen.argmax(axis=1)]


RUNNERS = {
    **{f"hwbmpq {name}": run_ours(name) for name in OURS},
    "PuLP + CBC": run_cbc,
    "HiGHS, plain": run_plain_highs,
}


def measure(seeds: int, time_limit: float, sizes: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    for run in RUNNERS.values():
        run(make(8, 3, 2, 0, "log"), time_limit)  # imports and first calls
    found = []
    for size in sizes:
        for family in FAMILIES:
            for seed in range(seeds):
                instance = make(*size, seed, family)
                runs = {name: run(instance, time_limit) for name, run in RUNNERS.items()}
                best = max(instance.objective(runs[f"hwbmpq {name}"]["picks"]) for name in OURS)
                for name, run in runs.items():
                    picks = run.pop("picks")
                    run["seconds"] = round(run["seconds"], 4)
                    run["worse_than_best"] = (best - instance.objective(picks)) / best
                    run["overshoot"] = instance.overshoot(picks)
                    size_name = "×".join(map(str, size))
                    found.append({"size": size_name, "family": family, "seed": seed, "solver": name, **run})
                    print(
                        f"{size_name} {family} {seed} {name}: {run['seconds']:.3f} s, {run['status']}",
                        flush=True,
                    )
    return found


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups = defaultdict(list)
    for run in found:
        groups[run["size"], run["solver"]].append(run)
    targets = {"×".join(map(str, size)): seconds for size, seconds in SIZES.items()}
    return [
        {
            "size": size,
            "solver": solver,
            "runs": len(runs),
            "median_s": round(statistics.median(run["seconds"] for run in runs), 3),
            "slowest_s": round(max(run["seconds"] for run in runs), 3),
            "target_s": targets[size],
            "claims_optimal": sum(run["proven"] for run in runs),
            "worst_answer": max(run["worse_than_best"] for run in runs),
            "worse_by_1e-6": sum(run["worse_than_best"] > 1e-6 for run in runs),
            "claims_optimal_but_is_not": sum(run["proven"] and run["worse_than_best"] > 1e-6 for run in runs),
            "overshoots": sum(run["overshoot"] > 0 for run in runs),
            "worst_overshoot": max(run["overshoot"] for run in runs),
        }
        for (size, solver), runs in groups.items()
    ]


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| layers × widths × budgets | solver | median s | slowest s | says optimal | worst answer | overshoots |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['size']} | {row['solver']} | {row['median_s']:.3f} | {row['slowest_s']:.3f} "
        f"| {row['claims_optimal']} of {row['runs']} | {row['worst_answer']:.1e} | {row['overshoots']} |"
        for row in rows
    ]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    try:
        cpu = Path("/proc/cpuinfo").read_text().split("model name")[1].split("\n")[0].strip("\t :")
    except (OSError, IndexError):
        cpu = platform.processor() or platform.machine()
    packages = {}
    for name in ("hwbmpq", "pyomo", "highspy", "swiglpk", "PuLP", "scipy", "numpy"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = "missing"
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), "packages": packages}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="instances of each family")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each run")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="only the first so many")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "allocate.json")
    args = parser.parse_args()
    found = measure(args.seeds, args.time_limit, list(SIZES)[: args.sizes])
    rows = summary(found)
    print(markdown(rows))
    content = {"machine": machine(), "time_limit_s": args.time_limit, "summary": rows, "runs": found}
    args.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
