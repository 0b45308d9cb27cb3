"""Values over decades: solvers stop early on small coefficients unless somebody scales them."""

from collections.abc import Callable
from typing import Any

import pytest

from hwbmpq.allocate import solve
from hwbmpq.testing import best_by_enumeration

SCALES = [1e-12, 1e-9, 1e-6, 1e-3, 1.0, 1e3]


def scaled(values: Any, factor: float) -> Any:
    return {n: {c: number * factor for c, number in numbers.items()} for n, numbers in values.items()}


@pytest.mark.parametrize("scale", SCALES)
def test_the_scale_of_the_values_does_not_matter(
    network: Callable[..., Any], solver: str, scale: float
) -> None:
    instance = network(25, 4, 2, 3)
    wanted = solve(**instance.arguments(), solver=solver)
    found = solve(scaled(instance.values, scale), instance.costs, instance.budgets, solver=solver)
    assert found.bits == wanted.bits
    assert found.optimal
    assert found.objective == pytest.approx(scale * wanted.objective, rel=1e-12)


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**-3, 2.0**30])
def test_the_scale_of_the_costs_does_not_matter(
    network: Callable[..., Any], solver: str, scale: float
) -> None:
    instance = network(25, 4, 2, 4)
    costs = {name: scaled(table, scale) for name, table in instance.costs.items()}
    budgets = {name: budget * scale for name, budget in instance.budgets.items()}
    wanted = solve(**instance.arguments(), solver=solver)
    assert solve(instance.values, costs, budgets, solver=solver).bits == wanted.bits


@pytest.mark.parametrize("seed", range(8))
def test_coefficients_of_1e_8_are_not_lost(network: Callable[..., Any], solver: str, seed: int) -> None:
    """Sensitivities like ModelOpt's, many of them 1e-8 and below: a solver's default tolerance is 1e-7."""
    instance = network(7, 4, 2, seed)
    values = scaled(instance.values, 1e-8 / max(max(v.values()) for v in instance.values.values()))
    found = solve(values, instance.costs, instance.budgets, solver=solver)
    reference = best_by_enumeration(values, instance.costs, instance.budgets)
    assert reference is not None
    assert found.objective == pytest.approx(reference[0], rel=1e-9)


def test_layers_eight_decades_apart_both_count(solver: str) -> None:
    values = {"big": {2: 0.0, 4: 1.0}, "small": {2: 0.0, 4: 1e-8}, "tiny": {2: 0.0, 4: 0.9e-8}}
    costs = {"m": {"big": {2: 0, 4: 10}, "small": {2: 0, 4: 5}, "tiny": {2: 0, 4: 4}}}
    assert solve(values, costs, {"m": 15}, solver=solver).bits == {"big": 4, "small": 4, "tiny": 2}


def test_values_below_a_billionth_of_the_largest_are_zero() -> None:
    values = {"big": {2: 0.0, 4: 1.0}, "noise": {2: 1e-10, 4: 0.0}}
    costs = {"m": {"big": {2: 0, 4: 1}, "noise": {2: 0, 4: 1}}}
    allocation = solve(values, costs, {"m": 2})
    assert (allocation.bits, allocation.objective) == ({"big": 4, "noise": 4}, 1.0)


def test_values_above_a_billionth_of_the_largest_are_not() -> None:
    values = {"big": {2: 0.0, 4: 1.0}, "small": {2: 1e-8, 4: 0.0}}
    costs = {"m": {"big": {2: 0, 4: 1}, "small": {2: 0, 4: 1}}}
    assert solve(values, costs, {"m": 2}).bits == {"big": 4, "small": 2}


def test_costs_of_very_different_layers_are_exact(solver: str) -> None:
    """A budget missed by 1 of 10^12."""
    values = {"big": {2: 0, 4: 2}, "small": {2: 0, 4: 1}}
    costs = {"m": {"big": {2: 10**12 // 2, 4: 10**12}, "small": {2: 1, 4: 2}}}
    assert solve(values, costs, {"m": 10**12 + 1}, solver=solver).bits == {"big": 4, "small": 2}
    assert solve(values, costs, {"m": 10**12}, solver=solver).bits == {"big": 2, "small": 4}
