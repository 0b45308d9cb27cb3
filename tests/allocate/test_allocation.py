"""``Allocation``: JSON, and the Pyomo model behind it."""

import json
import math
from collections.abc import Callable
from typing import Any

import pyomo.environ as pyo
import pytest

from hwbmpq.allocate import Allocation, AllocationError, solve
from hwbmpq.values import Precision

VALUES = {"a": {2: 0, 4: 3}, "b": {2: 0, 4: 2}}
COSTS = {
    "memory": {"a": {2: 20, 4: 40}, "b": {2: 10, 4: 20}},
    "latency": {"a": {2: 1.5, 4: 2.5}, "b": {2: 1.0, 4: 1.0}},
}
NARROW, WIDE = (Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4))


def renamed(choices: tuple[Any, Any]) -> Allocation:
    """The same problem with other choices than 2 and 4."""
    names = dict(zip((2, 4), choices, strict=True))

    def rename(table: Any) -> Any:
        return {n: {names[c]: number for c, number in numbers.items()} for n, numbers in table.items()}

    return solve(
        rename(VALUES), {n: rename(t) for n, t in COSTS.items()}, {"memory": 50, "latency": math.inf}
    )


@pytest.mark.parametrize(
    "choices", [(2, 4), ((2, 8), (4, 8)), (NARROW, WIDE)], ids=["int", "pair", "Precision"]
)
def test_json_and_back_is_the_same(choices: tuple[Any, Any]) -> None:
    allocation = renamed(choices)
    assert Allocation.from_json(allocation.to_json()) == allocation


def test_json_says_what_people_look_for() -> None:
    content = json.loads(solve(VALUES, COSTS, {"memory": 50}).to_json())
    seconds = content.pop("seconds")
    assert seconds > 0
    assert content == {
        "bits": {"a": 4, "b": 2},
        "objective": 3.0,
        "bound": 3.0,
        "gap": 0.0,
        "optimal": True,
        "costs": {"memory": 50, "latency": 3.5},
        "budgets": {"memory": 50},
        "slack": {"memory": 0},
        "solver": "highs",
        "proven_by": "exact search",
        "is_improved": False,
    }


def test_precisions_are_text_in_json() -> None:
    assert renamed((NARROW, WIDE)).to_dict()["bits"] == {"a": "W4A8", "b": "W2A8"}


def test_an_infinite_budget_is_null_in_json() -> None:
    content = renamed((2, 4)).to_dict()
    assert (content["budgets"]["latency"], content["slack"]["latency"]) == (None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"this is not an allocation: Expecting"),
        ("[]", r"this is not an allocation: TypeError"),
        ("{}", r"this is not an allocation: KeyError: 'bits'"),
        ('{"bits": 3}', r"this is not an allocation: AttributeError"),
        ('{"bits": {"a": "wide"}}', r"this is not an allocation: ValueError"),
    ],
    ids=["broken", "list", "empty", "bits", "choice"],
)
def test_other_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(AllocationError, match=message):
        Allocation.from_json(text)


def test_an_allocation_from_json_has_no_model() -> None:
    allocation = Allocation.from_json(solve(VALUES, COSTS, {"memory": 50}).to_json())
    with pytest.raises(AllocationError, match=r"was read from JSON has no model") as caught:
        _ = allocation.model
    assert caught.value.hint == "solve it again"


@pytest.mark.parametrize("seed", range(6))
def test_the_model_holds_the_answer(network: Callable[..., Any], solver: str, seed: int) -> None:
    """Its objective, turned back from shares, is the allocation's; every constraint holds."""
    instance = network(12, 4, 2, seed)
    allocation = solve(**instance.arguments(), solver=solver)
    model = allocation.model
    shown = pyo.value(model.total_value) * model.value_unit.value + model.value_offset.value
    assert shown == pytest.approx(allocation.objective, rel=1e-9)
    for constraint in model.component_data_objects(pyo.Constraint):
        body = pyo.value(constraint.body)
        assert constraint.lower is None or body >= pyo.value(constraint.lower) - 1e-9
        assert body <= pyo.value(constraint.upper) + 1e-9


def test_the_model_has_one_binary_per_layer_and_choice() -> None:
    model = solve(VALUES, COSTS, {"memory": 50}).model
    picked = {key for key, variable in model.pick.items() if variable.value == 1}
    assert picked == {("a", "4"), ("b", "2")}
    assert all(variable.is_binary() for variable in model.pick.values())


def test_the_model_names_its_budgets() -> None:
    allocation = solve(VALUES, COSTS, {"memory": 50})
    assert [name.split(" #")[0] for name in allocation.model.budget] == ["memory"]


@pytest.mark.parametrize("solver_name", ["highs", "glpk"])
def test_an_allocation_that_needed_a_tolerance_has_json(
    network: Callable[..., Any], solver_name: str
) -> None:
    """Plain numbers all the way: numpy's do not go into JSON."""
    instance = network(60, 7, 3, 0)
    allocation = solve(**instance.arguments(), solver=solver_name, time_limit=20)
    assert [type(x) for x in (allocation.optimal, allocation.gap, allocation.bound)] == [bool, float, float]
    assert json.loads(allocation.to_json())["optimal"]
