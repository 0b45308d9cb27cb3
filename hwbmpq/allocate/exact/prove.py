"""The best assignment of a whole problem by exact search: few rows first, others once they are overshot."""

from fractions import Fraction

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from hwbmpq.allocate.exact.exploration import Picks
from hwbmpq.allocate.exact.search import ExactSearch, Found
from hwbmpq.allocate.problem import AllocationProblem
from hwbmpq.allocate.tableau import Floats, Tableau, build_tableau, presolve, scaled_costs, scaled_gains

_INFEASIBLE = 2


def row_prices(tableau: Tableau) -> Floats | None:
    """The duals of the rows, in the scaled numbers; None if nothing fits, by the tolerances of floating point.

    If there is no answer for another reason, all are zero: the search is right with any prices, and fast with good ones.
    """
    groups, choices = np.nonzero(tableau.is_open)
    gains, _, _ = scaled_gains(tableau.values, tableau.is_open)
    costs, room = scaled_costs(tableau)
    one_choice = csr_array((np.ones(len(groups)), (groups, np.arange(len(groups)))))
    answer = linprog(
        -gains[groups, choices],  # it minimises
        A_ub=csr_array(costs[:, groups, choices]),
        b_ub=room,
        A_eq=one_choice,
        b_eq=np.ones(len(tableau.values)),
        method="highs",
    )
    if answer.status == _INFEASIBLE:
        return None
    if answer.status != 0:
        return np.zeros(len(room))
    prices: Floats = np.maximum(-answer.ineqlin.marginals, 0.0)
    return prices


PROOF = 1e-6
"""Relative gap up to which an answer counts as proven optimal."""
_FEW_CHOICES = 64
"""Up to so many choices the search needs no prices."""
_FEW_ROWS = 8
"""Rows that are looked at from the start; of many (the steps of a schedule), most never matter."""


_NOTHING_FITS = Found(picks=None, value=-np.inf, bound=-np.inf)


def is_proven(value: float, bound: float) -> bool:
    return bound - value <= PROOF * abs(value)


def prove(problem: AllocationProblem, deadline: float, incumbent: Picks | None = None) -> Found:
    """The best picks and an upper bound on their value, starting from an ``incumbent`` if there is one.

    No picks and a bound of minus infinity: it is proven that nothing is within the budgets.
    """
    tableau = presolve(build_tableau(problem))
    if tableau.is_infeasible:
        return _NOTHING_FITS
    load = np.where(tableau.is_open, tableau.costs, 0.0).max(axis=2).sum(axis=1) / tableau.room
    active = set(np.argsort(-load, kind="stable")[:_FEW_ROWS].tolist())
    rows = problem.limited_rows
    while True:
        smaller = tableau.only_rows(sorted(active))
        search = _search(problem, smaller, deadline) if smaller.rows else None
        if search is not None:
            if incumbent is not None:
                search.offer(undominated(smaller, incumbent))
            found = search.run(proof=PROOF)
        else:
            found = _NOTHING_FITS if smaller.rows else _unlimited(smaller)
        if found.picks is None:
            return found
        bits = problem.bits(found.picks.tolist())
        excess = tableau.costs_of(found.picks) / tableau.room
        others = [r for r in np.argsort(-excess, kind="stable").tolist() if r not in active]
        over = [r for r in others if not rows[tableau.rows[r]].holds(bits)][:_FEW_ROWS]
        if not over:
            return found
        active.update(over)


def _search(problem: AllocationProblem, tableau: Tableau, deadline: float) -> ExactSearch | None:
    """The search of a tableau that has rows; None if nothing fits."""
    prices = row_prices(tableau)
    if prices is None:
        if tableau.is_open.sum() > _FEW_CHOICES:
            return None
        prices = np.zeros(len(tableau.rows))  # a budget met to the last digit: only the search can tell
    rows = [problem.limited_rows[row] for row in tableau.rows]

    def accepts(picks: Picks) -> bool:
        """In exact arithmetic."""
        bits = problem.bits(picks.tolist())
        return all(row.exact_total(bits) <= Fraction(row.budget) for row in rows)

    return ExactSearch(tableau, prices, accepts=accepts, deadline=deadline)


def _unlimited(tableau: Tableau) -> Found:
    """Every group at its best."""
    picks = np.where(tableau.is_open, tableau.values, -np.inf).argmax(axis=1)
    value = tableau.values_of(picks)
    return Found(picks=picks, value=value, bound=value)


def undominated(tableau: Tableau, picks: Picks) -> Picks | None:
    """Picks with closed choices replaced by open ones that are no worse; None if there are none.

    Presolving closes a choice if another of its group is no dearer and no worse.
    """
    picks = picks.copy()
    for g in np.flatnonzero(~tableau.is_open[np.arange(len(picks)), picks]):
        is_as_cheap = (tableau.costs[:, g] <= tableau.costs[:, g, picks[g], None]).all(axis=0)
        better = tableau.is_open[g] & is_as_cheap & (tableau.values[g] >= tableau.values[g, picks[g]])
        if not better.any():
            return None
        picks[g] = int(better.argmax())
    return picks
