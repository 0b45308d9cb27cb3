"""A presolved tableau in numbers that add up without rounding, and what prices on its rows say about every choice."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
