"""Budgets that cannot be met: the report names the least, and its suggestion is minimal."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hwbmpq.allocate import BudgetReport, InfeasibleBudget, solve
from hwbmpq.costs.table import CostRow, CostTable
from hwbmpq.testing import best_by_enumeration

VALUES = {"a": {2: 0, 4: 3}, "b": {2: 0, 4: 2}}
COSTS = {
    "memory": {"a": {2: 20, 4: 40}, "b": {2: 10, 4: 20}},
    "error": {"a": {2: 6, 4: 3}, "b": {2: 4, 4: 1}},
}
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def refused(*args: Any, **kwargs: Any) -> InfeasibleBudget:
    with pytest.raises(InfeasibleBudget) as caught:
        solve(*args, **kwargs)
    return caught.value


def report_of(error: InfeasibleBudget, cost: str) -> BudgetReport:
    return next(report for report in error.reports if report.cost == cost)


def test_the_message_names_the_least_that_is_possible(solver: str) -> None:
    error = refused(VALUES, COSTS, {"memory": 29}, solver=solver)
    assert str(error).startswith("the budgets cannot be met: memory is at least 30, the budget is 29")


def in_bits(**changes: Any) -> dict[str, CostTable]:
    """A stem without a choice, and two layers, in KiB."""
    kib = 8 * 1024
    costs = {"stem": {16: 3 * kib}, "a": {2: 10 * kib, 4: 20 * kib}, "b": {2: 6 * kib, 4: 12 * kib}}
    rows = (CostRow(costs=costs | changes.pop("costs", {}), **changes),)  # type: ignore[arg-type]
    return {"memory": CostTable(name="memory", unit="bit", rows=rows)}


WITH_STEM = {**VALUES, "stem": {16: 0}}


def test_the_message_has_units_and_says_what_takes_the_room() -> None:
    error = refused(WITH_STEM, in_bits(constant=2048), {"memory": 4 * 8 * 1024})
    assert str(error) == (
        "the budgets cannot be met: memory needs at least 19.25 KiB, the budget is 4.000 KiB (256.0 B do not depend on "
        "widths; 3.000 KiB are layers of one width: stem; the largest layer, a, takes 10.00 KiB at 2)"
    )
    assert error.hint == "these budgets can be met: memory=19.25KiB"
    assert error.to_dict()["budgets"]["memory"]["unit"] == "bit"


def test_amounts_that_look_alike_are_shown_to_the_bit() -> None:
    least = 19 * 8 * 1024
    error = refused(WITH_STEM, in_bits(), {"memory": least - 1})
    assert f"needs at least {least:,} bit, the budget is {least - 1:,} bit" in str(error)


def test_layers_of_one_width_that_take_most_of_the_room_can_be_pinned() -> None:
    error = refused(WITH_STEM, in_bits(costs={"stem": {16: 400_000}}), {"memory": 4 * 8 * 1024})
    assert error.hint.endswith("or give fixed layers fewer bits: stem")


def test_the_hint_names_budgets_that_can_be_met() -> None:
    assert refused(VALUES, COSTS, {"memory": 29}).hint == "these budgets can be met: memory=30"


def test_the_least_cost_comes_with_its_bits() -> None:
    report = report_of(refused(VALUES, COSTS, {"memory": 29}), "memory")
    assert (report.smallest, report.smallest_bits) == (30, {"a": 2, "b": 2})


def test_a_budget_that_is_met_is_reported_as_reachable() -> None:
    error = refused(VALUES, COSTS, {"memory": 29, "error": 10})
    assert [report.is_reachable for report in error.reports] == [False, True]


def test_unreachable_budgets_are_listed() -> None:
    error = refused(VALUES, COSTS, {"memory": 29, "error": 3})
    assert error.unreachable == ("memory", "error")


def test_budgets_without_a_limit_are_not_reported() -> None:
    error = refused(VALUES, COSTS, {"memory": 29, "error": math.inf})
    assert [report.cost for report in error.reports] == ["memory"]


def test_budgets_that_exclude_each_other_are_named(solver: str) -> None:
    error = refused(VALUES, COSTS, {"memory": 35, "error": 5}, solver=solver)
    assert error.unreachable == ()
    assert error.conflict == ("memory", "error")
    assert str(error).startswith("the budgets on memory and error can each be met, but not together")


def test_a_budget_that_does_not_matter_is_not_part_of_the_conflict() -> None:
    costs = {"latency": COSTS["memory"], **COSTS}
    error = refused(VALUES, costs, {"latency": 60, "memory": 35, "error": 5})
    assert error.conflict == ("memory", "error")


def test_there_is_no_conflict_where_one_budget_alone_is_the_reason() -> None:
    assert refused(VALUES, COSTS, {"memory": 29, "error": 10}).conflict == ()


def test_relaxing_one_budget_while_the_other_stays() -> None:
    error = refused(VALUES, COSTS, {"memory": 35, "error": 5})
    assert report_of(error, "memory").relaxation == 60  # only both at 4 bits have an error of 5 or less
    assert report_of(error, "error").relaxation == 10  # a memory of 35 allows 2 bits only


def test_no_relaxation_where_another_budget_is_the_reason() -> None:
    error = refused(VALUES, COSTS, {"memory": 29, "error": 10})
    assert report_of(error, "error").relaxation is None


def test_layers_without_a_choice_are_listed_with_what_they_cost() -> None:
    values = {**VALUES, "stem": {16: 0}}
    costs = {"memory": {**COSTS["memory"], "stem": {16: 160}}}
    report = report_of(refused(values, costs, {"memory": 100}), "memory")
    assert (report.smallest, report.fixed) == (190, {"stem": 160})


def test_ties_are_respected() -> None:
    values = {"a": {2: 0, 4: 3}, "b": {4: 0, 8: 2}}
    costs = {"memory": {"a": {2: 20, 4: 40}, "b": {4: 20, 8: 40}}}
    report = report_of(refused(values, costs, {"memory": 59}, ties=[("a", "b")]), "memory")
    assert (report.smallest, report.smallest_bits) == (60, {"a": 4, "b": 4})


def test_the_least_of_a_cost_with_rows(solver: str) -> None:
    """Row by row each could be 4, but not both: the bits that are cheap in one are dear in the other."""
    rows = [{"a": {2: 4, 4: 9}}, {"a": {2: 10, 4: 4}}]
    error = refused({"a": {2: 0, 4: 1}}, {"ram": rows}, {"ram": 8}, solver=solver)
    report = report_of(error, "ram")
    assert (report.smallest, report.smallest_bits) == (9, {"a": 4})
    assert error.suggestion == {"ram": 9}


def test_constants_are_part_of_the_least() -> None:
    table = CostTable(name="ram", unit="bit", rows=(CostRow(costs=COSTS["memory"], constant=1000),))  # type: ignore[arg-type]
    assert report_of(refused(VALUES, {"ram": table}, {"ram": 1000}), "ram").smallest == 1030


@pytest.mark.parametrize("costs", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_the_least_of_each_cost_is_the_least_of_all_allocations(
    conflict: Callable[..., Any], seed: int, costs: int
) -> None:
    instance = conflict(seed, costs)
    points = list(instance.points())
    instance.budgets = dict.fromkeys(instance.costs, 1)
    for report in refused(**instance.arguments()).reports:
        assert report.smallest == min(point.costs[report.cost] for point in points)
        assert instance.exact_cost(report.cost, report.smallest_bits) == report.smallest


@given(seed=st.integers(0, 10**6), victim=st.integers(0, 2), share=st.floats(0.0, 1 - 1e-9))
@quick
def test_a_budget_below_its_minimum_is_always_refused_with_a_minimal_suggestion(
    instance: Callable[..., Any], seed: int, victim: int, share: float
) -> None:
    one = instance(seed, 5)
    name = list(one.costs)[victim % len(one.costs)]
    least = min(point.costs[name] for point in one.points())
    one.budgets[name] = float(least * Fraction(share))
    assume(one.budgets[name] < least)
    assert_minimal(one, refused(**one.arguments()).suggestion)


@given(seed=st.integers(0, 10**6), costs=st.integers(1, 2))
@quick
def test_conflicting_budgets_are_refused_with_a_minimal_suggestion(
    conflict: Callable[..., Any], seed: int, costs: int
) -> None:
    one = conflict(seed, costs)
    assume(best_by_enumeration(**one.arguments()) is None)
    assert_minimal(one, refused(**one.arguments()).suggestion)


def assert_minimal(instance: Any, suggestion: dict[str, float]) -> None:
    """It can be met, and no raised budget could be smaller by a millionth."""
    points = list(instance.points())
    assert any(point.fits(suggestion) for point in points)
    raised = [name for name, budget in suggestion.items() if budget != instance.budgets[name]]
    assert raised
    for name in raised:
        assert suggestion[name] > instance.budgets[name]
        less = {**suggestion, name: float(suggestion[name]) * (1 - 1e-6)}
        assert not any(point.fits(less) for point in points)


@given(seed=st.integers(0, 10**6))
@quick
def test_a_conflict_is_minimal(conflict: Callable[..., Any], seed: int) -> None:
    one = conflict(seed, 2)
    points = list(one.points())
    assume(not any(point.fits(one.budgets) for point in points))
    error = refused(**one.arguments())
    reachable = all(any(p.fits({n: b}) for p in points) for n, b in one.budgets.items())
    assert bool(error.conflict) == reachable
    if error.conflict:
        chosen = {name: one.budgets[name] for name in error.conflict}
        assert not any(point.fits(chosen) for point in points)
        for name in chosen:
            fewer = {n: b for n, b in chosen.items() if n != name}
            assert any(point.fits(fewer) for point in points)


@given(seed=st.integers(0, 10**6), share=st.floats(0.0, 2.0))
@quick
def test_more_budget_never_lowers_the_objective(
    instance: Callable[..., Any], seed: int, share: float
) -> None:
    one = instance(seed, 6)
    assume(best_by_enumeration(**one.arguments()) is not None)
    now = solve(**one.arguments()).objective
    one.budgets = {name: budget * (1 + share) for name, budget in one.budgets.items()}
    assert solve(**one.arguments()).objective >= now - 1e-6 * abs(now)
