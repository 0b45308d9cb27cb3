"""The frontier: all that no other allocation beats."""

import itertools
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from hwbmpq.allocate import frontier, solve

VALUES = {"a": {2: 0, 4: 3, 8: 4}, "b": {2: 0, 4: 2, 8: 5}}
COSTS = {"memory": {"a": {2: 20, 4: 40, 8: 80}, "b": {2: 10, 4: 20, 8: 40}}}


def non_dominated(points: list[Any], cost: str) -> list[tuple[Fraction, float]]:
    """Pairs of cost and objective, by looking at all of them."""
    found: list[tuple[Fraction, float]] = []
    for total, objective in sorted(
        {(p.costs[cost], p.objective) for p in points}, key=lambda p: (p[0], -p[1])
    ):
        if not found or objective > found[-1][1]:
            found.append((total, objective))
    return found


@pytest.mark.parametrize("seed", range(25))
def test_the_exact_frontier_is_that_of_enumeration(conflict: Callable[..., Any], seed: int) -> None:
    instance = conflict(seed, 1)
    found = frontier(instance.values, instance.costs)
    assert found.is_exact
    pairs = [(point.costs["memory"], point.objective) for point in found]
    assert pairs == non_dominated(list(instance.points()), "memory")


def test_ties_hold_on_the_frontier() -> None:
    found = frontier(VALUES, COSTS, ties=[("a", "b")])
    assert [(point.bits, point.objective) for point in found] == [
        ({"a": 2, "b": 2}, 0),
        ({"a": 4, "b": 4}, 5),
        ({"a": 8, "b": 8}, 9),
    ]


def test_cost_and_objective_climb_together(network: Callable[..., Any]) -> None:
    instance = network(15, 4, 1, 0)
    found = frontier(instance.values, instance.costs)
    pairs = [(point.costs["cost0"], point.objective) for point in found]
    assert len(pairs) > 100
    assert all(one[0] < other[0] and one[1] < other[1] for one, other in itertools.pairwise(pairs))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.33, 0.5, 0.77, 1.0])
def test_the_best_within_a_budget_is_what_solve_finds(network: Callable[..., Any], share: float) -> None:
    instance = network(20, 3, 1, 1)
    found = frontier(instance.values, instance.costs)
    low, high = found[0].costs["cost0"], found[-1].costs["cost0"]
    budgets = {"cost0": low + round(share * (high - low))}
    point = found.best_within(budgets)
    assert point is not None
    wanted = solve(instance.values, instance.costs, budgets).objective
    assert point.objective == pytest.approx(wanted, rel=1e-6)
    assert point.costs["cost0"] <= budgets["cost0"]


def test_nothing_is_within_a_budget_below_the_least() -> None:
    assert frontier(VALUES, COSTS).best_within({"memory": 29}) is None


def test_a_frontier_is_a_sequence() -> None:
    found = frontier(VALUES, COSTS)
    assert found[0] == next(iter(found)) == found[:2][0]
    assert found[-1] == list(found)[-1]
    assert len(list(found)) == len(found)


def test_too_many_points_are_sampled(network: Callable[..., Any]) -> None:
    instance = network(15, 4, 1, 0)
    found = frontier(instance.values, instance.costs, most_points=50, samples=7)
    assert not found.is_exact
    assert 2 <= len(found) <= 7


def test_a_sample_lies_on_the_exact_frontier(network: Callable[..., Any]) -> None:
    instance = network(12, 4, 1, 2)
    exact = frontier(instance.values, instance.costs)
    for point in frontier(instance.values, instance.costs, most_points=50, samples=7):
        wanted = exact.best_within(point.costs)
        assert wanted is not None
        assert point.objective == pytest.approx(wanted.objective, rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_a_sample_over_several_costs_has_no_dominated_point(conflict: Callable[..., Any], seed: int) -> None:
    instance = conflict(seed, 2)
    found = list(frontier(instance.values, instance.costs, samples=5))
    for one in found:
        for other in found:
            no_dearer = all(other.costs[name] <= one.costs[name] for name in instance.costs)
            assert one is other or not (no_dearer and other.objective >= one.objective)


@pytest.mark.parametrize("seed", range(6))
def test_a_sampled_point_is_the_best_at_its_own_cost(conflict: Callable[..., Any], seed: int) -> None:
    instance = conflict(seed, 2)
    points = list(instance.points())
    found = frontier(instance.values, instance.costs, samples=5)
    assert not found.is_exact
    for point in found:
        wanted = max(p.objective for p in points if p.fits(point.costs))
        assert point.objective == pytest.approx(wanted)


def test_the_ends_of_a_sample_are_the_cheapest_and_the_best() -> None:
    found = frontier(VALUES, {**COSTS, "latency": COSTS["memory"]}, samples=4)
    assert (found[0].bits, found[-1].bits) == ({"a": 2, "b": 2}, {"a": 8, "b": 8})


def test_rows_are_sampled() -> None:
    rows = [{"a": {2: 2, 4: 4, 8: 8}}, {"b": {2: 3, 4: 5, 8: 9}}]
    found = frontier(VALUES, {"ram": rows}, samples=7)
    assert not found.is_exact
    assert [point.costs["ram"] for point in found] == sorted({point.costs["ram"] for point in found})
    assert (found[0].costs["ram"], found[-1].objective) == (3, 9)


def test_budgets_bound_the_frontier() -> None:
    found = frontier(VALUES, {**COSTS, "latency": COSTS["memory"]}, budgets={"latency": 70}, samples=6)
    assert max(point.costs["latency"] for point in found) <= 70


def test_a_budget_that_is_infinite_is_none() -> None:
    assert frontier(VALUES, COSTS, budgets={"memory": math.inf}).is_exact


def test_too_many_states_are_sampled(network: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    instance = network(15, 4, 1, 0)
    monkeypatch.setattr(
        sys.modules["hwbmpq.allocate.frontier"], "_MOST_STATES", 500
    )  # the name is a function
    assert not frontier(instance.values, instance.costs, samples=7).is_exact


@pytest.mark.parametrize("scale", [1, 0.1, 1e-9, 2**60])
def test_totals_are_what_the_points_cost(network: Callable[..., Any], scale: float) -> None:
    instance = network(12, 3, 1, 3)
    costs = {
        name: {
            layer: {choice: cost * scale for choice, cost in choices.items()}
            for layer, choices in table.items()
        }
        for name, table in instance.costs.items()
    }
    found = frontier(instance.values, costs, ties=[list(instance.values)[:3]])
    assert len(found) > 50
    for point, total, objective in zip(found, found.totals[:, 0], found.objectives, strict=True):
        exact = sum(Fraction(costs["cost0"][layer][choice]) for layer, choice in point.bits.items())
        assert Fraction(math.nextafter(total, 0)) < exact <= Fraction(total)
        assert objective == point.objective
