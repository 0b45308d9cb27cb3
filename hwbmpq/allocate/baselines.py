"""Baseline allocations: what a method has to beat at the same budgets. They fill the budget without looking at sensitivities.

Random *values* put into the knapsack are not a baseline: the knapsack alone favours small layers.
"""

import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hwbmpq.allocate.allocation import Allocation
from hwbmpq.allocate.problem import (
    AllocationError,
    AllocationProblem,
    Cost,
    Group,
    Table,
    Ties,
    build_problem,
)
from hwbmpq.allocate.solve import solve_problem, widen_for_free
from hwbmpq.costs.table import Number
from hwbmpq.errors import UnknownNameError
from hwbmpq.values import FLOAT_BITS, MAX_BITS, MIN_BITS, Precision


def density_widths(
    current: Mapping[str, Precision],
    densities: Mapping[str, float],
    *,
    fixed: Collection[str] = (),
    ties: Ties = (),
) -> dict[str, int]:
    """Weight widths after one step of activation-density quantization: round(width × density), at least 2.

    Vasquez et al. 2021; half-way cases round to even. ``fixed`` layers, the ends, keep their width and need no
    density; of the others in a tie group all get the width of the widest. No width grows, and no budget is asked.

    >>> now = Precision(weight_bits=16, activation_bits=16)
    >>> density_widths({"a": now, "b": now, "c": now}, {"a": 0.25, "b": 0.01}, fixed=["c"])
    {'a': 4, 'b': 2, 'c': 16}
    """
    for layer in fixed:
        if layer not in current:
            raise UnknownNameError("layer to keep", layer, current)
    widths = {
        layer: precision.weight_bits if layer in fixed else _width(layer, precision.weight_bits, densities)
        for layer, precision in current.items()
    }
    groups = build_problem({layer: {0: 0} for layer in current}, {}, {}, ties).groups
    for group in groups:
        free = [layer for layer in group.layers if layer not in fixed]
        widths |= dict.fromkeys(free, max((widths[layer] for layer in free), default=MIN_BITS))
    return widths


def _width(layer: str, bits: int, densities: Mapping[str, float]) -> int:
    if layer not in densities:
        raise AllocationError(f"no activation density is given for layer {layer!r}")
    density = densities[layer]
    if not 0 <= density <= 1:
        raise AllocationError(f"layer {layer!r}: an activation density of {density} is not between 0 and 1")
    width = max(MIN_BITS, round(bits * density))
    return width if width == FLOAT_BITS else min(width, MAX_BITS)  # there are no integers in between


Options = Mapping[str, Mapping[Any, Number] | Iterable[Any]]
"""By layer: the values of its choices, or the choices alone; the objective is then 0 and means nothing."""


def fill(
    order: Sequence[str],
    options: Options,
    costs: Mapping[str, Cost],
    budgets: Mapping[str, Number],
    ties: Ties = (),
) -> Allocation:
    """Every group at its narrowest, then one after the other as wide as the budgets still allow.

    ``order`` names layers; the turn of a tie group comes with the first of its layers, and groups that
    are not named come last. The other arguments are those of ``solve``, and so is the error.

    >>> fill(["b", "a"], {"a": [2, 4], "b": [2, 4]}, {"memory": {"a": {2: 20, 4: 40}, "b": {2: 10, 4: 20}}},
    ...      {"memory": 50}).bits
    {'a': 2, 'b': 4}
    """
    return _fill(_problem(options, costs, budgets, ties), order, "fill")


def random_fill(
    options: Options,
    costs: Mapping[str, Cost],
    budgets: Mapping[str, Number],
    ties: Ties = (),
    *,
    seed: int,
) -> Allocation:
    """``fill`` in random order, each tie group being as likely as any other to come first."""
    problem = _problem(options, costs, budgets, ties)
    names = [group.name for group in problem.groups]
    random.Random(seed).shuffle(names)
    return _fill(problem, names, "random")


def greedy_fill(
    options: Options,
    costs: Mapping[str, Cost],
    budgets: Mapping[str, Number],
    ties: Ties = (),
    *,
    sizes: Mapping[str, Number],
    largest_first: bool = False,
) -> Allocation:
    """``fill`` by size: the groups with the fewest weights first, or those with the most."""
    problem = _problem(options, costs, budgets, ties)
    return _fill(problem, _ranked(problem, sizes, "size", descending=largest_first), "greedy")


def reversed_fill(
    options: Options,
    costs: Mapping[str, Cost],
    budgets: Mapping[str, Number],
    ties: Ties = (),
    *,
    scores: Mapping[str, float],
) -> Allocation:
    """``fill`` against the ranking: the groups whose sensitivities add up to least first."""
    problem = _problem(options, costs, budgets, ties)
    return _fill(problem, _ranked(problem, scores, "score", descending=False), "reversed")


def _problem(
    options: Options, costs: Mapping[str, Cost], budgets: Mapping[str, Number], ties: Ties
) -> AllocationProblem:
    values = {
        layer: given if isinstance(given, Mapping) else dict.fromkeys(given, 0)
        for layer, given in options.items()
    }
    return build_problem(values, costs, budgets, ties)


def _ranked(
    problem: AllocationProblem, numbers: Mapping[str, Number], what: str, *, descending: bool
) -> list[str]:
    free = [group for group in problem.groups if len(group.choices) > 1]
    missing = [layer for group in free for layer in group.layers if layer not in numbers]
    if missing:
        raise AllocationError(f"no {what} is given for {', '.join(missing[:5])}")
    free.sort(key=lambda group: sum(numbers[layer] for layer in group.layers), reverse=descending)
    return [group.name for group in free]


def _fill(problem: AllocationProblem, order: Sequence[str], name: str) -> Allocation:
    start = time.monotonic()
    # With values of zero no width is worse than a narrower one: every one that fits is given away.
    blind = replace(problem, groups=_sorted(problem, order)).with_values(_values(problem, 0))
    picks = _narrowest(blind)
    while (wider := widen_for_free(blind, picks)) != picks:  # again: room is gained where wider is cheaper
        picks = wider
    bits = blind.bits(picks)
    objective = problem.objective(bits)
    return Allocation(
        bits=bits,
        objective=objective,
        bound=max(objective, problem.objective_range[1]),
        costs={cost: problem.total(cost, bits) for cost in problem.costs},
        budgets=dict(problem.budgets),
        solver=name,
        seconds=time.monotonic() - start,
        problem=problem,
    )


def _sorted(problem: AllocationProblem, order: Sequence[str]) -> tuple[Group, ...]:
    group_of = {layer: group for group in problem.groups for layer in group.layers}
    for layer in order:
        if layer not in group_of:
            raise UnknownNameError("layer to fill", layer, group_of)
    named = [group_of[layer].name for layer in order]
    names = dict.fromkeys([*named, *(group.name for group in problem.groups)])
    return tuple(group_of[name] for name in names)


def _narrowest(problem: AllocationProblem) -> list[int]:
    """Every group at its narrowest; where that is too dear, the narrowest allocation within the budgets."""
    narrowest = [0] * len(problem.groups)
    if problem.is_within_budgets(problem.bits(narrowest)):
        return narrowest
    bits = solve_problem(problem.with_values(_values(problem, -1))).bits
    return [group.choices.index(bits[group.name]) for group in problem.groups]


def _values(problem: AllocationProblem, step: int) -> Table:
    """``step`` for each choice that is passed on the way up from the narrowest."""
    return {
        layer: {choice: step * index for index, choice in enumerate(sorted(choices))}
        for layer, choices in problem.values.items()
    }
