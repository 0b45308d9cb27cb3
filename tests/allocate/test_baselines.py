"""Control allocations keep every budget, and leave nothing of it unused."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hwbmpq.allocate import (
    AllocationError,
    InfeasibleBudget,
    density_widths,
    fill,
    greedy_fill,
    random_fill,
    reversed_fill,
    solve,
)
from hwbmpq.costs.table import CostRow, CostTable
from hwbmpq.errors import UnknownNameError
from hwbmpq.values import Precision

LAYERS = ("a", "b", "c")
SIZES = {"a": 10, "b": 20, "c": 40}
OPTIONS = dict.fromkeys(LAYERS, (2, 4, 8))
MEMORY = {layer: {bits: bits * SIZES[layer] for bits in (2, 4, 8)} for layer in LAYERS}
SMALLEST = 2 * sum(SIZES.values())


def can_be_widened(instance: Any, bits: Mapping[str, Any]) -> bool:
    """Whether some group has a wider choice that still fits, tried one by one."""
    groups = [*instance.ties, *([layer] for layer in bits)]
    tied = {layer for tie in instance.ties for layer in tie}
    for group in groups:
        if len(group) == 1 and group[0] in tied:
            continue
        for wider in instance.values[group[0]]:
            changed = {**bits, **dict.fromkeys(group, wider)}
            if wider > bits[group[0]] and not instance.overshot(changed):
                return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_budgets_and_ties_hold_and_nothing_more_fits(seed: int, instance: Callable[..., Any]) -> None:
    given = instance(seed)
    try:
        best = solve(**given.arguments())
    except InfeasibleBudget:
        with pytest.raises(InfeasibleBudget):
            random_fill(*given.arguments().values(), seed=seed)
        return
    found = random_fill(*given.arguments().values(), seed=seed)
    assert given.overshot(found.bits) == []
    assert given.broken_ties(found.bits) == []
    assert not can_be_widened(given, found.bits)
    assert found.objective <= best.bound * (1 + 1e-9) if best.bound > 0 else found.objective <= best.bound


@pytest.mark.parametrize("seed", range(20))
def test_costs_that_pull_in_different_directions_are_kept_too(
    seed: int, conflict: Callable[..., Any]
) -> None:
    given = conflict(seed)
    try:
        found = random_fill(*given.arguments().values(), seed=seed)
    except InfeasibleBudget:
        with pytest.raises(InfeasibleBudget):
            solve(**given.arguments())
        return
    assert given.overshot(found.bits) == []
    assert not can_be_widened(given, found.bits)


def test_groups_are_filled_in_the_given_order() -> None:
    budget = SMALLEST + 6 * SIZES["c"] + 2 * SIZES["a"]
    assert fill(["c", "a", "b"], OPTIONS, {"memory": MEMORY}, {"memory": budget}).bits == {
        "a": 4,
        "b": 2,
        "c": 8,
    }


def test_groups_that_the_order_leaves_out_come_last() -> None:
    found = fill(["b"], OPTIONS, {"memory": MEMORY}, {"memory": SMALLEST + 6 * SIZES["b"]})
    assert found.bits == {"a": 2, "b": 8, "c": 2}


def test_the_turn_of_a_tie_group_comes_with_any_of_its_layers() -> None:
    budget = SMALLEST + 6 * (SIZES["a"] + SIZES["c"])
    found = fill(["c", "b"], OPTIONS, {"memory": MEMORY}, {"memory": budget}, [("a", "c")])
    assert found.bits == {"a": 8, "b": 2, "c": 8}


def test_an_unknown_layer_in_the_order_is_named() -> None:
    with pytest.raises(UnknownNameError, match="no layer to fill named 'd'"):
        fill(["d"], OPTIONS, {"memory": MEMORY}, {"memory": 1000})


@pytest.mark.parametrize(("largest_first", "wide"), [(False, "a"), (True, "c")])
def test_greedy_goes_by_size(largest_first: bool, wide: str) -> None:
    budget = SMALLEST + 6 * SIZES[wide]
    found = greedy_fill(
        OPTIONS, {"memory": MEMORY}, {"memory": budget}, sizes=SIZES, largest_first=largest_first
    )
    assert found.bits == {layer: 8 if layer == wide else 2 for layer in LAYERS}
    assert found.solver == "greedy"


def test_a_tie_group_is_as_large_as_all_its_layers() -> None:
    budget = SMALLEST + 6 * SIZES["c"]  # c alone is smaller than a and b together would be with 50 weights
    sizes = {"a": 25, "b": 25, "c": 40}
    found = greedy_fill(OPTIONS, {"memory": MEMORY}, {"memory": budget}, [("a", "b")], sizes=sizes)
    assert found.bits == {"a": 2, "b": 2, "c": 8}


def test_reversed_widens_what_needs_it_least() -> None:
    scores = {"a": 3.0, "b": 1.0, "c": 2.0}
    found = reversed_fill(OPTIONS, {"memory": MEMORY}, {"memory": SMALLEST + 6 * SIZES["b"]}, scores=scores)
    assert found.bits == {"a": 2, "b": 8, "c": 2}


def test_a_layer_without_a_score_is_named_unless_it_has_no_choice() -> None:
    with pytest.raises(AllocationError, match="no score is given for c"):
        reversed_fill(OPTIONS, {"memory": MEMORY}, {"memory": 1000}, scores={"a": 1, "b": 1})
    fixed = OPTIONS | {"c": (8,)}
    found = reversed_fill(fixed, {"memory": MEMORY}, {"memory": 1000}, scores={"a": 1, "b": 1})
    assert found.bits["c"] == 8


def test_a_seed_gives_the_same_allocation_again_and_seeds_differ() -> None:
    rng = random.Random(0)
    sizes = {f"l{i}": rng.randint(100, 1000) for i in range(20)}
    memory = {layer: {bits: bits * size for bits in (2, 4, 8)} for layer, size in sizes.items()}
    options = dict.fromkeys(sizes, (2, 4, 8))
    budget = {"memory": 4 * sum(sizes.values())}
    found = [random_fill(options, {"memory": memory}, budget, seed=seed).bits for seed in (0, 0, 1, 2)]
    assert found[0] == found[1]
    assert len({tuple(bits.values()) for bits in found}) == 3


def test_the_objective_is_that_of_the_given_values() -> None:
    values = {layer: {2: 0.0, 4: 1.0, 8: 3.0} for layer in LAYERS}
    found = fill(["a"], values, {"memory": MEMORY}, {"memory": SMALLEST + 6 * SIZES["a"]})
    assert found.objective == 3.0
    assert found.bound == 9.0
    assert found.costs == {"memory": 200}
    assert found.slack == {"memory": 0}
    assert not found.optimal
    assert type(found).from_json(found.to_json()) == found


def test_every_row_of_a_cost_is_kept() -> None:
    rows = (
        CostRow(costs={"a": MEMORY["a"], "b": MEMORY["b"]}, constant=5),
        CostRow(costs={"c": MEMORY["c"]}),
    )
    table = CostTable(name="ram", unit="bit", rows=rows)
    found = fill(LAYERS, OPTIONS, {"ram": table, "memory": MEMORY}, {"ram": 165, "memory": 10_000})
    assert found.bits == {"a": 8, "b": 4, "c": 4}
    assert found.costs["ram"] == 165


def test_where_wider_is_cheaper_the_room_it_gains_is_used() -> None:
    memory = {"a": {2: 10, 4: 20}, "b": {2: 20, 4: 10}}
    found = fill(["a", "b"], {"a": (2, 4), "b": (2, 4)}, {"memory": memory}, {"memory": 30})
    assert found.bits == {"a": 4, "b": 4}


def test_a_start_at_the_narrowest_that_is_too_dear_is_made_wider_where_that_is_cheaper() -> None:
    latency = {"a": {2: 50, 4: 10}, "b": {2: 10, 4: 20}}
    found = fill(["a", "b"], {"a": (2, 4), "b": (2, 4)}, {"latency": latency}, {"latency": 25})
    assert found.bits == {"a": 4, "b": 2}


def test_a_budget_below_the_smallest_is_refused_as_by_solve() -> None:
    with pytest.raises(InfeasibleBudget) as expected:
        solve({layer: dict.fromkeys((2, 4, 8), 0) for layer in LAYERS}, {"memory": MEMORY}, {"memory": 100})
    with pytest.raises(InfeasibleBudget) as raised:
        random_fill(OPTIONS, {"memory": MEMORY}, {"memory": 100}, seed=0)
    assert str(raised.value) == str(expected.value)


def precisions(**bits: int) -> dict[str, Precision]:
    return {layer: Precision(weight_bits=width, activation_bits=width) for layer, width in bits.items()}


@pytest.mark.parametrize(
    ("bits", "density", "expected"),
    [(16, 0.5, 8), (16, 1.0, 16), (16, 0.0, 2), (4, 0.4, 2), (7, 0.5, 4), (32, 0.9, 16), (32, 1.0, 32)],
)
def test_a_width_is_multiplied_by_the_density(bits: int, density: float, expected: int) -> None:
    assert density_widths(precisions(a=bits), {"a": density}) == {"a": expected}


def test_fixed_layers_keep_their_width_and_tied_ones_share_the_widest() -> None:
    found = density_widths(
        precisions(a=16, b=16, c=8, d=8),
        {"a": 0.1, "b": 0.5, "c": 0.5, "d": 0.75},
        fixed=["a"],
        ties=[("a", "c"), ("c", "d")],
    )
    assert found == {"a": 16, "b": 8, "c": 6, "d": 6}


@pytest.mark.parametrize(
    ("densities", "message"),
    [
        ({}, "no activation density is given for layer 'a'"),
        ({"a": 1.5}, "layer 'a': an activation density of 1.5"),
    ],
)
def test_densities_that_are_missing_or_no_shares_name_the_layer(
    densities: dict[str, float], message: str
) -> None:
    with pytest.raises(AllocationError, match=message):
        density_widths(precisions(a=8), densities)


def test_an_unknown_fixed_layer_is_named() -> None:
    with pytest.raises(UnknownNameError, match="no layer to keep named 'z'"):
        density_widths(precisions(a=8), {"a": 0.5}, fixed=["z"])
