"""Explanations are answers to problems that were solved again."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from hwbmpq.allocate import Allocation, AllocationError, explain, solve

VALUES = {"a": {2: 0, 4: 3, 8: 4}, "b": {2: 0, 4: 2, 8: 5}}
COSTS = {"memory": {"a": {2: 20, 4: 40, 8: 80}, "b": {2: 10, 4: 20, 8: 40}}}
SEEDS = range(8)


@pytest.fixture
def feasible(conflict: Callable[..., Any]) -> Callable[[int, int], tuple[Any, list[Any]]]:
    """Small problems with whole numbers, and all their allocations; the budgets let some of them in."""

    def make(seed: int, costs: int) -> tuple[Any, list[Any]]:
        instance = conflict(seed, costs)
        points = list(instance.points())
        while not any(point.fits(instance.budgets) for point in points):
            instance.budgets = {name: budget * 2 for name, budget in instance.budgets.items()}
        return instance, points

    return make


def best(points: list[Any], budgets: Any) -> float:
    return max((point.objective for point in points if point.fits(budgets)), default=-math.inf)


def test_the_price_of_a_percent_is_always_told() -> None:
    (price,) = explain(solve(VALUES, COSTS, {"memory": 79})).prices
    assert (price.cost, price.increase, price.gain) == ("memory", 0.79, 0)


def test_the_price_of_a_given_increase() -> None:
    price = explain(solve(VALUES, COSTS, {"memory": 79}), increases={"memory": [1]}).prices[1]
    assert (price.increase, price.budget, price.gain) == (1, 80, 3)
    assert price.share == pytest.approx(3 / 9)  # of 4 + 5


@pytest.mark.parametrize("costs", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_price_is_what_solving_at_the_larger_budget_gains(feasible: Any, seed: int, costs: int) -> None:
    instance, points = feasible(seed, costs)
    allocation = solve(**instance.arguments())
    increases = {name: [50, 300] for name in instance.budgets}
    prices = explain(allocation, increases=increases).prices
    assert len(prices) == 3 * costs
    for price in prices:
        larger = {**instance.budgets, price.cost: price.budget}
        assert price.budget == instance.budgets[price.cost] + price.increase
        assert price.gain == best(points, larger) - allocation.objective


@pytest.mark.parametrize("costs", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_runner_up_is_the_best_without_the_choice(feasible: Any, seed: int, costs: int) -> None:
    instance, points = feasible(seed, costs)
    allocation = solve(**instance.arguments())
    runner_ups = explain(allocation).runner_ups
    assert set(runner_ups) == set(instance.values)
    for layer, runner_up in runner_ups.items():
        others = [point for point in points if point.bits[layer] != allocation.bits[layer]]
        left = best(others, instance.budgets)
        if runner_up is None:
            assert left == -math.inf
        else:
            assert runner_up.loss == allocation.objective - left
            bits = {**allocation.bits, **runner_up.changes, layer: runner_up.choice}
            assert not instance.overshot(bits)
            assert sum(instance.values[n][bits[n]] for n in bits) == left


@pytest.mark.parametrize("costs", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_if_grown_is_the_smallest_budget_that_buys_something(feasible: Any, seed: int, costs: int) -> None:
    instance, points = feasible(seed, costs)
    allocation = solve(**instance.arguments())
    for name, change in explain(allocation).if_grown.items():
        others = {n: b for n, b in instance.budgets.items() if n != name}
        better = [p for p in points if p.objective > allocation.objective and p.fits(others)]
        if change is None:
            assert not better
        else:
            assert change.budget == min(point.costs[name] for point in better)
            assert change.gain == best(points, {**others, name: change.budget}) - allocation.objective


@pytest.mark.parametrize("costs", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_if_shrunk_is_the_best_below_what_is_used(feasible: Any, seed: int, costs: int) -> None:
    instance, points = feasible(seed, costs)
    allocation = solve(**instance.arguments())
    for name, change in explain(allocation).if_shrunk.items():
        smaller = {**instance.budgets, name: allocation.costs[name] - 1}
        left = best(points, smaller)
        if change is None:
            assert left == -math.inf
        else:
            assert change.budget == allocation.costs[name] - 1
            assert change.gain == left - allocation.objective <= 0
            bits = {**allocation.bits, **change.changes}
            assert sum(instance.values[n][bits[n]] for n in bits) == left


def test_nothing_grows_where_every_layer_has_its_best() -> None:
    assert explain(solve(VALUES, COSTS, {"memory": 500})).if_grown == {"memory": None}


def test_nothing_shrinks_where_every_layer_has_its_least() -> None:
    assert explain(solve(VALUES, COSTS, {"memory": 30})).if_shrunk == {"memory": None}


def test_rows_can_be_explained() -> None:
    rows = [{"a": {2: 2, 4: 4, 8: 8}}, {"b": {2: 3, 4: 5, 8: 9}}]
    change = explain(solve(VALUES, {"ram": rows}, {"ram": 7})).if_grown["ram"]
    assert change is not None
    assert (change.budget, change.gain, change.changes) == (8, 1, {"a": 8})


def test_tied_layers_have_the_same_runner_up() -> None:
    runner_ups = explain(solve(VALUES, COSTS, {"memory": 70}, ties=[("a", "b")])).runner_ups
    assert runner_ups["a"] == runner_ups["b"]
    assert runner_ups["a"] is not None
    assert (runner_ups["a"].choice, runner_ups["a"].loss, runner_ups["a"].changes) == (2, 5, {})


def test_layers_without_a_choice_have_no_runner_up() -> None:
    allocation = solve({**VALUES, "stem": {16: 0}}, {"m": [COSTS["memory"]]}, {"m": 70})
    explanation = explain(allocation)
    assert set(explanation.runner_ups) == {"a", "b"}
    assert explanation.is_complete


def test_costs_without_a_limit_have_no_price() -> None:
    explanation = explain(solve(VALUES, COSTS, {"memory": math.inf}))
    assert (explanation.prices, explanation.if_grown, explanation.if_shrunk) == ((), {}, {})


def test_without_time_the_runner_ups_are_left_out_and_it_says_so() -> None:
    explanation = explain(solve(VALUES, COSTS, {"memory": 70}), time_limit=0)
    assert (dict(explanation.runner_ups), explanation.is_complete) == ({}, False)


def test_progress_is_told() -> None:
    steps: list[tuple[int, int]] = []
    explain(solve(VALUES, COSTS, {"memory": 70}), on_step=lambda done, of: steps.append((done, of)))
    assert steps == [(1, 2), (2, 2)]


def test_an_explanation_goes_into_json() -> None:
    explanation = explain(solve(VALUES, COSTS, {"memory": 70}))
    content = json.loads(json.dumps(explanation.to_dict(), allow_nan=False))
    assert set(content) == {"prices", "runner_ups", "if_grown", "if_shrunk", "is_complete"}
    assert content["if_grown"]["memory"]["budget"] == 80


def test_an_allocation_from_json_cannot_be_explained() -> None:
    allocation = Allocation.from_json(solve(VALUES, COSTS, {"memory": 70}).to_json())
    with pytest.raises(AllocationError, match=r"was read from JSON cannot be explained"):
        explain(allocation)
