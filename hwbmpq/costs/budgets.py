"""Budgets as people write them: amounts with units, and relative to the network."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real

from hwbmpq.costs.model import CostModelError, cost_models
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
_PER_WEIGHT = re.compile(
    r"\s*(\d+(?:\.\d+)?)\s*b(?:its?)?\s*/\s*(?:w|weight|param|parameter)s?\s*", re.IGNORECASE
)
_OF_WEIGHTS = ("memory", "weight_memory", "flash")
"""Costs that are mostly weights, so that bits per weight mean something."""
_MEANT = {
    "memory": "size model_size modelsize file_size params parameters weights weight storage disk bytes mem",
    "flash": "rom nvm eeprom",
    "ram": "sram peak_memory peak_ram working_set activations",
    "latency": "time delay runtime speed inference_time ms duration lat",
    "energy": "power joule joules watt watts battery",
    "bops": "ops macs mac flops operations",
}
"""Words that people use for a cost."""
_RELATIVE = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([%x×])\s*")


class BudgetError(HwbmpqError):
    """A budget that cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """An upper bound on a cost; one of the four is set."""

    cost: str
    amount: float | None = None
    """In the cost's own unit."""
    share: float | None = None
    """Of the cost with every layer at its widest."""
    ratio: float | None = None
    """How many times smaller than in float."""
    bits_per_weight: float | None = None
    """On average, over all weights of the layers."""

    @property
    def value(self) -> float:
        """The one that is set."""
        said = (self.amount, self.share, self.ratio, self.bits_per_weight)
        return next(number for number in said if number is not None)


def parse_budget(cost: str, text: str | float) -> Budget:
    """The budget that a text (or a number in the cost's unit) says; ``BudgetError`` with the valid forms otherwise.

    >>> parse_budget("memory", "12x").ratio, parse_budget("latency", "8 ms").amount
    (12.0, 8.0)
    >>> parse_budget("memory", "4b/weight").bits_per_weight
    4.0
    """
    models = cost_models()
    if cost not in models:
        raise _unknown(cost, text, models)
    unit = str(getattr(models[cost].entry, "unit", ""))
    if models[cost].entry is None:
        raise CostModelError(f"cost model {cost!r} cannot be loaded: {models[cost].error}")
    try:
        budget = _parse(cost, text, unit)
        if not 0 < budget.value < math.inf:
            raise ValueError("must be greater than zero")
        if budget.share is not None and budget.share > 1:
            raise ValueError("is more than every layer at its widest")
    except ValueError as error:
        raise BudgetError(
            f"budget {cost}={_brief(text)}: {error}", hint=f"write {forms(cost, unit)}"
        ) from None
    return budget


def _unknown(cost: str, text: str | float, known: Collection[str]) -> UnknownNameError:
    """With the cost that was probably meant, and the budget to write."""
    word = cost.lower().replace("-", "_").replace(" ", "_")
    if word in ("bit", "bits", "bitwidth", "width", "widths"):
        amount = f"{_brief(text).rstrip('b')}b/weight"
        return UnknownNameError(
            "cost",
            cost,
            known,
            meant="memory",
            hint=f"memory={amount} for so many bits per weight on average; bits (--bits) are the widths to choose from",
        )
    meant = next((name for name, words in _MEANT.items() if word in words.split() or word == name), "")
    if not meant:
        return UnknownNameError("cost", cost, known, hint="`hwbmpq costs list` shows them all")
    return UnknownNameError("cost", cost, known, meant=meant, hint=f"{meant}={_brief(text)}")


def _parse(cost: str, text: str | float, unit: str) -> Budget:
    if not isinstance(text, str):
        return Budget(cost=cost, amount=_number(text))
    match = _RELATIVE.fullmatch(text)
    if match and match[2] == "%":
        return Budget(cost=cost, share=float(match[1]) / 100)
    per_weight = _PER_WEIGHT.fullmatch(text)
    if per_weight and cost not in _OF_WEIGHTS:
        raise ValueError(f"bits per weight are for {', '.join(_OF_WEIGHTS)}")
    if per_weight:
        return Budget(cost=cost, bits_per_weight=float(per_weight[1]))
    if match and unit != "bit":
        raise ValueError("only a memory can be so many times smaller than in float")
    if match:
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
    if cost in _OF_WEIGHTS:
        ratio.append("4b/weight (on average)")
    return ", ".join(f"{cost}={form}" for form in [*amounts, *ratio, "30% (of the widest)"])
