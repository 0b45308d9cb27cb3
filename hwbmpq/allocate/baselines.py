"""Control allocations: what a method has to beat at the same budgets. They use the budget up, but not wisely.

Random *values* put into the knapsack are no such control: the knapsack alone favours small layers.
"""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
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
from hwbmpq.allocate.solve import solve_problem
from hwbmpq.allocate.widen import widen_for_free
from hwbmpq.costs.table import Number
from hwbmpq.errors import UnknownNameError

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
