"""Problems that nobody enumerates: against other exact methods, and against the clock."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from hwbmpq.allocate import solve


def best_by_dynamic_program(instance: Any) -> float:
    """The largest objective for each whole budget, layer by layer."""
    ((name, table),) = instance.costs.items()
    budget = int(instance.budgets[name])
    best = np.zeros(budget + 1)
    for layer, values in instance.values.items():
        grown = np.full(budget + 1, -np.inf)
        for choice, value in values.items():
            cost = table[layer][choice]
            if cost <= budget:
                grown[cost:] = np.maximum(grown[cost:], best[: budget + 1 - cost] + value)
        best = grown
    return float(best.max())


@pytest.mark.parametrize("layers", [60, 120, 200])
@pytest.mark.parametrize("seed", range(2))
def test_one_budget_agrees_with_a_dynamic_program(
    network: Callable[..., Any], solver: str, layers: int, seed: int
) -> None:
    instance = network(layers, 4, 1, seed, most=4000)
    allocation = solve(**instance.arguments(), solver=solver)
    assert not instance.overshot(allocation.bits)
    assert allocation.optimal
    assert allocation.objective == pytest.approx(best_by_dynamic_program(instance), rel=1e-6)


def best_by_milp(instance: Any) -> float:
    """HiGHS as scipy ships it, on the numbers as they are (values as shares of the largest)."""
    pairs = [(layer, choice) for layer, choices in instance.values.items() for choice in choices]
    values = np.array([instance.values[layer][choice] for layer, choice in pairs])
    one = np.array([[float(name == layer) for layer, _ in pairs] for name in instance.values])
    costs = [[table[layer][choice] for layer, choice in pairs] for table in instance.costs.values()]
    limits = np.array([instance.budgets[name] for name in instance.costs], dtype=float)
    scaled = np.array(costs) / limits[:, None]
    result = milp(
        -values / values.max(),
        constraints=[LinearConstraint(one, 1, 1), LinearConstraint(scaled, -np.inf, 1.0)],
        integrality=np.ones(len(pairs)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-7, "time_limit": 10.0},
    )
    assert result.x is not None
    return float(values @ np.round(result.x))


@pytest.mark.parametrize("budgets", [2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_several_budgets_are_no_worse_than_another_solver(
    network: Callable[..., Any], budgets: int, seed: int
) -> None:
    instance = network(60, 3, budgets, seed)
    allocation = solve(**instance.arguments())
    assert not instance.overshot(allocation.bits)
    assert allocation.optimal
    assert allocation.bound >= allocation.objective
    assert allocation.objective >= best_by_milp(instance) * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_both_solvers_prove_the_same_optimum(network: Callable[..., Any], seed: int) -> None:
    instance = network(60, 4, 3, seed)
    one, other = (solve(**instance.arguments(), solver=name) for name in ("highs", "glpk"))
    assert one.optimal
    assert other.optimal
    assert one.objective == pytest.approx(other.objective, rel=1e-6)


def test_identical_layers_are_no_trap(solver: str) -> None:
    """24 equal layers have as many equal optima as there are orders: a plain search never ends."""
    layers = [f"l{i}" for i in range(24)]
    values = {layer: {2: 0.0, 3: 1.0, 4: 1.7, 8: 2.9} for layer in layers}
    memory = {layer: {2: 200, 3: 300, 4: 400, 8: 800} for layer in layers}
    latency = {layer: {2: 31, 3: 33, 4: 32, 8: 47} for layer in layers}
    start = time.perf_counter()
    allocation = solve(
        values, {"memory": memory, "latency": latency}, {"memory": 10_100, "latency": 850}, solver=solver
    )
    assert time.perf_counter() - start < 5
    assert allocation.optimal


def test_without_time_there_is_an_allocation_and_an_honest_gap(
    network: Callable[..., Any], solver: str
) -> None:
    instance = network(1000, 7, 3, 0)
    start = time.perf_counter()
    allocation = solve(**instance.arguments(), solver=solver, time_limit=1e-3)
    assert time.perf_counter() - start < 5
    assert not instance.overshot(allocation.bits)
    assert allocation.bound >= allocation.objective
    assert bool(allocation.optimal) == (allocation.gap <= 1e-6)
    assert allocation.gap < 0.01


def test_a_bound_without_time_is_not_below_the_optimum(network: Callable[..., Any]) -> None:
    instance = network(200, 7, 3, 1)
    hurried = solve(**instance.arguments(), time_limit=0)
    proven = solve(**instance.arguments(), time_limit=30)
    assert proven.optimal
    assert hurried.objective * (1 - 1e-12) <= proven.objective <= hurried.bound * (1 + 1e-12)
