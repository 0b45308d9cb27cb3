"""Corners in which a solver, or arithmetic, could go astray."""

import math
import random
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from hwbmpq.allocate import (
    AllocationError,
    InfeasibleBudget,
    SolverError,
    explain,
    frontier,
    solve,
)
from hwbmpq.allocate.exact import search
from hwbmpq.allocate.ilp import IntegerProgram
from hwbmpq.costs.table import CostRow, CostTable
from hwbmpq.testing import best_by_enumeration

VALUES = {"a": {2: 0, 4: 3}, "b": {2: 0, 4: 2}}
MEMORY = {"a": {2: 20, 4: 40}, "b": {2: 10, 4: 20}}


def test_an_infeasible_relaxation_is_an_infeasible_budget() -> None:
    """Either budget can be met; no mixture of choices, not even a fractional one, meets both."""
    costs = {
        "m": {"a": {2: 6, 4: 9}, "b": {2: 5, 4: 3}, "c": {2: 6, 4: 3}},
        "n": {"a": {2: 7, 4: 1}, "b": {2: 0, 4: 5}, "c": {2: 1, 4: 6}},
    }
    with pytest.raises(InfeasibleBudget) as caught:
        solve({layer: {2: 0, 4: 1} for layer in "abc"}, costs, {"m": 15, "n": 10})
    assert caught.value.conflict == ("m", "n")


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_conflicting_random_budgets_agree_with_enumeration(start: int) -> None:
    for seed in range(start, start + 50):
        rng = random.Random(seed)
        layers = [f"l{i}" for i in range(rng.randint(2, 5))]
        costs = {n: {layer: {w: rng.randint(1, 100) for w in (2, 4, 8)} for layer in layers} for n in "mno"}
        values = {layer: {w: rng.randint(0, 9) for w in (2, 4, 8)} for layer in layers}
        totals = {n: sum(rng.choice(list(x.values())) for x in table.values()) for n, table in costs.items()}
        budgets = {n: int(total * rng.uniform(0.5, 1)) for n, total in totals.items()}
        best = best_by_enumeration(values, costs, budgets)
        try:
            assert best is not None
            assert solve(values, costs, budgets).objective == best[0]
        except (AssertionError, InfeasibleBudget):
            assert best is None
            with pytest.raises(InfeasibleBudget) as caught:
                solve(values, costs, budgets)
            assert best_by_enumeration(values, costs, caught.value.suggestion) is not None


def test_hundreds_of_choices_are_told_apart() -> None:
    rng = random.Random(0)
    values = {layer: {k: k * 1000 + rng.randint(0, 50) for k in range(200)} for layer in "ab"}
    costs = {
        n: {layer: {k: k * 1000 + rng.randint(0, 60) for k in range(200)} for layer in "ab"} for n in "mn"
    }
    best = best_by_enumeration(values, costs, {"m": 310_000, "n": 310_000})
    assert best is not None
    assert solve(values, costs, {"m": 310_000, "n": 310_000}).objective == best[0]
    line = {layer: {k: k for k in range(200)} for layer in "ab"}
    assert len(frontier(line, {"m": line})) == 399


@pytest.mark.parametrize("seed", [337, 579, *range(60)])
def test_decimal_costs_at_the_boundary_are_decided_exactly(seed: int) -> None:
    """Sums of tenths: equal as floating-point numbers, different in truth."""
    rng = random.Random(seed)
    layers = [f"l{i}" for i in range(rng.randint(2, 7))]
    values = {layer: {w: rng.randint(0, 20) / 10 * i for i, w in enumerate((2, 4, 8))} for layer in layers}
    costs = {
        layer: {w: round(rng.randint(1, 9) * 0.1 * (i + 1), 1) for i, w in enumerate((2, 4, 8))}
        for layer in layers
    }
    budgets = {"ms": round(sum(costs[layer][rng.choice((2, 4, 8))] for layer in layers), 1)}
    best = best_by_enumeration(values, {"ms": costs}, budgets)
    if best is None:
        with pytest.raises(InfeasibleBudget):
            solve(values, {"ms": costs}, budgets)
    else:
        assert solve(values, {"ms": costs}, budgets).objective == pytest.approx(best[0], rel=1e-9)


def test_tied_layers_whose_sums_round_to_the_same_number_are_told_apart() -> None:
    budget = 0.1 + 0.2
    candidates = [(0.1 + k * 2**-12, math.nextafter(budget - 0.1 - k * 2**-12, 1)) for k in range(1, 4000)]
    x, y = next((p, q) for p, q in candidates if p + q == budget < Fraction(p) + Fraction(q))
    values = {layer: {4: 0.0, 8: 1.0} for layer in "ab"}
    costs = {"m": {"a": {4: 0.1, 8: x}, "b": {4: 0.2, 8: y}}}
    assert solve(values, costs, {"m": budget}, ties=[("a", "b")]).bits == {"a": 4, "b": 4}


def test_every_raised_budget_of_three_is_as_small_as_it_can_be() -> None:
    values = {"p": {2: 38, 3: 37, 4: 33, 8: 40}, "q": {2: 36, 3: 16, 4: 24, 8: 31}}
    costs = {
        "memory": {"p": {2: 962, 3: 953, 4: 273, 8: 193}, "q": {2: 567, 3: 181, 4: 20, 8: 516}},
        "latency": {"p": {2: 103, 3: 685, 4: 720, 8: 475}, "q": {2: 862, 3: 190, 4: 674, 8: 323}},
        "energy": {"p": {2: 191, 3: 968, 4: 825, 8: 596}, "q": {2: 508, 3: 992, 4: 517, 8: 992}},
    }
    budgets = {"memory": 452, "latency": 587, "energy": 837}
    with pytest.raises(InfeasibleBudget) as caught:
        solve(values, costs, budgets)
    suggestion = caught.value.suggestion
    assert best_by_enumeration(values, costs, suggestion) is not None
    for name in (name for name in suggestion if suggestion[name] != budgets[name]):
        less = {**suggestion, name: suggestion[name] * (1 - 1e-6)}
        assert best_by_enumeration(values, costs, less) is None, name


def test_hundreds_of_rows_are_solved_to_the_optimum() -> None:
    """A schedule of 300 steps over 100 layers; 2056 is what scipy's milp finds."""
    layers = [f"l{i}" for i in range(100)]
    values = {layer: {w: (i * 7 % 13 + 1) * w for w in (2, 4, 8)} for i, layer in enumerate(layers)}
    steps = [
        {layers[(s + k) % 100]: {w: (s * 5 % 17 + k + 1) * w + s // 100 for w in (2, 4, 8)} for k in range(3)}
        for s in range(300)
    ]
    flash = {layer: {w: (i * 3 % 11 + 1) * w for w in (2, 4, 8)} for i, layer in enumerate(layers)}
    allocation = solve(values, {"ram": steps, "flash": flash}, {"ram": 150, "flash": 3000}, time_limit=30)
    assert allocation.objective == 2056
    assert allocation.optimal


HUGE = 10**400
BAD: dict[str, tuple[Any, Any, Any]] = {
    "huge value": ({"a": {2: 0, 4: HUGE}}, {"m": {"a": {2: 1, 4: 2}}}, {"m": 1}),
    "huge cost": ({"a": {2: 0, 4: 1}}, {"m": {"a": {2: 1, 4: HUGE}}}, {"m": 1}),
    "huge budget": (VALUES, {"m": MEMORY}, {"m": HUGE}),
    "mixed choices": ({"a": {2: 0, (2, 4): 1}}, {}, {}),
    "text as choice": ({"a": {"2": 0, "4": 1}}, {}, {}),
    "constant": (
        VALUES,
        {"m": CostTable(name="m", unit="", rows=(CostRow(costs=MEMORY, constant=math.nan),))},  # type: ignore[arg-type]
        {"m": 50},
    ),
    "no table": (VALUES, {"m": None}, {}),
    "text as table": (VALUES, {"m": "memory"}, {}),
    "list of values": ({"a": [1, 2]}, {}, {}),
    "number as name": ({1: {2: 0}}, {}, {}),
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD)
def test_bad_input_is_a_readable_error(arguments: tuple[Any, Any, Any]) -> None:
    with pytest.raises(AllocationError):
        solve(*arguments)


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, "5"])
def test_a_time_limit_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(AllocationError, match="time_limit"):
        solve(VALUES, {"m": MEMORY}, {"m": 50}, time_limit=seconds)


def test_ties_written_flat_are_refused() -> None:
    with pytest.raises(AllocationError, match="'a' is not a group of layers"):
        solve(VALUES, {"m": MEMORY}, {"m": 50}, ties=("a", "b"))


def test_a_free_layer_cannot_shrink_the_cost_further() -> None:
    explanation = explain(solve({"a": {2: 0, 4: 1}}, {"m": {"a": {2: 0.0, 4: 2.0}}}, {"m": 1.0}))
    assert explanation.if_shrunk == {"m": None}


def test_more_of_a_negative_budget_is_more() -> None:
    (price,) = explain(solve({"a": {2: 0, 4: 1}}, {"m": {"a": {2: -3.0, 4: -2.0}}}, {"m": -2.99})).prices
    assert price.increase > 0


def test_growth_that_buys_nothing_is_none() -> None:
    zeros = {layer: {2: 0.0, 4: 0.0} for layer in "ab"}
    assert explain(solve(zeros, {"m": MEMORY}, {"m": 50})).if_grown == {"m": None}


@pytest.mark.parametrize("solver", ["highs", "glpk"])
def test_a_solver_that_cannot_close_the_gap_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch, solver: str
) -> None:
    solve_model = IntegerProgram.solve

    def fail_to_close_the_gap(self: Any, solver: Any, seconds: float, gap: float) -> Any:
        if gap < 1e-4:
            raise SolverError("gone")
        return solve_model(self, solver, seconds, gap)

    monkeypatch.setattr(IntegerProgram, "solve", fail_to_close_the_gap)
    monkeypatch.setattr(search, "_MOST_WORK", 0)
    rng = random.Random(0)
    widths = (2, 3, 4, 5, 6)
    sensitivities = {f"l{i}": rng.random() for i in range(150)}
    values = {layer: {w: s * k for k, w in enumerate(widths)} for layer, s in sensitivities.items()}
    sizes = {name: {layer: rng.randint(1, 10**5) for layer in values} for name in "mno"}
    costs = {name: {layer: {w: z * w for w in widths} for layer, z in s.items()} for name, s in sizes.items()}
    allocation = solve(values, costs, {n: 4 * sum(s.values()) for n, s in sizes.items()}, solver=solver)
    assert not allocation.optimal
    assert all(slack >= 0 for slack in allocation.slack.values())


def test_rows_between_negative_and_zero_are_bisected() -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        solve({"a": {2: 0, 4: 1}}, {"m": [{"a": {2: -1, 4: 0}}, {"a": {2: 0, 4: -1}}]}, {"m": -0.5})
    assert caught.value.suggestion == {"m": 0}


@pytest.mark.parametrize("solver", ["highs", "glpk"])
def test_values_in_proportion_to_costs_are_no_trap(solver: str) -> None:
    """Every layer is worth as much per bit as any other: the relaxation says nothing."""
    sizes = [(i * i * 7919) % 9973 + 100 for i in range(30)]
    costs = {f"l{i}": {w: size * w for w in (2, 3, 4, 8)} for i, size in enumerate(sizes)}
    values = {layer: {w: cost * 1e-7 for w, cost in numbers.items()} for layer, numbers in costs.items()}
    allocation = solve(values, {"m": costs}, {"m": 4 * sum(sizes) + 17}, solver=solver)
    assert allocation.optimal
    assert type(allocation.optimal) is bool


def best_by_pareto_lists(
    values: dict[str, dict[int, float]], costs: dict[str, dict[int, int]], budget: int
) -> float:
    """One budget, whole numbers: every non-dominated partial sum, layer by layer."""
    worth, paid = np.zeros(1), np.zeros(1)
    for layer, choices in values.items():
        worth = np.concatenate([worth + value for value in choices.values()])
        paid = np.concatenate([paid + costs[layer][choice] for choice in choices])
        worth, paid = worth[paid <= budget], paid[paid <= budget]
        order = np.lexsort((-worth, paid))
        worth, paid = worth[order], paid[order]
        keep = np.r_[True, worth[1:] > np.maximum.accumulate(worth)[:-1]]
        worth, paid = worth[keep], paid[keep]
    return float(worth.max())


@pytest.mark.parametrize("seed", range(25))
def test_coarse_layers_beside_fine_ones(seed: int) -> None:
    """Millions of pairs meet in the middle, and the fine layers cannot fill the gaps that the coarse ones leave."""
    rng = random.Random(seed)
    scale = 10 ** rng.choice([1, 2, 3, 4])
    coarse, fine = rng.randint(10, 16), rng.randint(10, 18)
    values, costs = {}, {}
    for position in range(coarse + fine):
        widths = (2, 4) if rng.random() < 0.7 else (2, 4, 8)
        size = scale if position < coarse else 1
        numbers = [0, *sorted(rng.randint(1, 1000) * size for _ in widths[1:])]
        costs[f"l{position}"] = dict(zip(widths, numbers, strict=True))
        values[f"l{position}"] = {
            w: float(round(cost * (rng.uniform(0.9, 1.1) if rng.random() < 0.7 else 1)))
            for w, cost in costs[f"l{position}"].items()
        }
    budget = int(rng.uniform(0.2, 0.8) * sum(max(choices.values()) for choices in costs.values()))
    allocation = solve(values, {"m": costs}, {"m": budget})
    assert allocation.optimal
    assert allocation.objective == pytest.approx(best_by_pareto_lists(values, costs, budget), rel=1e-6)


def test_numbers_beyond_the_digits_of_a_double_are_exact() -> None:
    large = 2**60
    allocation = solve({"a": {2: 0, 4: 1}}, {"m": {"a": {2: large, 4: large + 1}}}, {"m": large})
    assert allocation.bits == {"a": 2}
    assert allocation.costs == {"m": large}


def test_one_layer_that_dwarfs_the_others_takes_no_digits_from_them() -> None:
    rng = random.Random(0)
    sizes = [rng.random() for _ in range(24)]
    costs: dict[str, dict[int, float]] = {f"l{i}": {2: 0.0, 4: size} for i, size in enumerate(sizes)}
    values = {layer: {2: 0.0, 4: rng.random()} for layer in costs}
    small = solve(values, {"m": costs}, {"m": 5.0})
    costs["huge"], values["huge"] = {8: 1e13}, {8: 0.0}
    together = solve(values, {"m": costs}, {"m": 1e13 + 5.0}, time_limit=10)
    assert together.objective == pytest.approx(small.objective, rel=1e-9)
    assert together.seconds < 5


def test_the_model_shows_the_bits_after_widening() -> None:
    costs = {layer: {2: 1, 4: 2} for layer in "ab"}
    allocation = solve({"a": {2: 0, 4: 0}, "b": {2: 0, 4: 1}}, {"m": costs}, {"m": 5})
    assert allocation.bits == {"a": 4, "b": 4}
    assert allocation.model.pick["a", "4"].value == 1


def test_the_best_point_is_on_a_sampled_frontier_although_it_is_not_the_widest() -> None:
    values = {"a": {2: 0.0, 4: 5.0, 8: 1.0}}
    costs = {"m": {"a": {2: 1, 4: 20, 8: 3}}, "n": {"a": {2: 1, 4: 2, 8: 3}}}
    assert max(point.objective for point in frontier(values, costs, samples=3)) == 5.0


def test_a_frontier_allows_what_solve_allows() -> None:
    """Ten times 0.1 is more than 1, exactly."""
    costs = {"m": {f"l{i}": {2: 0.0, 4: 0.1} for i in range(10)}}
    values = {layer: {2: 0.0, 4: 1.0} for layer in costs["m"]}
    point = frontier(values, costs).best_within({"m": 1.0})
    assert point is not None
    assert point.objective == solve(values, costs, {"m": 1.0}).objective == 9.0


def test_a_frontier_under_budgets_that_cannot_be_met_says_so() -> None:
    with pytest.raises(InfeasibleBudget):
        frontier(VALUES, {"m": MEMORY}, budgets={"m": 1})


def test_an_explanation_keeps_its_time() -> None:
    rng = random.Random(1)
    layers = [f"l{i}" for i in range(60)]
    values = {layer: {w: rng.random() * w for w in (2, 4, 8)} for layer in layers}
    rows = [
        {layer: {w: rng.randint(1, 99) * w for w in (2, 4, 8)} for layer in rng.sample(layers, 6)}
        for _ in range(100)
    ]
    allocation = solve(values, {"ram": rows}, {"ram": 2000})
    start = time.monotonic()
    explanation = explain(allocation, time_limit=0.2)
    assert time.monotonic() - start < 2
    assert not explanation.is_complete


@pytest.mark.parametrize("seed", range(10))
def test_coarse_layers_beside_fine_ones_under_two_budgets(seed: int) -> None:
    """Against scipy's milp, whose own answer is within its tolerances."""
    rng = random.Random(seed)
    scale = 10 ** rng.choice([2, 3, 4])
    layers = [f"l{i}" for i in range(rng.randint(22, 30))]
    sizes = {layer: scale if i < len(layers) // 2 else 1 for i, layer in enumerate(layers)}
    costs = {
        name: {layer: {2: 0, 4: rng.randint(1, 1000) * size} for layer, size in sizes.items()}
        for name in "mn"
    }
    values = {
        layer: {
            2: 0.0,
            4: float(round(costs["m"][layer][4] * rng.uniform(0.9, 1.1) + costs["n"][layer][4] / 2)),
        }
        for layer in layers
    }
    share = rng.uniform(0.2, 0.8)
    budgets = {
        name: int(share * sum(choice[4] for choice in table.values())) for name, table in costs.items()
    }
    matrix = np.array([[costs[name][layer][4] / budgets[name] for layer in layers] for name in "mn"])
    worth = np.array([values[layer][4] for layer in layers])
    result = milp(
        -worth / worth.max(),
        constraints=[LinearConstraint(matrix, -np.inf, 1.0)],
        integrality=np.ones(len(layers)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    allocation = solve(values, costs, budgets)
    assert allocation.optimal
    assert allocation.objective >= -result.fun * worth.max() * (1 - 2e-6)
