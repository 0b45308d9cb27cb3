"""Exact search of what a relaxation leaves open.

Prices λ on the rows (the duals of the linear relaxation) give every group a favourite, the choice with the largest
value - λ·cost, and an upper bound on the objective:

    top = λ·room + Σ favourites          (weak duality: true for any λ >= 0, however it was found)

An assignment falls short of the top by its regrets (favourite minus taken, per group) plus λ·(room left over). So
all assignments within δ of the top are made of choices with regret <= δ: few. They are enumerated; if there are none,
the bound falls by δ, otherwise the best one is optimal. No tolerance of a solver enters into this.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hwbmpq.allocate.exact.exploration import FURTHER, Exploration, Picks, build_core
from hwbmpq.allocate.tableau import Floats, Tableau

_MARGIN = 1e-12
"""Share of the top by which pruning errs on the safe side of rounding."""
_CORES = ((20, 5000), (30, 5000), (40, 10_000), (60, 20_000))
"""Before anything is proven: so many of the choices with the least regret, and states that are kept of them. The best
assignment of such a core is close to the optimum at once."""
_CHEAP = 200_000
"""States up to which a proof without any tolerance is worth its time."""
_MOST_WORK = 15_000_000
_FEW_ROWS, _FEW_CHOICES = 4, 64
_FIRST_STEP = 1 / 8
_STEP = 1.5
_SAFELY = 0.9


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best assignment, and what none can exceed, both in the tableau's values."""

    picks: Picks | None
    value: float
    bound: float


class ExactSearch:
    """Enumerates near-optimal assignments of a presolved tableau, for the prices of its relaxation."""

    def __init__(
        self, tableau: Tableau, prices: Floats, *, accepts: Callable[[Picks], bool], deadline: float
    ) -> None:
        self.core = build_core(tableau, prices)
        self._is_open, self._deadline, self._accepts = tableau.is_open, deadline, accepts
        # With many rows, bounds by prices are weak, and branch and bound is the better way.
        is_hard = len(tableau.rows) > _FEW_ROWS and tableau.is_open.sum() > _FEW_CHOICES
        self._cores = _CORES[:1] if is_hard else _CORES
        self._most_work = 0 if is_hard else _MOST_WORK
        self._margin = _MARGIN * abs(self.core.top)
        self._work = 0
        self._best: Picks | None = None
        self._low = -np.inf

    def run(self, *, proof: float) -> Found:
        """Search until the best assignment is proven to ``proof`` (relative), or time or memory run out."""
        favourites = self.core.favourites
        for picks in (favourites, self._rounded_down(favourites)):
            self.offer(picks)
        for choices, beam in self._cores:
            reach, regret = self._reach(), self._regret_of(choices)
            is_whole = self._explore(reach, beam, regret)
            if (
                is_whole and regret >= reach
            ):  # nothing better was left out, and nothing at all if nothing was found
                return self.found(self._low)
        return self.found(self._deepened(proof))

    def offer(self, picks: Picks | None) -> bool:
        """Take an assignment if it is better than the best so far, and within the budgets; whether it was."""
        if picks is None or not self.core.fits(picks) or self.core.value(picks) <= self._low:
            return False
        if not self._accepts(picks):
            return False
        self._best, self._low = picks, self.core.value(picks)
        return True

    def _deepened(self, proof: float) -> float:
        """Look ever further below the top, until there is nothing left above the best assignment: the bound."""
        top = self.core.top
        bound, reach, tolerance = top, (top - self._low) * _FIRST_STEP, 0.0
        while self._best is not None and bound - self._low > tolerance and not self._is_exhausted():
            if self._work > _CHEAP:
                tolerance = proof * abs(self._low + self.core.whole_offset)
            reach = min(reach * _STEP, top - self._low - _SAFELY * tolerance)
            before = self._low
            if self._explore(reach):
                bound = max(self._low, top - reach)
            elif self._low > before:
                reach = max(top - bound, reach / _STEP**2)
            else:
                break
        return max(bound, self._low)

    def _explore(self, reach: float, beam: int | None = None, regret: float = np.inf) -> bool:
        """Look at the assignments within ``reach`` of the top that are made of choices up to ``regret``; whether none was
        left out."""
        kept = self._is_open & (self.core.regrets <= min(reach, regret) + self._margin)
        target = self.core.top - reach - self._margin
        for further in (FURTHER, np.inf):
            exploration = Exploration(
                self.core,
                kept,
                target,
                beam=beam,
                is_late=self._is_late,
                accepts=self._accepts,
                further=further,
            )
            self.offer(exploration.best())
            self._work += exploration.work
            if exploration.is_joined:  # else too many pairs: let the first list take all groups
                break
        return exploration.is_whole and exploration.is_joined

    def _reach(self) -> float:
        """How far below the top an assignment may lie and still be of interest."""
        if self._best is not None:
            return self.core.top - self._low
        return float(self.core.regrets[self._is_open].sum()) + self.core.top

    def _regret_of(self, choices: int) -> float:
        """The regret up to which there are so many choices besides the favourites."""
        regrets = np.sort(self.core.regrets[self._is_open & (self.core.regrets > 0)])
        return float(regrets[choices]) if choices < len(regrets) else np.inf

    def found(self, bound: float) -> Found:
        """The best assignment so far."""
        core = self.core
        return Found(picks=self._best, value=core.in_tableau(self._low), bound=core.in_tableau(bound))

    def _is_exhausted(self) -> bool:
        return self._work > self._most_work or self._is_late()

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _rounded_down(self, picks: Picks) -> Picks | None:
        """Step down where it costs the least value per overshoot, until the budgets hold; None if that fails."""
        core, picks = self.core, picks.copy()
        everyone = np.arange(len(picks))
        for _ in range(self._is_open.size):
            over = np.maximum(core.costs_of(picks) - core.room, 0.0)
            if not over.any():
                return picks
            saved = core.costs[:, everyone, picks][:, :, None] - core.costs
            relief = np.tensordot(over / core.room, saved, axes=1)
            loss = core.values[everyone, picks][:, None] - core.values
            helps = (relief > 0) & self._is_open
            worth = np.where(helps, loss / np.where(helps, relief, 1.0), np.inf)
            group, choice = np.unravel_index(int(worth.argmin()), worth.shape)
            if not np.isfinite(worth[group, choice]):
                return None
            picks[group] = choice
        return None
