"""An allocation problem as arrays: shrunk by what can be told without a solver, and scaled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hwbmpq.allocate.problem import AllocationProblem, BudgetRow, Group
from hwbmpq.costs.table import Number

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_ROUNDING = 1e-12
"""Relative error that sums in floating point may have."""
_LARGEST_WHOLE = 2**52
"""Whole numbers below add up without rounding."""


@dataclass(frozen=True, kw_only=True)
class Tableau:
    """Groups × choices, padded to the same number of choices; ``is_open`` tells which are still in."""

    values: Floats
    """Groups × choices."""
    costs: Floats
    """Rows × groups × choices, each group's smallest taken off: 0 is free."""
    room: Floats
    """What each row's budget leaves above the smallest cost."""
    is_open: Flags
    band: Floats
    """How far a row's sums may be off by rounding; 0 where all numbers are whole. Rooms are wider by this much, so that
    nothing is ruled out by rounding; answers are checked in exact arithmetic."""
    is_sum: Flags
    """Groups of several layers, whose numbers are sums themselves."""
    rows: tuple[int, ...]
    """Positions of the rows among the problem's limited ones."""

    @property
    def is_infeasible(self) -> bool:
        """Whether some row is overshot by the cheapest choices."""
        return bool((self.room < 0).any()) or not self.is_open.any(axis=1).all()

    def only_rows(self, rows: Sequence[int]) -> "Tableau":
        """The same with some of the rows; positions are those in this tableau."""
        return replace(
            self,
            costs=self.costs[rows],
            room=self.room[rows],
            band=self.band[rows],
            rows=tuple(self.rows[r] for r in rows),
        )

    def values_of(self, picks: NDArray[np.int64]) -> float:
        return float(self.values[np.arange(len(picks)), picks].sum())

    def costs_of(self, picks: NDArray[np.int64]) -> Floats:
        total: Floats = self.costs[:, np.arange(len(picks)), picks].sum(axis=1)
        return total


def build_tableau(problem: AllocationProblem) -> Tableau:
    """The arrays of a problem. Costs are counted from each group's cheapest choice before they become floating point:
    what all choices have in common would only take digits away."""
    rows = problem.limited_rows
    shape = len(problem.groups), max(len(group.choices) for group in problem.groups)
    values, is_open = np.zeros(shape), np.zeros(shape, dtype=bool)
    costs, room, sums = np.zeros((len(rows), *shape)), np.zeros(len(rows)), np.zeros(len(rows))
    for g, group in enumerate(problem.groups):
        is_open[g, : len(group.choices)] = True
        for j, choice in enumerate(group.choices):
            values[g, j] = sum(problem.values[layer][choice] for layer in group.layers)
    group_of = {layer: g for g, group in enumerate(problem.groups) for layer in group.layers}
    for r, row in enumerate(rows):
        taken: Number | Fraction = 0 if row.is_whole else Fraction(0)
        # Only who pays: a step of a schedule has few of a network's layers, and a schedule has many steps.
        for g in sorted({group_of[layer] for layer in row.costs}):
            exact = _exact_costs(row, problem.groups[g])
            least = min(exact)
            dearer = [float(cost - least) for cost in exact]
            costs[r, g, : len(exact)] = dearer
            sums[r] += sum(dearer)
            taken += least if row.is_whole else Fraction(least)
        exact_room = Fraction(row.budget) - Fraction(row.constant) - Fraction(taken)
        room[r] = float(math.floor(exact_room) if row.is_whole else exact_room)
    is_whole = np.array([row.is_whole for row in rows], dtype=bool)
    is_exact = is_whole & (sums + np.abs(room) < _LARGEST_WHOLE)
    band = np.where(is_exact, 0.0, _ROUNDING * np.abs(room))
    return Tableau(
        values=values,
        costs=costs,
        room=room + band,
        is_open=is_open,
        band=band,
        is_sum=np.array([len(group.layers) > 1 for group in problem.groups]),
        rows=tuple(range(len(rows))),
    )


def _exact_costs(row: BudgetRow, group: Group) -> list[Number | Fraction]:
    """What a group that pays adds to a row at each choice."""
    paid = [row.costs[layer] for layer in group.layers if layer in row.costs]
    if len(paid) == 1:  # one number minus another needs no fractions: it is rounded once
        return [paid[0][choice] for choice in group.choices]
    return [sum((Fraction(c[choice]) for c in paid), Fraction(0)) for choice in group.choices]


def _from_the_cheapest(tableau: Tableau) -> Tableau:
    """Count costs and room from each group's smallest cost."""
    if not tableau.rows:
        return tableau
    least = np.where(tableau.is_open, tableau.costs, np.inf).min(axis=2, keepdims=True)
    costs = np.where(tableau.is_open, tableau.costs - least, 0.0)
    return replace(tableau, costs=costs, room=tableau.room - least.sum(axis=(1, 2)))


def presolve(tableau: Tableau, *, by_values: bool = True) -> Tableau:
    """Close choices that cannot fit or are dominated; drop rows that always hold. Until nothing changes.

    Without ``by_values`` the result is the same whatever the values are: dominated choices stay.
    """
    while True:
        before = tableau.is_open.sum(), len(tableau.rows)
        tableau = _without_misfits(tableau)
        tableau = _without_slack_rows(_without_dominated(tableau) if by_values else tableau)
        if (tableau.is_open.sum(), len(tableau.rows)) == before:
            return tableau
        tableau = _from_the_cheapest(tableau)


def _without_misfits(tableau: Tableau) -> Tableau:
    """A choice that overshoots a budget although all other groups take their cheapest."""
    if not tableau.rows:
        return tableau
    fits = (tableau.costs <= tableau.room[:, None, None]).all(axis=0)
    return replace(tableau, is_open=tableau.is_open & fits)


def _without_dominated(tableau: Tableau) -> Tableau:
    """A choice that is no cheaper and no better than another of its group; of equals, the widest stays."""
    is_open = tableau.is_open.copy()
    # Where numbers are sums, a difference has to be larger than what rounding may make.
    least = np.where(tableau.is_sum, tableau.band[:, None], 0.0)
    count = is_open.shape[1]
    for j in range(count):
        value, cost = tableau.values[:, j], tableau.costs[:, :, j]
        for other in range(count):
            if other == j:
                continue
            saved = cost - tableau.costs[:, :, other]
            gained = tableau.values[:, other] - value
            beaten = (gained >= 0) & (saved >= least).all(axis=0)
            if other < j:  # of equals the wider one stays
                beaten &= (gained > 0) | (saved > 0).any(axis=0)
            is_open[:, j] &= ~(beaten & is_open[:, other])
    return replace(tableau, is_open=is_open)


def _without_slack_rows(tableau: Tableau) -> Tableau:
    """Rows that hold whatever is chosen, and rows that repeat another."""
    if not tableau.rows:
        return tableau
    dearest = np.where(tableau.is_open, tableau.costs, 0.0).max(axis=2).sum(axis=1)
    matters = np.flatnonzero(dearest > tableau.room - 2 * tableau.band)
    matters = matters[_first_of_equals(tableau, matters)]
    return tableau.only_rows(matters.tolist())


def _first_of_equals(tableau: Tableau, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(rows) < 2:
        return np.arange(len(rows))
    costs = np.where(tableau.is_open, tableau.costs[rows], 0.0).reshape(len(rows), -1)
    _, first = np.unique(np.column_stack([costs, tableau.room[rows]]), axis=0, return_index=True)
    return np.sort(first)


def scaled_gains(values: Floats, is_open: Flags) -> tuple[Floats, float, float]:
    """What each choice is worth more than its group's least, with 1 for the largest gain.

    Also the unit and the offset that turn sums of gains back: values = gains * unit + offset.
    """
    least = np.where(is_open, values, np.inf).min(axis=1, keepdims=True)
    gains = np.where(is_open, values - least, 0.0)
    unit = float(gains.max(initial=0.0)) or 1.0
    return gains / unit, unit, float(least.sum())


def scaled_costs(tableau: Tableau) -> tuple[Floats, Floats]:
    """Costs as shares of each row's room, and the rooms: 1, or 0 where nothing is left."""
    has_room = tableau.room > 0
    costs = tableau.costs / np.where(has_room, tableau.room, 1.0)[:, None, None]
    return costs, np.where(has_room, 1.0, 0.0)
