"""``solve``: numbers in, bits out."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwbmpq.allocate.allocation import PROOF, Allocation
from hwbmpq.allocate.exact.core import Picks
from hwbmpq.allocate.exact.search import ExactSearch, Found
from hwbmpq.allocate.ilp import IntegerProgram
from hwbmpq.allocate.infeasible import InfeasibleBudget
from hwbmpq.allocate.problem import (
    AllocationError,
    AllocationProblem,
    Choice,
    Cost,
    Table,
    Ties,
    build_problem,
)
from hwbmpq.allocate.solvers import Solver, SolverError, first_that_works, solvers_for
from hwbmpq.allocate.tableau import Tableau, build_tableau, presolve
from hwbmpq.allocate.widen import widen_for_free
from hwbmpq.costs.table import Number

_LOG = logging.getLogger(__name__)
DEFAULT_SECONDS = 60.0
"""Time limit if none is given: nothing ever hangs."""
_FEW_CHOICES = 64
"""Up to so many choices the search needs no prices."""
_FEW_ROWS = 8
"""Rows that are looked at from the start; of many (the steps of a schedule), most never matter."""


def solve(
    values: Table,
    costs: Mapping[str, Cost],
    budgets: Mapping[str, Number],
    ties: Ties = (),
    solver: str = "auto",
    time_limit: float | None = None,
) -> Allocation:
    """The choice for every layer that has the largest sum of ``values[layer][choice]`` within all budgets.

    ``costs[name][layer][choice]`` adds up over the layers; a list of such tables (or a ``CostTable`` with several
    rows) must hold row by row. ``budgets[name]`` is a number in the cost's own unit; costs without a budget are
    only counted. Layers in a tie group get the same choice. ``solver``: ``highs``, ``glpk``, or ``auto``. After
    ``time_limit`` seconds (default 60) the best allocation so far is returned with its gap.

    >>> allocation = solve(
    ...     {"a": {2: 0, 4: 3}, "b": {2: 0, 4: 2}},
    ...     {"memory": {"a": {2: 20, 4: 40}, "b": {2: 10, 4: 20}}},
    ...     {"memory": 50},
    ... )
    >>> allocation.bits, allocation.objective, allocation.optimal
    ({'a': 4, 'b': 2}, 3.0, True)
    """
    return solve_problem(build_problem(values, costs, budgets, ties), solver, time_limit)


def solve_problem(
    problem: AllocationProblem, solver: str = "auto", time_limit: float | None = None
) -> Allocation:
    """The same for a problem that is built already."""
    start = time.monotonic()
    best = find_best(problem, solver, time_limit)
    if best is None:
        deadline = time.monotonic() + DEFAULT_SECONDS  # for the whole diagnosis, which asks many questions
        raise InfeasibleBudget(
            problem, lambda other: bits_of(find_best(other, solver, max(1.0, deadline - time.monotonic())))
        )
    return Allocation(
        bits=best.bits,
        objective=best.objective,
        bound=best.bound,
        costs={cost: problem.total(cost, best.bits) for cost in problem.costs},
        budgets=dict(problem.budgets),
        solver=best.solver,
        seconds=time.monotonic() - start,
        problem=problem,
    )


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best bits of a problem, before anybody asks what they cost."""

    bits: dict[str, Choice]
    objective: float
    bound: float
    solver: str


def find_best(
    problem: AllocationProblem, solver: str = "auto", time_limit: float | None = None
) -> Best | None:
    """The best bits; None if no allocation is within the budgets."""
    seconds = DEFAULT_SECONDS if time_limit is None else time_limit
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise AllocationError(f"time_limit={time_limit!r}: give seconds")
    outcome = _Task(problem, solvers_for(solver), time.monotonic() + seconds).run()
    if outcome is None:
        return None
    bits = problem.bits(widen_for_free(problem, outcome.picks.tolist()))
    objective = problem.objective(bits)
    return Best(
        bits=bits,
        objective=objective,
        bound=max(objective, objective + outcome.bound - outcome.value),
        solver=outcome.solver,
    )


def bits_of(best: Best | None) -> dict[str, Choice] | None:
    return None if best is None else best.bits


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    picks: Picks
    value: float
    bound: float
    solver: str


class _Task:
    """One problem on its way to its answer."""

    def __init__(self, problem: AllocationProblem, solvers: list[Solver], deadline: float) -> None:
        self._problem, self._solvers, self._deadline = problem, solvers, deadline
        self._rows = problem.limited_rows

    def run(self) -> _Outcome | None:
        """The best picks; None if no allocation is within the budgets."""
        return self._solve_lazily(presolve(build_tableau(self._problem)))

    def _solve_lazily(self, tableau: Tableau) -> _Outcome | None:
        """Look at few rows first, and at others once they are overshot."""
        if tableau.is_infeasible:
            return None
        load = np.where(tableau.is_open, tableau.costs, 0.0).max(axis=2).sum(axis=1) / tableau.room
        active = set(np.argsort(-load, kind="stable")[:_FEW_ROWS].tolist())
        while True:
            outcome = self._solve(tableau.only_rows(sorted(active)))
            if outcome is None:
                return None
            excess = tableau.costs_of(outcome.picks) / tableau.room
            bits = self._problem.bits(outcome.picks.tolist())
            others = [r for r in np.argsort(-excess, kind="stable").tolist() if r not in active]
            over = [r for r in others if not self._rows[tableau.rows[r]].holds(bits)][:_FEW_ROWS]
            if not over:
                return outcome
            active.update(over)

    def _accepts(self, rows: Sequence[int], picks: Picks) -> bool:
        """Whether the rows hold, in exact arithmetic."""
        bits = self._problem.bits(picks.tolist())
        return all(self._rows[row].holds(bits) for row in rows)

    def _solve(self, tableau: Tableau) -> _Outcome | None:
        if not tableau.rows:
            picks = np.where(tableau.is_open, tableau.values, -np.inf).argmax(axis=1)
            value = tableau.values_of(picks)
            name = self._solvers[0].name
            return _Outcome(picks=picks, value=value, bound=value, solver=name)
        program = IntegerProgram(self._problem, tableau)
        solver, prices = first_that_works(
            self._solvers, lambda solver: _prices(solver, program, max(self._seconds_left(), 1.0))
        )
        if prices is None:
            if tableau.is_open.sum() > _FEW_CHOICES:
                return None
            prices = np.zeros(len(tableau.rows))  # a budget met to the last digit: only the search can tell
        search = ExactSearch(
            tableau,
            prices,
            accepts=lambda picks: self._accepts(tableau.rows, picks),
            deadline=self._deadline,
        )
        found = search.run(proof=PROOF)
        if not _is_proven(found):
            found = self._ask_solver(solver, program, search, found)
        if found.picks is None:
            return None
        return _Outcome(picks=found.picks, value=found.value, bound=found.bound, solver=solver.name)

    def _ask_solver(
        self, solver: Solver, program: IntegerProgram, search: ExactSearch, found: Found
    ) -> Found:
        """Too much was left open for the search: let the solver branch, with the time that is left."""
        if self._seconds_left() <= 0:
            if found.picks is None:
                raise SolverError("no allocation was found within the time limit", hint="allow more time")
            return found
        try:
            _, answer = first_that_works(
                [solver, *(other for other in self._solvers if other is not solver)],
                lambda solver: solver.branch_and_bound(program, self._seconds_left(), PROOF / 2),
            )
        except SolverError as error:
            if found.picks is None:
                raise
            _LOG.warning("%s; the allocation is not proven", error)
            return found
        if answer.chosen is not None:
            search.offer(program.picks_of(answer.chosen))
        better = search.found(-np.inf)
        if better.picks is None and not answer.is_infeasible:
            raise SolverError(
                f"{solver.name} found no allocation within the time limit", hint="allow more time"
            )
        bound = found.bound
        if answer.bound is not None:
            bound = min(bound, answer.bound * program.value_unit + program.value_offset)
        return replace(better, bound=max(bound, better.value))

    def _seconds_left(self) -> float:
        return self._deadline - time.monotonic()


def _prices(solver: Solver, program: IntegerProgram, seconds: float) -> NDArray[np.float64] | None:
    """What a solver says, if it can be true: the search stands on it."""
    prices = solver.prices(program, seconds)
    if prices is not None and not (prices.shape == (len(program.costs),) and np.isfinite(prices).all()):
        raise SolverError(f"{solver.name} gave prices that are none")
    return prices


def _is_proven(found: Found) -> bool:
    if found.picks is None:
        return found.bound == -np.inf
    return found.bound - found.value <= PROOF * abs(found.value)
