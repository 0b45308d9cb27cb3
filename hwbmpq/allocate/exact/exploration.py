"""Enumerating the assignments that may reach a target: two lists of partial ones that grow until they meet."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hwbmpq.allocate.exact.join import best_pair
from hwbmpq.allocate.tableau import Floats, Tableau

Picks = NDArray[np.int64]

_DIGITS = 50
"""Bits that sums of values may have: below the 53 of a double."""


@dataclass(frozen=True, kw_only=True)
class Core:
    """Groups × choices, as in the tableau.

    Values are whole numbers: they add up exactly in any order, so that equal states are recognised as equal. Costs are
    scaled by powers of two, which changes no digit.
    """

    values: Floats
    """Minus infinity where a choice is closed."""
    costs: Floats
    room: Floats
    band: Floats
    """How far sums of costs may be off by rounding."""
    prices: Floats
    """What a unit of each row is worth."""
    regrets: Floats
    """What each choice falls short of its group's favourite, in value less its costs at the prices."""
    top: float
    """No assignment exceeds this value."""
    exponent: int
    """Values are those of the tableau, from each group's smallest, times two to the power of minus this."""
    offset: float
    """The sum of the groups' smallest values in the tableau."""

    @property
    def favourites(self) -> Picks:
        picks: Picks = self.regrets.argmin(axis=1)
        return picks

    def value(self, picks: Picks) -> float:
        return float(self.values[np.arange(len(picks)), picks].sum())

    def costs_of(self, picks: Picks) -> Floats:
        total: Floats = self.costs[:, np.arange(len(picks)), picks].sum(axis=1)
        return total

    def fits(self, picks: Picks) -> bool:
        return bool((self.costs_of(picks) <= self.room).all())

    def in_tableau(self, value: float) -> float:
        """A value in the tableau's own numbers."""
        return float(np.ldexp(value, self.exponent)) + self.offset

    @property
    def whole_offset(self) -> float:
        return float(np.ldexp(self.offset, -self.exponent))


def build_core(tableau: Tableau, prices: Floats) -> Core:
    """``prices`` are those of the scaled tableau (``tableau.scaled``): largest gain 1, each row's room 1."""
    is_open = tableau.is_open
    least = np.where(is_open, tableau.values, np.inf).min(axis=1, keepdims=True)
    gains = np.where(is_open, tableau.values - least, 0.0)
    exponent = int(np.frexp(gains.max(axis=1).sum())[1]) - _DIGITS
    values = np.where(is_open, np.round(np.ldexp(gains, -exponent)), -np.inf)
    shift = -np.frexp(tableau.room)[1]
    costs = np.ldexp(np.where(is_open, tableau.costs, 0.0), shift[:, None, None])
    room = np.ldexp(tableau.room, shift)
    worth = np.maximum(prices, 0.0) * np.ldexp(gains.max(), -exponent) / room
    reduced = values - np.tensordot(worth, costs, axes=1)
    best = reduced.max(axis=1, keepdims=True)
    return Core(
        values=values,
        costs=costs,
        room=room,
        band=np.ldexp(tableau.band, shift),
        prices=worth,
        regrets=best - reduced,
        top=float(worth @ room + best.sum()),
        exponent=exponent,
        offset=float(least.sum()),
    )


_MOST_STATES = 2_500_000
_LAST_BEAM = 10_000
_LATE_BEAM = 300
_NEAR, _FAR = (0.7, 1.0, 1.4), (0.3, 3.0)
"""Prices around those of the relaxation, which bound states better that stray from it (chosen by measurement)."""
_MOST_VARIED_ROWS = 3
_BLOCK = 16_384
"""States bounded at a time: what fits in the processor's cache."""
FURTHER = 4.0
"""The first list holds the coarse groups and is pruned harder: it may be so many times longer than the second."""


@dataclass(kw_only=True)
class _List:
    """Partial assignments of some groups, and how each came about."""

    values: Floats
    costs: Floats
    """States × rows."""
    reduced: Floats
    """Values less the costs at the prices."""
    history: list[tuple[int, NDArray[np.int32], NDArray[np.int16]]] = field(default_factory=list)
    """For each group that was added: parents and choices of the states."""


class Exploration:
    """All assignments of a core that are made of kept choices and reach a target value.

    A partial assignment is dropped if some prices prove that it cannot be completed to the target: its value, less its
    costs at these prices, plus the favourites of the groups to come and the room at these prices, is no smaller than
    what any completion reaches. With a ``beam``, only so many of the most promising states are kept.
    """

    def __init__(
        self,
        core: Core,
        kept: NDArray[np.bool_],
        target: float,
        *,
        beam: int | None,
        is_late: Callable[[], bool],
        accepts: Callable[[Picks], bool],
        further: float = FURTHER,
    ) -> None:
        self._core, self._beam, self._is_late, self._further = core, beam, is_late, further
        self._accepts = accepts
        self._kept = kept
        self._picks = np.where(kept, -core.regrets, -np.inf).argmax(axis=1)
        counts = kept.sum(axis=1)
        fixed, free = np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)
        self._room = core.room - core.costs[:, fixed, self._picks[fixed]].sum(axis=1)
        self._prices = _varied(core.prices)
        fixed_value = core.values[fixed, self._picks[fixed]].sum()
        self._floors = target - fixed_value - self._prices @ self._room
        self._groups = free[np.argsort(-self._spread(free), kind="stable")]
        values = np.where(kept, core.values, -np.inf)[self._groups]
        costs = core.costs[:, self._groups]
        reduced = values - np.tensordot(self._prices, costs, axes=1)
        self._favourites = reduced.max(axis=2)  # prices × groups
        self._cheapest = np.where(kept[self._groups], costs, np.inf).min(axis=2)  # rows × groups
        self._has_twins = _has_twins(values, costs)
        self._lists = [
            _List(values=np.zeros(1), costs=np.zeros((1, len(core.room))), reduced=np.zeros(1))
            for _ in range(2)
        ]
        self.work = 0
        """States that were looked at."""
        self.is_whole = True
        """Whether nothing that matters was left out of the lists."""
        self.is_joined = True
        """Whether all pairs that matter were tried."""

    def _spread(self, groups: NDArray[np.int64]) -> Floats:
        """How much the costs of a group's choices differ, at the prices."""
        spent = np.tensordot(self._core.prices, self._core.costs[:, groups], axes=1)
        kept = self._kept[groups]
        spread: Floats = np.where(kept, spent, -np.inf).max(axis=1) - np.where(kept, spent, np.inf).min(
            axis=1
        )
        return spread

    def best(self) -> Picks | None:
        """The assignment with the largest value, if any reaches the target."""
        first, last = 0, len(self._groups) - 1
        favourites = [self._favourites.sum(axis=1)] * 2  # of the groups that a list does not hold yet
        cheapest = [self._cheapest.sum(axis=1)] * 2
        while first <= last:
            side = 0 if len(self._lists[0].values) <= self._further * len(self._lists[1].values) else 1
            position = first if side == 0 else last
            first, last = (first + 1, last) if side == 0 else (first, last - 1)
            favourites[side] = favourites[side] - self._favourites[:, position]
            cheapest[side] = cheapest[side] - self._cheapest[:, position]
            self._grow(self._lists[side], position, favourites[side], cheapest[side])
            if not len(self._lists[side].values):
                return None
            if self._is_late():
                self._beam = min(self._beam or _LATE_BEAM, _LATE_BEAM)
        first_list, second_list = self._lists
        pair, self.is_joined = best_pair(
            (first_list.values, first_list.costs),
            (second_list.values, second_list.costs),
            self._room,
            self._prices[0],
            self._floors[0],
            lambda pair: self._accepts(self._traced(pair)),
        )
        return None if pair is None else self._traced(pair)

    def _grow(self, states: _List, position: int, favourites: Floats, cheapest: Floats) -> None:
        """Extend every state by every choice of a group, and drop what cannot reach the target."""
        group = int(self._groups[position])
        choices = np.flatnonzero(self._kept[group])
        values, costs = self._core.values[group, choices], self._core.costs[:, group, choices].T
        reduced = np.add.outer(values - costs @ self._prices[0], states.reduced).ravel()
        self.work += len(reduced)
        alive = np.flatnonzero(reduced >= self._floors[0] - favourites[0])  # most states end here, cheaply
        choice, parent = np.divmod(alive, len(states.values))
        grown = _List(
            values=values[choice] + states.values[parent],
            costs=costs[choice] + states.costs[parent],
            reduced=reduced[alive],
        )
        excess = self._excess(grown, self._floors - favourites, self._room - cheapest)
        keep = self._selected(grown, excess, self._beam or _MOST_STATES // len(choices))
        states.values, states.costs, states.reduced = (
            grown.values[keep],
            grown.costs[keep],
            grown.reduced[keep],
        )
        states.history.append((group, parent[keep].astype(np.int32), choices[choice[keep]].astype(np.int16)))

    def _excess(self, states: _List, floors: Floats, room: Floats) -> Floats:
        """By how much each state may still lead above the target, at the worst of the prices; below 0: it cannot."""
        excess = np.empty(len(states.values))
        for start in range(0, len(excess), _BLOCK):
            block = slice(start, start + _BLOCK)
            costs = states.costs[block]
            bounds = states.values[block, None] - costs @ self._prices.T - floors
            excess[block] = np.where((costs <= room).all(axis=1), bounds.min(axis=1), -np.inf)
        return excess

    def _selected(self, states: _List, excess: Floats, most: int) -> NDArray[np.int64]:
        keep = np.flatnonzero(excess >= 0)
        if self._has_twins or states.costs.shape[1] == 1:
            keep = keep[_not_dominated(states.values[keep], states.costs[keep], self._core.band)]
        if len(keep) > most:
            self.is_whole = False
            self._beam = min(most, _LAST_BEAM)  # no proof any more: only a good assignment is wanted
            keep = np.sort(keep[np.argpartition(-excess[keep], most)[:most]])
        return keep

    def _traced(self, pair: tuple[int, int]) -> Picks:
        picks: Picks = self._picks.copy()
        for states, state in zip(self._lists, pair, strict=True):
            for group, parents, choices in reversed(states.history):
                picks[group] = choices[state]
                state = int(parents[state])
        return picks


def _varied(prices: Floats) -> Floats:
    """The prices first, then the dearest rows dearer and cheaper in every combination."""
    rows = [int(r) for r in np.argsort(-prices, kind="stable")[:_MOST_VARIED_ROWS] if prices[r] > 0]
    varied = [prices]
    combinations = [*itertools.product(_NEAR, repeat=len(rows)), *itertools.product(_FAR, repeat=len(rows))]
    for factors in combinations:
        if any(factor != 1.0 for factor in factors):
            varied.append(prices.copy())
            varied[-1][rows] *= factors
    return np.array(varied)


def _has_twins(values: Floats, costs: Floats) -> bool:
    """Whether two groups have the same numbers, so that many states are equal."""
    if len(values) < 2:
        return False
    numbers = np.concatenate([values[None], costs]).transpose(1, 0, 2).reshape(len(values), -1)
    return len(np.unique(numbers, axis=0)) < len(values)


def _not_dominated(values: Floats, costs: Floats, band: Floats) -> NDArray[np.int64]:
    """States to keep: of equal ones the first; with a single row, only those that no cheaper one outdoes."""
    if len(values) < 2:
        return np.arange(len(values))
    if costs.shape[1] == 1:
        order = np.lexsort((-values, costs[:, 0]))
        ranked, climbing = costs[order, 0], np.maximum.accumulate(values[order])
        cheaper = np.arange(len(order)) if band[0] == 0 else np.searchsorted(ranked, ranked - band[0])
        outdone = (cheaper > 0) & (climbing[cheaper - 1] >= values[order])
        return np.sort(order[~outdone])
    order = np.lexsort((*costs.T, values))
    same = (values[order[1:]] == values[order[:-1]]) & (costs[order[1:]] == costs[order[:-1]]).all(axis=1)
    return np.sort(order[np.r_[True, ~same]])
