"""Against trying everything: the proven optimum is the optimum, and no budget is overshot."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwbmpq.allocate import InfeasibleBudget, solve
from hwbmpq.testing import best_by_enumeration

SAMPLE = 100
THOROUGH = 2500


def compare(instance: Any, solver: str, counts: Counter[str], worst: dict[str, float]) -> None:
    """Solve both ways and count what was seen."""
    reference = best_by_enumeration(**instance.arguments())
    start = time.perf_counter()
    try:
        allocation = solve(**instance.arguments(), solver=solver)
    except InfeasibleBudget:
        allocation = None
    worst["seconds"] = max(worst["seconds"], time.perf_counter() - start)
    counts["instances"] += 1
    if allocation is None or reference is None:
        counts["infeasible"] += allocation is None and reference is None
        counts["disagreements"] += (allocation is None) != (reference is None)
        return
    objective, _ = reference
    difference = abs(allocation.objective - objective)
    relative = difference / abs(objective) if objective else difference
    worst["relative_difference"] = max(worst["relative_difference"], relative)
    counts["proven"] += bool(allocation.optimal)
    counts["unproven"] += not allocation.optimal
    counts["overshoots"] += bool(instance.overshot(allocation.bits))
    counts["broken_ties"] += bool(instance.broken_ties(allocation.bits))
    counts["worse"] += relative > 1e-6


def counts_of(make: Callable[[int], Any], solver: str, seeds: range) -> tuple[Counter[str], dict[str, float]]:
    counts = Counter(
        dict.fromkeys(
            (
                "instances",
                "infeasible",
                "proven",
                "unproven",
                "disagreements",
                "worse",
                "overshoots",
                "broken_ties",
            ),
            0,
        )
    )
    worst = {"relative_difference": 0.0, "seconds": 0.0}
    for seed in seeds:
        compare(make(seed), solver, counts, worst)
    return counts, worst


def test_a_sample_agrees_with_enumeration(instance: Callable[[int], Any], solver: str) -> None:
    counts, _ = counts_of(instance, solver, range(SAMPLE))
    assert counts["infeasible"] > 0  # the sample has both kinds
    assert counts["proven"] + counts["infeasible"] == counts["instances"] == SAMPLE
    wrong = ("unproven", "disagreements", "worse", "overshoots", "broken_ties")
    assert {name: counts[name] for name in wrong} == dict.fromkeys(wrong, 0)


@pytest.mark.parametrize("costs", [2, 3])
def test_conflicting_costs_agree_with_enumeration(
    conflict: Callable[..., Any], costs: int, solver: str
) -> None:
    counts, _ = counts_of(lambda seed: conflict(seed, costs), solver, range(25))
    assert counts["infeasible"] > 0
    assert counts["proven"] > 0
    wrong = ("unproven", "disagreements", "worse", "overshoots")
    assert {name: counts[name] for name in wrong} == dict.fromkeys(wrong, 0)


@pytest.mark.slow
def test_thousands_agree_with_enumeration(instance: Callable[[int], Any]) -> None:
    """With HWBMPQ_RESULTS, the counts are left in that folder."""
    results = {}
    for solver in ("highs", "glpk"):
        counts, worst = counts_of(instance, solver, range(THOROUGH))
        results[solver] = {
            **counts,
            "worst_relative_difference": worst["relative_difference"],
            "slowest_s": round(worst["seconds"], 3),
        }
    folder = os.environ.get("HWBMPQ_RESULTS")
    if folder:
        (Path(folder) / "allocate_enumeration.json").write_text(json.dumps(results, indent=2) + "\n")
    for result in results.values():
        assert result["proven"] + result["infeasible"] == result["instances"] == THOROUGH
        assert (
            result["disagreements"] == result["worse"] == result["overshoots"] == result["broken_ties"] == 0
        )
