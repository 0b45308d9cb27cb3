"""The trade-off between a cost and the objective: every allocation that no other beats in both."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwbmpq.allocate.infeasible import budget_for, rounded_up, smallest_bits
from hwbmpq.allocate.problem import AllocationProblem, Choice, Cost, Table, Ties, build_problem
from hwbmpq.allocate.solve import bits_of, find_best, solve_problem
from hwbmpq.allocate.tableau import Tableau, build_tableau
from hwbmpq.costs.table import Number
from hwbmpq.errors import UnknownNameError

OnStep = Callable[[int, int], None]

_SAME = 1e-12
"""Objectives that differ by less of their range are equal: rounding."""
_MOST_STATES = 30_000_000
"""States of the exact set that are kept, over all groups: 180 MB. Many layers and many points together are too many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint:
    costs: Mapping[str, Number]
    objective: float
    bits: Mapping[str, Choice]


@dataclass(frozen=True, kw_only=True)
class Frontier(Sequence[FrontierPoint]):
    """Points from cheap to dear; with one cost, the objective climbs along."""

    costs: tuple[str, ...]
    is_exact: bool
    """Whether no non-dominated point is missing; otherwise it is a sample of them."""
    totals: NDArray[np.float64]
    """Points × costs."""
    objectives: NDArray[np.float64]
    problem: AllocationProblem
    picks: NDArray[np.int16]
    """Points × groups."""

    def __len__(self) -> int:
        return len(self.objectives)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        bits = self.problem.bits(self.picks[position].tolist())
        return FrontierPoint(
            costs={cost: self.problem.total(cost, bits) for cost in self.costs},
            objective=self.problem.objective(bits),
            bits=bits,
        )

    def __iter__(self) -> Iterator[FrontierPoint]:
        return (self[position] for position in range(len(self)))

    @property
    def objective_range(self) -> tuple[float, float]:
        """From every group at its worst to every group at its best choice."""
        return self.problem.objective_range

    @property
    def shares(self) -> NDArray[np.float64]:
        """Where the objectives lie between the worst (0) and the best (1)."""
        low, high = self.objective_range
        return (self.objectives - low) / (high - low) if high > low else np.ones(len(self))

    def best_within(self, budgets: Mapping[str, Number]) -> FrontierPoint | None:
        """The point with the largest objective that these budgets allow."""
        for cost in budgets:
            if cost not in self.costs:
                raise UnknownNameError("cost of this frontier", cost, self.costs)
        limits = np.array([budgets.get(cost, math.inf) for cost in self.costs])
        fits = (self.totals <= limits).all(axis=1)
        if not fits.any():
            return None
        point: FrontierPoint = self[int(np.where(fits, self.objectives, -np.inf).argmax())]
        return point


def frontier(
    values: Table,
    costs: Mapping[str, Cost],
    ties: Ties = (),
    *,
    budgets: Mapping[str, Number] | None = None,
    samples: int = 24,
    most_points: int = 200_000,
    solver: str = "auto",
    on_step: OnStep | None = None,
) -> Frontier:
    """All non-dominated pairs of cost and objective if there is one additive cost; else a sample.

    With several costs, or one that has rows, or budgets on the costs, the problem is solved for ``samples`` budgets
    along each cost; so it is if the exact set has more than ``most_points`` points. ``on_step`` is told how many of how
    many are done.
    """
    problem = build_problem(values, costs, budgets or {}, ties)
    if len(problem.rows) == 1 and not problem.limited_rows:
        exact = _exact(problem, most_points)
        if exact is not None:
            return exact
    return _sampled(problem, samples, solver, on_step)


def _exact(problem: AllocationProblem, most_points: int) -> Frontier | None:
    """Nemhauser and Ullmann: add one group after the other, drop what is dominated."""
    tableau = _as_limited(problem)
    values, costs, states = np.zeros(1), np.zeros(1), 0
    history: list[tuple[NDArray[np.int32], NDArray[np.int16]]] = []
    for group in range(len(problem.groups)):
        choices = np.flatnonzero(tableau.is_open[group])
        count = len(values)
        values = np.add.outer(tableau.values[group, choices], values).ravel()
        costs = np.add.outer(tableau.costs[0, group, choices], costs).ravel()
        order = np.lexsort((-values, costs))
        keep = order[_climbs(values[order])]
        states += len(keep)
        if len(keep) > most_points or states > _MOST_STATES:
            return None
        values, costs = values[keep], costs[keep]
        history.append(((keep % count).astype(np.int32), choices[keep // count].astype(np.int16)))
    picks = _traced(history, len(values))
    totals = np.array(_totals(problem, picks)).reshape(-1, 1)
    objectives = np.array([math.fsum(terms) for terms in _terms(problem, problem.values, picks)])
    return _frontier(problem, picks, totals, objectives, is_exact=True)


def _as_limited(problem: AllocationProblem) -> Tableau:
    """Arrays of a problem whose one cost has no budget."""
    (cost,) = problem.costs
    return build_tableau(problem.with_budgets({cost: 0}))


def _climbs(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which values are larger than all before them."""
    best = np.maximum.accumulate(values)
    least = _SAME * (values.max() - values.min()) + 1e-15 * max(abs(values.max()), abs(values.min()))
    is_larger: NDArray[np.bool_] = np.concatenate([[True], values[1:] > best[:-1] + least])
    return is_larger


def _traced(history: list[tuple[NDArray[np.int32], NDArray[np.int16]]], count: int) -> NDArray[np.int16]:
    picks = np.empty((count, len(history)), dtype=np.int16)
    states: NDArray[Any] = np.arange(count)
    for group in range(len(history) - 1, -1, -1):
        parents, choices = history[group]
        picks[:, group] = choices[states]
        states = parents[states]
    return picks


def _totals(problem: AllocationProblem, picks: NDArray[np.int16]) -> list[float]:
    """``budget_for`` at many points of a problem that has one row. Adding whole numbers up, which is exact as well, takes
    a tenth of the time that fractions take."""
    (row,) = problem.rows
    exact = {layer: {c: Fraction(v) for c, v in choices.items()} for layer, choices in row.costs.items()}
    constant = Fraction(row.constant)
    fractions = (value for choices in exact.values() for value in choices.values())
    unit = math.lcm(constant.denominator, *(value.denominator for value in fractions))
    whole = {layer: {c: int(v * unit) for c, v in choices.items()} for layer, choices in exact.items()}
    sums = (sum(terms, int(constant * unit)) for terms in _terms(problem, whole, picks))
    return [float(rounded_up(Fraction(total, unit), row.is_whole)) for total in sums]


def _terms(problem: AllocationProblem, table: Table, picks: NDArray[np.int16]) -> Iterator[list[Any]]:
    """For each point, the numbers that the layers in a table add."""
    paid = [(g, layer) for g, group in enumerate(problem.groups) for layer in group.layers if layer in table]
    numbers = np.zeros((len(paid), max(len(group.choices) for group in problem.groups)), dtype=object)
    for position, (g, layer) in enumerate(paid):
        for j, choice in enumerate(problem.groups[g].choices):
            numbers[position, j] = table[layer][choice]
    groups, positions = np.array([g for g, _ in paid], dtype=int), np.arange(len(paid))
    return (numbers[positions, point[groups]].tolist() for point in picks)


def _sampled(problem: AllocationProblem, samples: int, solver: str, on_step: OnStep | None) -> Frontier:
    """Solve for evenly spaced budgets between the smallest and the largest cost, on every axis."""
    grid = list(itertools.product(*(_steps(problem, cost, samples, solver) for cost in problem.costs)))
    found: dict[tuple[int, ...], tuple[Number, ...]] = {}
    solved: list[tuple[tuple[Number, ...], tuple[Number, ...]]] = []
    for done, budgets in enumerate(reversed(grid)):
        if not any(_answers(before, used, budgets) for before, used in solved):
            best = find_best(problem.with_budgets(dict(zip(problem.costs, budgets, strict=True))), solver)
            if best is not None:
                used = tuple(budget_for(problem, cost, best.bits) for cost in problem.costs)
                found[tuple(g.choices.index(best.bits[g.name]) for g in problem.groups)] = used
                solved.append((budgets, used))
        if on_step is not None:
            on_step(done + 1, len(grid))
    if not found:
        solve_problem(problem, solver)  # raises: the budgets cannot be met
    picks = np.array(sorted(found), dtype=np.int16).reshape(len(found), len(problem.groups))
    everyone = [problem.bits(row.tolist()) for row in picks]
    totals = [[float(budget_for(problem, cost, bits)) for cost in problem.costs] for bits in everyone]
    objectives = np.array([problem.objective(bits) for bits in everyone])
    return _frontier(problem, picks, np.array(totals), objectives, is_exact=False)


def _steps(problem: AllocationProblem, cost: str, samples: int, solver: str) -> list[Number]:
    least = smallest_bits(problem, cost, {}, lambda other: bits_of(find_best(other, solver)))
    assert least is not None, "without budgets everything is allowed"
    best = find_best(problem.with_budgets({}), solver)
    assert best is not None, "without budgets everything is allowed"
    low = budget_for(problem, cost, least)
    high = max(low, budget_for(problem, cost, best.bits))
    steps = [low, *(low + (high - low) * i / (samples - 1) for i in range(1, samples - 1)), high]
    ceiling = problem.budgets.get(cost, math.inf)
    return list(dict.fromkeys(min(step, ceiling) for step in steps))


def _answers(before: tuple[Number, ...], used: tuple[Number, ...], budgets: tuple[Number, ...]) -> bool:
    """Whether the best under larger budgets is also the best under these: it fits."""
    return all(u <= b <= larger for u, b, larger in zip(used, budgets, before, strict=True))


def _frontier(
    problem: AllocationProblem,
    picks: NDArray[np.int16],
    totals: NDArray[np.float64],
    objectives: NDArray[np.float64],
    *,
    is_exact: bool,
) -> Frontier:
    """Sort the points, and drop those that another beats or equals in everything."""
    order = np.lexsort((-objectives, *totals.T[::-1]))
    kept: list[int] = []
    if totals.shape[1] == 1:
        kept = order[_climbs(objectives[order])].tolist() if len(order) else []
    else:
        for i in order.tolist():
            if not any((totals[j] <= totals[i]).all() and objectives[j] >= objectives[i] for j in kept):
                kept.append(i)
    return Frontier(
        costs=problem.costs,
        is_exact=is_exact,
        totals=totals[kept],
        objectives=objectives[kept],
        problem=problem,
        picks=picks[kept],
    )
