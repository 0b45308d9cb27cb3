"""Exact search of what a relaxation leaves open.

Prices λ on the rows (the duals of the linear relaxation) give every group a favourite, the choice with the largest
value - λ·cost, and an upper bound on the objective:

    bound = λ·room + Σ favourites          (weak duality: true for any λ >= 0, however it was found)

An assignment falls short of the bound by its regrets (favourite minus taken, per group) plus λ·(room left over).
So all assignments within δ of the bound are made of choices with regret <= δ: few. They are enumerated breadth
first, in two lists that meet in the middle, each state pruned by the bound for several prices at once. If δ turns
out to hold no assignment, the bound falls by δ; otherwise the best one found is optimal. No tolerance of a solver
enters into this.
"""

import itertools
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hwbmpq.allocate.join import best_pair
from hwbmpq.allocate.tableau import Floats, Tableau

Picks = NDArray[np.int64]

_MARGIN = 1e-12
"""Share of the bound by which pruning errs on the safe side of rounding."""
_MOST_STATES = 2_500_000
_CORES = ((20, 5000), (30, 5000), (40, 10_000), (60, 20_000))
"""Before anything is proven: so many of the choices with the least regret, and states that are kept of them. The best
assignment of such a core is close to the optimum at once."""
_LAST_BEAM = 10_000
_LATE_BEAM = 300
_CHEAP = 200_000
"""States up to which a proof without any tolerance is worth its time."""
_MOST_WORK = 15_000_000
_STEP = 1.5
_FACTORS = (0.5, 1.0, 2.0)
_MOST_VARIED_ROWS = 3
_BLOCK = 16_384
"""States bounded at a time: what fits in the processor's cache."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best assignment, and what none can exceed, both in the tableau's values."""

    picks: Picks | None
    value: float
    bound: float


@dataclass(kw_only=True)
class _Half:
    """Partial assignments of some groups: their values, costs, and how each came about."""

    values: Floats
    costs: Floats
    reduced: Floats
    """Values less the costs at the prices."""
    history: list[tuple[int, NDArray[np.int32], NDArray[np.int8]]] = field(default_factory=list)

    def trace(self, state: int, picks: Picks, kept: list[NDArray[np.int64]]) -> None:
        for group, parents, choices in reversed(self.history):
            picks[group] = kept[group][choices[state]]
            state = int(parents[state])


class ExactSearch:
    """Enumerates near-optimal assignments of a presolved tableau for given prices."""

    def __init__(self, tableau: Tableau, prices: Floats, *, deadline: float) -> None:
        self.tableau, self._deadline = tableau, deadline
        gains = np.where(tableau.is_open, tableau.values, -np.inf)
        self._least = gains.min(axis=1, where=tableau.is_open, initial=np.inf, keepdims=True)
        whole = np.where(tableau.is_open, gains - self._least, 0.0)
        # Whole numbers add up without rounding, in any order: equal states are recognised as equal.
        total = whole.max(axis=1).sum()
        self._unit = 2.0 ** (np.floor(np.log2(total)) - 50) if total > 0 else 1.0
        self._values = np.where(tableau.is_open, np.round(whole / self._unit), -np.inf)
        self._costs, self._room = tableau.costs, tableau.room
        self._prices = np.maximum(prices, 0.0) / self._unit
        reduced = self._values - np.tensordot(self._prices, self._costs, axes=1)
        favourites = reduced.max(axis=1)
        self._regrets = favourites[:, None] - reduced
        self.top = float(self._prices @ self._room + favourites.sum())
        self._work = 0

    def run(self, incumbent: Picks | None, *, proof: float) -> Found:
        """Search until the best assignment is proven to ``proof`` (relative), or time or memory run out."""
        best, low = incumbent, -np.inf if incumbent is None else self._value(incumbent)
        favourites = self._regrets.argmin(axis=1)
        for picks in (favourites, self._round_down(favourites)):
            if picks is not None and self.fits(picks) and self._value(picks) > low:
                best, low = picks, self._value(picks)
        for choices, beam in _CORES:
            reach = self._reach(low)
            core = self._regret_of(choices)
            picks, is_whole = self._explore(reach, beam, core)
            if picks is not None and self._value(picks) > low:
                best, low = picks, self._value(picks)
            if is_whole and core >= reach:  # nothing better was left out; low is minus infinity if nothing fits at all
                return self._found(best, low, low)
        return self._deepen(best, low, proof)

    def _deepen(self, best: Picks | None, low: float, proof: float) -> Found:
        """Look ever further below the top, until there is nothing left above the best assignment."""
        offset = float(self._least.sum()) / self._unit
        bound, reach = self.top, (self.top - low) / 8
        tolerance = 0.0
        while (
            best is not None and bound - low > tolerance and self._work < _MOST_WORK and not self._is_late()
        ):
            if self._work > _CHEAP:
                tolerance = proof * abs(low + offset)
            reach = min(reach * _STEP, self.top - low - 0.9 * tolerance)
            picks, is_whole = self._explore(reach)
            is_better = picks is not None and self._value(picks) > low
            if picks is not None and is_better:
                best, low = picks, self._value(picks)
            if is_whole:
                bound = max(low, self.top - reach)
            elif is_better:
                reach = max(self.top - bound, reach / _STEP**2)
            else:
                break
        return self._found(best, low, max(bound, low))

    def _reach(self, low: float) -> float:
        """How far below the top an assignment may lie and still be of interest."""
        return (
            self.top - low
            if np.isfinite(low)
            else float(self._regrets[self.tableau.is_open].sum()) + self.top
        )

    def _regret_of(self, choices: int) -> float:
        """The regret up to which there are so many choices besides the favourites."""
        regrets = np.sort(self._regrets[self.tableau.is_open & (self._regrets > 0)])
        return float(regrets[choices]) if choices < len(regrets) else np.inf

    def _found(self, picks: Picks | None, low: float, bound: float) -> Found:
        offset = float(self._least.sum())
        return Found(picks=picks, value=low * self._unit + offset, bound=bound * self._unit + offset)

    def _value(self, picks: Picks) -> float:
        return float(self._values[np.arange(len(picks)), picks].sum())

    def fits(self, picks: Picks) -> bool:
        return bool((self.tableau.costs_of(picks) <= self._room).all())

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _round_down(self, picks: Picks) -> Picks | None:
        """Step down where it costs the least value per overshoot, until the budgets hold."""
        picks = picks.copy()
        everyone = np.arange(len(picks))
        for _ in range(2 * self._values.size):
            over = np.maximum(self.tableau.costs_of(picks) - self._room, 0.0)
            if not over.any():
                return picks
            now = self._costs[:, everyone, picks][:, :, None]
            relief = np.tensordot(over / self._room**2, now - self._costs, axes=1)
            loss = self._values[everyone, picks][:, None] - self._values
            worth = np.where(
                (relief > 0) & self.tableau.is_open, loss / np.where(relief > 0, relief, 1.0), np.inf
            )
            group, choice = np.unravel_index(int(worth.argmin()), worth.shape)
            if not np.isfinite(worth[group, choice]):
                return None
            picks[group] = choice
        return None

    def _explore(
        self, reach: float, beam: int | None = None, core: float = np.inf
    ) -> tuple[Picks | None, bool]:
        """The best assignment within ``reach`` of the top and with regrets up to ``core``, and whether all of those were
        looked at."""
        target = self.top - reach - _MARGIN * abs(self.top)
        kept = self._regrets <= min(reach, core) + _MARGIN * abs(self.top)
        run = _Exploration(self, kept, target, beam)
        is_whole = run.expand_all()
        self._work += run.work
        picks, is_joined = run.join()
        return picks, is_whole and is_joined


class _Exploration:
    """One enumeration: two lists of partial assignments that grow towards each other."""

    def __init__(self, search: ExactSearch, kept: NDArray[np.bool_], target: float, beam: int | None) -> None:
        self.work = 0
        self._search, self._beam = search, beam
        values, costs, prices = search._values, search._costs, search._prices
        counts = kept.sum(axis=1)
        self._picks = search._regrets.argmin(axis=1)
        fixed = np.flatnonzero(counts == 1)
        self._picks[fixed] = kept[fixed].argmax(axis=1)
        self._kept = [np.flatnonzero(row) for row in kept]
        self._room = search._room - costs[:, fixed, self._picks[fixed]].sum(axis=1)
        spent = np.where(kept, np.tensordot(prices, costs, axes=1), np.nan)
        free = np.flatnonzero(counts > 1)
        spread = np.nanmax(spent[free], axis=1) - np.nanmin(spent[free], axis=1) if len(free) else free
        self._groups = free[np.argsort(-spread, kind="stable")]  # the coarse ones first
        self._lambdas = _varied(prices)
        open_values = np.where(kept, values, -np.inf)[self._groups]
        reduced = open_values[None] - np.tensordot(self._lambdas, costs[:, self._groups], axes=1)
        self._favourites = reduced.max(axis=2)  # prices × groups
        self._cheapest = np.where(kept, costs, np.inf)[:, self._groups].min(axis=2)  # rows × groups
        fixed_value = values[fixed, self._picks[fixed]].sum()
        self._floor = target - fixed_value - self._lambdas @ self._room
        count = len(search._room)
        self._halves = [
            _Half(values=np.zeros(1), costs=np.zeros((1, count)), reduced=np.zeros(1)) for _ in range(2)
        ]
        self._has_twins = _has_twins(open_values, costs[:, self._groups])

    def expand_all(self) -> bool:
        """Grow whichever list is smaller; whether nothing had to be left out."""
        first, last = 0, len(self._groups) - 1
        rest = [self._favourites.sum(axis=1), self._favourites.sum(axis=1)]
        least = [self._cheapest.sum(axis=1), self._cheapest.sum(axis=1)]
        is_whole = True
        while first <= last:
            # The first list is pruned harder, since what remains is fine grained: let it grow further.
            side = 0 if len(self._halves[0].values) <= 4 * len(self._halves[1].values) else 1
            position = first if side == 0 else last
            first, last = (first + 1, last) if side == 0 else (first, last - 1)
            rest[side] = rest[side] - self._favourites[:, position]
            least[side] = least[side] - self._cheapest[:, position]
            is_whole &= self._grow(self._halves[side], position, rest[side], least[side])
            if not len(self._halves[side].values):
                self._halves = [self._halves[side]] * 2
                return is_whole
            if self._search._is_late():
                self._beam = min(self._beam or _LATE_BEAM, _LATE_BEAM)
        return is_whole

    def _grow(self, half: _Half, position: int, rest: Floats, least: Floats) -> bool:
        """Extend every state of a list by every choice of a group; whether all that matter were kept."""
        group = int(self._groups[position])
        choices = self._kept[group]
        values, costs = self._search._values[group, choices], self._search._costs[:, group, choices].T
        reduced = np.add.outer(values - costs @ self._lambdas[0], half.reduced).ravel()
        self.work += len(reduced)
        alive = np.flatnonzero(reduced >= self._floor[0] - rest[0])  # most states end here, cheaply
        choice, parent = np.divmod(alive, len(half.values))
        grown = _Half(
            values=values[choice] + half.values[parent],
            costs=costs[choice] + half.costs[parent],
            reduced=reduced[alive],
        )
        excess = self._excess(grown, self._floor - rest, self._room - least)
        keep = np.flatnonzero(excess >= 0)
        if self._has_twins or grown.costs.shape[1] == 1:
            keep = keep[_not_dominated(grown.values[keep], grown.costs[keep])]
        most = self._beam or _MOST_STATES // len(choices)
        is_whole = len(keep) <= most
        if not is_whole:
            self._beam = min(most, _LAST_BEAM)  # no proof any more: only a good assignment is wanted
            keep = np.sort(keep[np.argpartition(-excess[keep], most)[:most]])
        half.values, half.costs, half.reduced = grown.values[keep], grown.costs[keep], grown.reduced[keep]
        half.history.append((group, parent[keep].astype(np.int32), choice[keep].astype(np.int8)))
        return is_whole

    def _excess(self, half: _Half, floors: Floats, room: Floats) -> Floats:
        """By how much each state may still lead above the target, at the worst of the prices; below 0: it cannot."""
        excess = np.empty(len(half.values))
        for start in range(0, len(excess), _BLOCK):
            block = slice(start, start + _BLOCK)
            costs = half.costs[block]
            bounds = half.values[block, None] - costs @ self._lambdas.T - floors
            excess[block] = np.where((costs <= room).all(axis=1), bounds.min(axis=1), -np.inf)
        return excess

    def join(self) -> tuple[Picks | None, bool]:
        first, second = self._halves
        if not len(first.values) or not len(second.values):
            return None, True
        pair, is_whole = best_pair(
            (first.values, first.costs),
            (second.values, second.costs),
            self._room,
            self._lambdas[0],
            self._floor[0],
        )
        if pair is None:
            return None, is_whole
        picks = self._picks.copy()
        for half, state in zip(self._halves, pair, strict=True):
            half.trace(state, picks, self._kept)
        return picks, is_whole


def _varied(prices: Floats) -> Floats:
    """The prices first, then every combination of the dearest rows at half and double price."""
    rows = [int(r) for r in np.argsort(-prices, kind="stable")[:_MOST_VARIED_ROWS] if prices[r] > 0]
    varied = [prices]
    for factors in itertools.product(_FACTORS, repeat=len(rows)):
        other = prices.copy()
        other[rows] *= factors
        if any(factor != 1.0 for factor in factors):
            varied.append(other)
    return np.array(varied)


def _has_twins(values: Floats, costs: Floats) -> bool:
    """Whether two groups have the same numbers, so that many states are equal."""
    if len(values) < 2:
        return False
    numbers = np.concatenate([values[None], costs]).transpose(1, 0, 2).reshape(len(values), -1)
    return len(np.unique(numbers, axis=0)) < len(values)


def _not_dominated(values: Floats, costs: Floats) -> NDArray[np.int64]:
    """States to keep: of equal ones the first; with a single row, only those that no cheaper one outdoes."""
    if len(values) < 2 or costs.shape[1] == 0:
        return np.arange(len(values))
    if costs.shape[1] == 1:
        order = np.lexsort((-values, costs[:, 0]))
        climbing = np.maximum.accumulate(values[order])
        return np.sort(order[np.r_[True, climbing[1:] > climbing[:-1]]])
    order = np.lexsort((costs[:, 0], values))
    same = (values[order[1:]] == values[order[:-1]]) & (costs[order[1:]] == costs[order[:-1]]).all(axis=1)
    return np.sort(order[np.r_[True, ~same]])
