"""Budgets as people write them: ``memory=350KiB``, ``memory=12x``, ``latency=8ms``, ``bops=30%``."""

import math
import re
from dataclasses import dataclass
from numbers import Real

from hwbmpq.costs.registry import CostModelError, cost_models
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.units import Dimension, parse_quantity

_DIMENSIONS = {
    "bit": Dimension(unit="bit", suffix="", symbols={"bit": 1.0, "B": 8.0}, examples="350KiB, 1.5MB"),
    "ms": Dimension(unit="ms", suffix="", symbols={"s": 1e3}, examples="8ms, 250us"),
    "uJ": Dimension(unit="uJ", suffix="", symbols={"J": 1e6}, examples="40uJ, 1.2mJ"),
    "bit-op": Dimension(unit="bit-op", suffix="", symbols={"bit-op": 1.0, "BOP": 1.0}, examples="30GBOP"),
}
_LONGEST = 60
"""Characters of a budget that an error repeats."""
_SHARE = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*%\s*")
_RATIO = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*[x×]\s*")


class BudgetError(HwbmpqError):
    """A budget that cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """An upper bound on a cost; one of the three is set."""

    cost: str
    amount: float | None = None
    """In the cost's own unit."""
    share: float | None = None
    """Of the cost with every layer at its widest."""
    ratio: float | None = None
    """How many times smaller than in 32-bit float."""


def parse_budget(cost: str, text: str | float) -> Budget:
    """The budget that a text (or a number in the cost's unit) says; ``BudgetError`` with the valid forms otherwise.

    >>> parse_budget("memory", "12x").ratio, parse_budget("latency", "8 ms").amount
    (12.0, 8.0)
    """
    models = cost_models()
    if cost not in models:
        raise UnknownNameError("cost", cost, models, hint="`hwbmpq costs list` shows them all")
    unit = str(getattr(models[cost].entry, "unit", ""))
    if models[cost].entry is None:
        raise CostModelError(f"cost model {cost!r} cannot be loaded: {models[cost].error}")
    try:
        budget = _parse(cost, text, unit)
        value = next(v for v in (budget.amount, budget.share, budget.ratio) if v is not None)
        if not 0 < value < math.inf:
            raise ValueError("must be greater than zero")
        if budget.share is not None and budget.share > 1:
            raise ValueError("is more than every layer at its widest")
    except ValueError as error:
        raise BudgetError(
            f"budget {cost}={_brief(text)}: {error}", hint=f"write {forms(cost, unit)}"
        ) from None
    return budget


def _parse(cost: str, text: str | float, unit: str) -> Budget:
    if not isinstance(text, str):
        return Budget(cost=cost, amount=_number(text))
    if match := _SHARE.fullmatch(text):
        return Budget(cost=cost, share=float(match[1]) / 100)
    if match := _RATIO.fullmatch(text):
        if unit != "bit":
            raise ValueError("only a memory can be so many times smaller than in float")
        return Budget(cost=cost, ratio=float(match[1]))
    dimension = _DIMENSIONS.get(
        unit, Dimension(unit=unit, suffix="", symbols={unit: 1.0}, examples=f"10 {unit}")
    )
    return Budget(cost=cost, amount=parse_quantity(text, dimension, needs_unit=unit in ("bit", "ms", "uJ")))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError("is neither a text nor a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("is too large") from None


def _brief(text: object) -> str:
    try:
        shown = str(text)
    except ValueError:  # Python prints no integer of thousands of digits
        shown = "a huge number"
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


def forms(cost: str, unit: str) -> str:
    """How a budget on this cost may be written."""
    dimension = _DIMENSIONS.get(unit)
    amounts = dimension.examples.split(", ") if dimension else [f"10 {unit}"]
    ratio = ["12x (times smaller than float)"] if unit == "bit" else []
    return ", ".join(f"{cost}={form}" for form in [*amounts, *ratio, "30% (of the widest)"])
