"""``solve``: numbers in, bits out. A solver decides by the Pyomo model; exact search checks, improves and proves it."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np

from hwbmpq.allocate.allocation import EXACT_SEARCH, Allocation
from hwbmpq.allocate.exact.exploration import Picks
from hwbmpq.allocate.exact.prove import PROOF, is_proven, prove
from hwbmpq.allocate.exact.search import Found
from hwbmpq.allocate.ilp import IntegerProgram
from hwbmpq.allocate.infeasible import InfeasibleBudget
from hwbmpq.allocate.problem import (
    AllocationError,
    AllocationProblem,
    BudgetRow,
    Choice,
    Cost,
    Group,
    Table,
    Ties,
    build_problem,
)
from hwbmpq.allocate.solvers import Answer, SolverError, first_that_works, solvers_for
from hwbmpq.costs.table import Number

_LOG = logging.getLogger(__name__)
DEFAULT_SECONDS = 60.0
"""Time limit if none is given: nothing ever hangs."""
_SMALL = 500
"""Variables up to which a solver closes the gap by itself; of larger models it is asked for a good answer, which the exact
search then proves, faster (benchmarks/allocate.py)."""
_ROUGH_GAP, _TIGHT_GAP = 1e-3, PROOF / 2


def widen_for_free(problem: AllocationProblem, picks: Sequence[int]) -> list[int]:
    """Take the widest choice that is no worse and still fits, group by group: no budget is left unused for nothing."""
    picks = list(picks)
    ledger = _Ledger(problem, picks)
    for position, group in enumerate(problem.groups):
        for wider in range(len(group.choices) - 1, picks[position], -1):
            now, then = group.choices[picks[position]], group.choices[wider]
            gain = sum(problem.values[layer][then] - problem.values[layer][now] for layer in group.layers)
            if gain >= 0 and ledger.change(group, picks[position], wider):
                picks[position] = wider
                break
    return picks


class _Ledger:
    """What every row has left, exactly."""

    def __init__(self, problem: AllocationProblem, picks: Sequence[int]) -> None:
        bits = problem.bits(picks)
        rows = problem.limited_rows
        self._left = [Fraction(row.budget) - row.exact_total(bits) for row in rows]
        self._rows_of: dict[str, list[tuple[int, BudgetRow]]] = defaultdict(list)
        for position, row in enumerate(rows):
            for layer in row.costs:
                self._rows_of[layer].append((position, row))

    def change(self, group: Group, now: int, then: int) -> bool:
        """Book a change if every row can pay for it; whether it could."""
        dearer: dict[int, Fraction] = defaultdict(Fraction)
        for layer in group.layers:
            for position, row in self._rows_of[layer]:
                costs = row.costs[layer]
                dearer[position] += Fraction(costs[group.choices[then]]) - Fraction(costs[group.choices[now]])
        if any(extra > self._left[position] for position, extra in dearer.items()):
            return False
        for position, extra in dearer.items():
            self._left[position] -= extra
        return True


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
    problem: AllocationProblem,
    solver: str = "auto",
    time_limit: float | None = None,
    *,
    program: IntegerProgram | None = None,
) -> Allocation:
    """The same for a problem that is built already; ``program`` is one of an earlier problem that differs in its values
    only, and is used again."""
    start = time.monotonic()
    best = _decide(problem, solver, _deadline(time_limit), program)
    if best is None:
        raise _diagnosis(problem, solver)
    return Allocation(
        bits=best.bits,
        objective=best.objective,
        bound=best.bound,
        costs={cost: problem.total(cost, best.bits) for cost in problem.costs},
        budgets=dict(problem.budgets),
        solver=best.solver,
        proven_by=best.proven_by,
        is_improved=best.is_improved,
        seconds=time.monotonic() - start,
        problem=problem,
    )


def check_feasible(problem: AllocationProblem, solver: str = "auto") -> None:
    """Raise ``InfeasibleBudget`` if no allocation is within the budgets, and ``SolverError`` if there is no solver."""
    next(solvers_for(solver))
    zeros = {layer: dict.fromkeys(choices, 0) for layer, choices in problem.values.items()}
    if find_best(problem.with_values(zeros), solver) is None:
        raise _diagnosis(problem, solver)


def _diagnosis(problem: AllocationProblem, solver: str) -> InfeasibleBudget:
    deadline = time.monotonic() + DEFAULT_SECONDS  # for all the questions that it asks
    return InfeasibleBudget(
        problem, lambda other: bits_of(find_best(other, solver, max(1.0, deadline - time.monotonic())))
    )


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best bits of a problem, before anybody asks what they cost."""

    bits: dict[str, Choice]
    objective: float
    bound: float
    solver: str = ""
    proven_by: str = ""
    is_improved: bool = False
    """Whether the exact search found better bits than the solver, or the solver's were not within the budgets."""


def find_best(
    problem: AllocationProblem, solver: str = "auto", time_limit: float | None = None
) -> Best | None:
    """The best bits; None if no allocation is within the budgets.

    For the many small questions of explanations and frontiers: by exact search, and by a solver only where that proves
    too little.
    """
    deadline = _deadline(time_limit)
    found = prove(problem, deadline)
    if found.picks is None and found.bound == -np.inf:
        return None
    if found.picks is not None and is_proven(found.value, found.bound):
        return _best(problem, found, found.bound)
    try:
        return _decide(problem, solver, deadline, incumbent=found.picks)
    except SolverError as error:
        if found.picks is None:
            raise
        _LOG.warning("%s; the answer is not proven", error)
        return _best(problem, found, found.bound)


def bits_of(best: Best | None) -> dict[str, Choice] | None:
    return None if best is None else best.bits


def _deadline(time_limit: float | None) -> float:
    seconds = DEFAULT_SECONDS if time_limit is None else time_limit
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise AllocationError(f"time_limit={time_limit!r}: give seconds")
    return time.monotonic() + seconds


def _best(problem: AllocationProblem, found: Found, bound: float, **how: str | bool) -> Best:
    assert found.picks is not None
    bits = problem.bits(widen_for_free(problem, found.picks.tolist()))
    objective = problem.objective(bits)
    return Best(bits=bits, objective=objective, bound=max(objective, objective + bound - found.value), **how)  # type: ignore[arg-type]


def _decide(
    problem: AllocationProblem,
    solver: str,
    deadline: float,
    program: IntegerProgram | None = None,
    incumbent: Picks | None = None,
) -> Best | None:
    """From the solver's answer to a proven one; None if no allocation is within the budgets."""
    if program is None:
        program = IntegerProgram(problem)
    elif not program.is_infeasible:
        program.set_values(problem)
    if program.is_infeasible:
        return None
    best: Best | None = None
    for gap in (_TIGHT_GAP,) if program.size <= _SMALL else (_ROUGH_GAP, _TIGHT_GAP):
        try:
            left = deadline - time.monotonic()
            asked, answer = first_that_works(solver, partial(program.solve, seconds=left, gap=gap))
        except SolverError as error:
            if best is None:
                raise
            _LOG.warning("%s; the allocation is not proven", error)
            return best
        given = _within_budgets(problem, program, answer)
        # A second answer may be worse than what the search made of the first: the time may have been too short.
        starts = [picks for picks in (given, incumbent) if picks is not None]
        best_start = max(starts, key=partial(_worth, problem), default=None)
        found = prove(problem, deadline, best_start)
        if found.picks is None:
            if found.bound == -np.inf or answer.is_infeasible:
                return None
            continue
        best = _explained(problem, program, found, answer, asked.name, given)
        if best.proven_by or time.monotonic() >= deadline:
            return best
        incumbent = found.picks
    if best is None:
        raise SolverError(f"{asked.name} found no allocation within the time limit", hint="allow more time")
    return best


def _worth(problem: AllocationProblem, picks: Picks) -> float:
    return problem.objective(problem.bits(picks.tolist()))


def _within_budgets(problem: AllocationProblem, program: IntegerProgram, answer: Answer) -> Picks | None:
    """What the solver chose, if it holds in exact arithmetic: solvers have tolerances."""
    if answer.chosen is None:
        return None
    picks = program.picks_of(answer.chosen)
    return picks if problem.is_within_budgets(problem.bits(picks.tolist())) else None


def _explained(
    problem: AllocationProblem,
    program: IntegerProgram,
    found: Found,
    answer: Answer,
    solver: str,
    given: Picks | None,
) -> Best:
    """The best bits, with who proved them and whether the solver had them already."""
    bound, proven_by = found.bound, EXACT_SEARCH
    if not is_proven(found.value, bound):
        if answer.bound is not None:
            bound = max(found.value, min(bound, program.in_problem(answer.bound)))
        proven_by = solver if is_proven(found.value, bound) else ""
    assert found.picks is not None
    is_improved = given is None or _worth(problem, given) < _worth(problem, found.picks)
    return _best(problem, found, bound, solver=solver, proven_by=proven_by, is_improved=is_improved)
