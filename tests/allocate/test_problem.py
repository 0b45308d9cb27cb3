"""Numbers that make no allocation problem are refused by name."""

import math
import re
from typing import Any

import pytest

from hwbmpq.allocate import AllocationError, solve
from hwbmpq.costs.table import CostTable
from hwbmpq.errors import HwbmpqError, UnknownNameError

VALUES = {"a": {2: 0.0, 4: 3.0}, "b": {2: 0.0, 4: 2.0}}
MEMORY = {"a": {2: 20, 4: 40}, "b": {2: 10, 4: 20}}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, "3", True, None, 1j, [1]], ids=repr)
def test_a_value_must_be_a_finite_number(number: Any) -> None:
    message = rf"values, layer 'b', 4: {re.escape(repr(number))} is not a finite number"
    with pytest.raises(AllocationError, match=message):
        solve({**VALUES, "b": {2: 0.0, 4: number}}, {"memory": MEMORY}, {"memory": 50})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, "3", False, None], ids=repr)
def test_a_cost_must_be_a_finite_number(number: Any) -> None:
    message = rf"cost 'memory', layer 'a', 2: {re.escape(repr(number))} is not a finite number"
    with pytest.raises(AllocationError, match=message):
        solve(VALUES, {"memory": {**MEMORY, "a": {2: number, 4: 1}}}, {"memory": 50})


@pytest.mark.parametrize("budget", [math.nan, -math.inf, "50", True, None], ids=repr)
def test_a_budget_must_be_a_number(budget: Any) -> None:
    with pytest.raises(AllocationError, match=rf"budget memory={re.escape(repr(budget))} is not a number"):
        solve(VALUES, {"memory": MEMORY}, {"memory": budget})


def test_no_layers_are_no_problem_to_solve() -> None:
    with pytest.raises(AllocationError, match=r"no layers: values is empty"):
        solve({}, {}, {})


def test_a_layer_needs_a_choice() -> None:
    with pytest.raises(AllocationError, match=r"values, layer 'a': no number for any choice"):
        solve({"a": {}}, {}, {})


def test_every_choice_needs_a_cost() -> None:
    with pytest.raises(AllocationError, match=r"cost 'memory', layer 'b': no number for 4"):
        solve(VALUES, {"memory": {**MEMORY, "b": {2: 10}}}, {"memory": 50})


def test_every_layer_needs_a_cost() -> None:
    with pytest.raises(AllocationError, match=r"cost 'memory' has no numbers for b") as caught:
        solve(VALUES, {"memory": {"a": MEMORY["a"]}}, {"memory": 50})
    assert caught.value.hint == "write 0 where nothing is paid"


def test_a_row_may_leave_layers_out() -> None:
    assert solve(VALUES, {"ram": [{"a": MEMORY["a"]}]}, {"ram": 20}).bits == {"a": 2, "b": 4}


def test_a_cost_needs_a_table() -> None:
    with pytest.raises(AllocationError, match=r"cost 'ram' has no table"):
        solve(VALUES, {"ram": []}, {"ram": 20})


def test_a_cost_table_needs_a_row() -> None:
    with pytest.raises(AllocationError, match=r"cost 'ram' has no table"):
        solve(VALUES, {"ram": CostTable(name="ram", unit="bit", rows=())}, {"ram": 20})


def test_a_cost_for_an_unknown_layer_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"layer for cost 'memory'.*'c'"):
        solve(VALUES, {"memory": {**MEMORY, "c": {2: 1, 4: 2}}}, {"memory": 50})


def test_a_tie_of_an_unknown_layer_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"layer to tie.*'c'"):
        solve(VALUES, {"memory": MEMORY}, {"memory": 50}, ties=[["a", "c"]])


def test_a_budget_on_an_unknown_cost_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"cost to budget.*'memry'"):
        solve(VALUES, {"memory": MEMORY}, {"memry": 50})


def test_an_unknown_solver_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"no solver named 'cplex': known: auto, glpk, highs"):
        solve(VALUES, {"memory": MEMORY}, {"memory": 50}, solver="cplex")


def test_tied_layers_need_a_choice_in_common() -> None:
    values = {"a": {2: 0, 4: 1}, "b": {8: 0, 16: 1}}
    with pytest.raises(AllocationError, match=r"tied layers have no choice in common \(a: 2, 4; b: 8, 16\)"):
        solve(values, {}, {}, ties=[["a", "b"]])


@pytest.mark.parametrize(
    "call",
    [
        lambda: solve({}, {}, {}),
        lambda: solve(VALUES, {"memory": MEMORY}, {"flash": 1}),
        lambda: solve(VALUES, {"memory": MEMORY}, {"memory": 1}),
        lambda: solve(VALUES, {"memory": MEMORY}, {"memory": 50}, solver="cplex"),
    ],
    ids=["empty", "unknown", "infeasible", "solver"],
)
def test_all_refusals_are_errors_of_this_package(call: Any) -> None:
    with pytest.raises(HwbmpqError):
        call()
