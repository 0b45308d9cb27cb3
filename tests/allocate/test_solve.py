"""``solve``: what goes in, what comes out."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest

from hwbmpq.allocate import InfeasibleBudget, solve
from hwbmpq.costs.table import CostRow, CostTable
from hwbmpq.testing import best_by_enumeration
from hwbmpq.values import Precision, TieGroup

VALUES = {"a": {2: 0, 4: 3, 8: 4}, "b": {2: 0, 4: 2, 8: 5}}
COSTS = {"memory": {"a": {2: 20, 4: 40, 8: 80}, "b": {2: 10, 4: 20, 8: 40}}}


def test_the_best_bits_within_a_budget(solver: str) -> None:
    assert solve(VALUES, COSTS, {"memory": 80}, solver=solver).bits == {"a": 4, "b": 8}


def test_the_objective_is_the_sum_of_the_values() -> None:
    assert solve(VALUES, COSTS, {"memory": 80}).objective == 8


def test_the_costs_are_the_sums() -> None:
    assert solve(VALUES, COSTS, {"memory": 90}).costs == {"memory": 80}


def test_the_slack_is_what_the_budget_has_left() -> None:
    assert solve(VALUES, COSTS, {"memory": 90}).slack == {"memory": 10}


def test_whole_costs_stay_whole() -> None:
    assert isinstance(solve(VALUES, COSTS, {"memory": 90}).costs["memory"], int)


def test_a_cost_without_a_budget_is_counted_only() -> None:
    allocation = solve(VALUES, COSTS, {})
    assert (allocation.bits, allocation.costs, allocation.slack) == ({"a": 8, "b": 8}, {"memory": 120}, {})


def test_an_infinite_budget_is_none() -> None:
    allocation = solve(VALUES, COSTS, {"memory": math.inf})
    assert (allocation.bits, allocation.slack) == ({"a": 8, "b": 8}, {"memory": math.inf})


def test_without_costs_every_layer_takes_its_best() -> None:
    assert solve(VALUES, {}, {}).bits == {"a": 8, "b": 8}


def test_a_budget_may_be_met_exactly(solver: str) -> None:
    allocation = solve(VALUES, COSTS, {"memory": 30}, solver=solver)
    assert (allocation.bits, allocation.slack) == ({"a": 2, "b": 2}, {"memory": 0})


def test_the_proof_is_complete(solver: str) -> None:
    allocation = solve(VALUES, COSTS, {"memory": 80}, solver=solver)
    assert (allocation.optimal, allocation.gap, allocation.bound) == (True, 0.0, 8.0)


def test_the_solver_and_the_time_are_told(solver: str) -> None:
    allocation = solve(VALUES, COSTS, {"memory": 80}, solver=solver)
    assert allocation.solver == solver
    assert 0 < allocation.seconds < 60


def test_bits_come_in_the_order_of_the_values() -> None:
    reverse = dict(reversed(VALUES.items()))
    assert list(solve(reverse, COSTS, {"memory": 80}, ties=[["a", "b"]]).bits) == ["b", "a"]


def test_layers_need_not_have_the_same_choices() -> None:
    values = {"a": {16: 0}, "b": {2: 0, 4: 1}}
    costs = {"memory": {"a": {16: 100}, "b": {2: 1, 4: 2}}}
    assert solve(values, costs, {"memory": 101}).bits == {"a": 16, "b": 2}


def test_choices_may_be_pairs() -> None:
    values = {"a": {(2, 8): 0.0, (4, 8): 1.0, (8, 4): 5.0}}
    costs = {"memory": {"a": {(2, 8): 2, (4, 8): 4, (8, 4): 8}}}
    assert solve(values, costs, {"memory": 5}).bits == {"a": (4, 8)}


def test_choices_may_be_precisions() -> None:
    narrow, wide = (Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4))
    costs = {"memory": {"a": {narrow: 2, wide: 4}}}
    assert solve({"a": {narrow: 0.0, wide: 1.0}}, costs, {"memory": 5}).bits == {"a": wide}


def test_negative_values_are_as_good_as_others(solver: str) -> None:
    values = {layer: {c: v - 10 for c, v in choices.items()} for layer, choices in VALUES.items()}
    allocation = solve(values, COSTS, {"memory": 80}, solver=solver)
    assert (allocation.bits, allocation.objective) == ({"a": 4, "b": 8}, -12)


@pytest.mark.parametrize(
    "ties",
    [[["a", "b"]], [("a", "b")], [TieGroup(layers=("a", "b"), reason="residual")], [["a"], ["b", "a"]]],
    ids=["list", "tuple", "group", "with a single one"],
)
def test_tied_layers_share_their_bits(ties: Any) -> None:
    assert solve(VALUES, COSTS, {"memory": 80}, ties=ties).bits == {"a": 4, "b": 4}


def test_ties_that_overlap_are_joined() -> None:
    values = {name: {2: 0, 4: 1} for name in "abc"}
    costs = {"memory": {name: {2: 1, 4: 2} for name in "abc"}}
    assert solve(values, costs, {"memory": 5}, ties=[("a", "b"), ("b", "c")]).bits == {"a": 2, "b": 2, "c": 2}


def test_tied_layers_choose_among_what_both_offer() -> None:
    values = {"a": {2: 0, 4: 1}, "b": {4: 0, 8: 9}}
    costs = {"memory": {"a": {2: 1, 4: 2}, "b": {4: 1, 8: 2}}}
    assert solve(values, costs, {}, ties=[("a", "b")]).bits == {"a": 4, "b": 4}


@pytest.mark.parametrize("seed", range(5))
def test_the_same_input_gives_the_same_bits(network: Callable[..., Any], solver: str, seed: int) -> None:
    arguments = network(20, 4, 2, seed).arguments()
    first, second = (solve(**arguments, solver=solver) for _ in range(2))
    assert first.bits == second.bits


@pytest.mark.parametrize("seed", range(5))
def test_the_input_is_left_alone(instance: Callable[[int], Any], seed: int) -> None:
    one, other = instance(seed), instance(seed)
    with contextlib.suppress(InfeasibleBudget):
        solve(**one.arguments())
    assert one == other


def test_rows_must_each_hold(solver: str) -> None:
    steps = [{"a": {2: 2, 4: 4, 8: 8}}, {"a": {2: 1, 4: 2, 8: 4}, "b": {2: 2, 4: 4, 8: 8}}]
    allocation = solve(VALUES, {"ram": steps}, {"ram": 8}, solver=solver)
    assert (allocation.bits, allocation.costs) == ({"a": 8, "b": 4}, {"ram": 8})


def test_the_largest_of_the_rows_is_the_cost() -> None:
    steps = [{"a": {2: 2, 4: 4, 8: 8}}, {"b": {2: 3, 4: 5, 8: 9}}]
    assert solve(VALUES, {"ram": steps}, {"ram": 5}).costs == {"ram": 5}


def test_constants_of_rows_count() -> None:
    rows = (CostRow(costs={"a": {2: 2, 4: 4, 8: 8}}, constant=10), CostRow(costs=COSTS["memory"], constant=0))
    table = CostTable(name="ram", unit="bit", rows=rows)  # type: ignore[arg-type]
    allocation = solve(VALUES, {"ram": table}, {"ram": 70})
    assert (allocation.bits, allocation.costs) == ({"a": 2, "b": 8}, {"ram": 60})


def test_a_constant_can_take_all_of_a_budget_but_the_least(solver: str) -> None:
    table = CostTable(name="m", unit="bit", rows=(CostRow(costs=COSTS["memory"], constant=1000),))  # type: ignore[arg-type]
    allocation = solve(VALUES, {"m": table}, {"m": 1030}, solver=solver)
    assert (allocation.bits, allocation.costs) == ({"a": 2, "b": 2}, {"m": 1030})


def test_hundreds_of_rows_agree_with_enumeration(solver: str) -> None:
    layers = [f"l{i}" for i in range(6)]
    values = {layer: {w: (i * 7 % 5 + 1) * w + i for w in (2, 4, 8)} for i, layer in enumerate(layers)}
    steps = [
        {layers[(step * step + k) % 6]: {w: ((step + k) * 7 % 17 + 1) * w for w in (2, 4, 8)} for k in (0, 1)}
        for step in range(300)
    ]
    allocation = solve(values, {"ram": steps}, {"ram": 160}, solver=solver)
    reference = best_by_enumeration(values, {"ram": steps}, {"ram": 160})
    assert reference is not None
    assert allocation.objective == reference[0]


def test_of_two_choices_that_cost_and_give_the_same_the_wider_is_taken(solver: str) -> None:
    costs = {"latency": {"a": {2: 5, 4: 5, 8: 9}, "b": {2: 1, 4: 2, 8: 3}}}
    values = {"a": {2: 1, 4: 1, 8: 2}, "b": {2: 0, 4: 1, 8: 2}}
    assert solve(values, costs, {"latency": 8}, solver=solver).bits == {"a": 4, "b": 8}


def test_slack_is_spent_on_layers_without_a_value(solver: str) -> None:
    values = {"a": {2: 0, 4: 0, 8: 0}, "b": {2: 0, 4: 2, 8: 5}}
    assert solve(values, COSTS, {"memory": 80}, solver=solver).bits == {"a": 4, "b": 8}


def test_widening_keeps_ties_and_rows() -> None:
    values = {name: {2: 0, 4: 0, 8: 0} for name in "abc"}
    steps = [{"a": {2: 2, 4: 4, 8: 8}, "b": {2: 2, 4: 4, 8: 8}}, {"c": {2: 2, 4: 4, 8: 8}}]
    assert solve(values, {"ram": steps}, {"ram": 9}, ties=[("a", "b")]).bits == {"a": 4, "b": 4, "c": 8}


def test_more_bits_are_not_taken_where_they_are_worse() -> None:
    values = {"a": {2: 0, 4: 1, 8: 0.5}}
    assert solve(values, {"m": {"a": {2: 1, 4: 1, 8: 1}}}, {"m": 1}).bits == {"a": 4}


@pytest.mark.parametrize("seed", range(40))
def test_nothing_can_be_widened_for_free(instance: Callable[..., Any], seed: int) -> None:
    """No single group could have a wider choice that is no worse and still fits."""
    one = instance(seed + 500)
    if best_by_enumeration(**one.arguments()) is None:
        one.budgets = dict.fromkeys(one.budgets, math.inf)
    bits = solve(**one.arguments()).bits
    noise = 1e-9 * max(abs(v) for choices in one.values.values() for v in choices.values())

    def value(layer: str, width: int) -> float:
        number = one.values[layer][width]
        return number if abs(number) >= noise else 0.0

    for layer in one.values:
        group = next((tie for tie in one.ties if layer in tie), [layer])
        for wider in (w for w in one.values[layer] if w > bits[layer]):
            other = {**bits, **dict.fromkeys(group, wider)}
            gain = sum(value(n, wider) - value(n, bits[n]) for n in group)
            assert gain < 0 or one.overshot(other)
