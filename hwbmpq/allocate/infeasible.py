"""Budgets that cannot be met: why, and the least that has to give."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hwbmpq.allocate.problem import AllocationProblem, Choice, Table
from hwbmpq.costs.table import Number
from hwbmpq.errors import HwbmpqError
from hwbmpq.units import amount, budget_text

Bits = Mapping[str, Choice]
FindBest = Callable[[AllocationProblem], Bits | None]
"""The best bits of a problem, or None if there are none within its budgets."""

_CLOSE = Fraction(1, 10**8)
"""Relative width at which a bisection ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetReport:
    """What is wrong with one budget."""

    cost: str
    budget: Number
    smallest: Number
    """The least that this cost can be, whatever the others are."""
    smallest_bits: Mapping[str, Choice]
    relaxation: Number | None
    """The smallest budget that works while all others stay; None if no budget on this cost does."""
    fixed: Mapping[str, Number]
    """What layers without a choice contribute to the smallest value."""
    constant: Number = 0
    """What no width changes."""
    unit: str = ""
    """Of all these numbers; empty if it is not known."""
    largest: str = ""
    """The layer that takes the most of the smallest value."""
    largest_cost: Number = 0

    @property
    def is_reachable(self) -> bool:
        return Fraction(self.smallest) <= Fraction(self.budget)

    def __str__(self) -> str:
        """``memory needs at least 19.05 KiB, the budget is 4.000 KiB (1.047 KiB …)``."""
        least, budget = self._shown(self.smallest), self._shown(self.budget)
        if least == budget:
            least, budget = (f"{_plain(number)} {self.unit}" for number in (self.smallest, self.budget))
        if not self.unit:
            return f"{self.cost} is at least {least}, the budget is {budget}"
        takes = f" ({'; '.join(self._takers())})" if self._takers() else ""
        return f"{self.cost} needs at least {least}, the budget is {budget}{takes}"

    def _shown(self, number: Number) -> str:
        return amount(number, self.unit) if self.unit else _plain(number)

    @property
    def fixed_first(self) -> list[str]:
        """Layers without a choice, those that take the most first."""
        return sorted(self.fixed, key=lambda name: -self.fixed[name])

    def _takers(self) -> list[str]:
        """What the smallest value is made of."""
        held = sum(self.fixed.values())
        parts = [f"{self._shown(self.constant)} do not depend on widths"] if self.constant else []
        if held:
            names = ", ".join(self.fixed_first[:3]) + (" …" if len(self.fixed) > 3 else "")
            parts.append(f"{self._shown(held)} are layers of one width: {names}")
        if self.largest and self.largest not in self.fixed:
            width = self.smallest_bits[self.largest]
            parts.append(
                f"the largest layer, {self.largest}, takes {self._shown(self.largest_cost)} at {width}"
            )
        return parts


class InfeasibleBudget(HwbmpqError):  # noqa: N818 (a state of the budgets, and the name users know)
    """Budgets that no allocation meets."""

    def __init__(self, problem: AllocationProblem, find_best: FindBest) -> None:
        finder = _Finder(problem, find_best)
        self.reports = tuple(finder.report(cost) for cost in problem.budgets if _is_finite(problem, cost))
        """One for each budget."""
        self.conflict = () if self.unreachable else finder.conflict()
        """The fewest budgets that exclude each other, if each alone can be met."""
        self.suggestion = finder.suggestion(self.reports)
        """Budgets that can be met, raised no more than necessary."""
        super().__init__(self._message(), hint=self._hint(problem))

    @property
    def unreachable(self) -> tuple[str, ...]:
        """Costs whose budget is below the least that is possible."""
        return tuple(report.cost for report in self.reports if not report.is_reachable)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "error": str(self),
            "budgets": {
                report.cost: {
                    "budget": report.budget,
                    "smallest": report.smallest,
                    "smallest_bits": {layer: str(choice) for layer, choice in report.smallest_bits.items()},
                    "relaxation": report.relaxation,
                    "fixed": dict(report.fixed),
                    "constant": report.constant,
                    "unit": report.unit,
                }
                for report in self.reports
            },
            "conflict": list(self.conflict),
            "suggestion": {n: b if math.isfinite(b) else None for n, b in self.suggestion.items()},
        }

    def _message(self) -> str:
        if self.unreachable:
            parts = [str(report) for report in self.reports if not report.is_reachable]
            return "the budgets cannot be met: " + "; ".join(parts)
        return f"the budgets on {' and '.join(self.conflict)} can each be met, but not together"

    def _hint(self, problem: AllocationProblem) -> str:
        units = {report.cost: report.unit for report in self.reports}
        raised = {n: b for n, b in self.suggestion.items() if b != problem.budgets[n]}
        texts = (f"{n}={budget_text(b, units[n]) if units.get(n) else repr(b)}" for n, b in raised.items())
        hint = "these budgets can be met: " + ", ".join(texts)
        return f"{hint}; or {self.advice}" if self.advice else hint

    @property
    def advice(self) -> str:
        """What helps besides a larger budget, if layers without a choice are most of what is needed."""
        wide = [
            report
            for report in self.reports
            if not report.is_reachable and 2 * sum(report.fixed.values()) >= report.smallest
        ]
        names = list(dict.fromkeys(name for report in wide for name in report.fixed_first))
        return f"give fixed layers fewer bits: {', '.join(names[:3])}" if names else ""


def _is_finite(problem: AllocationProblem, cost: str) -> bool:
    return math.isfinite(problem.budgets[cost])


def _plain(number: Number) -> str:
    return f"{number:,}" if isinstance(number, int) else repr(number)


class _Finder:
    def __init__(self, problem: AllocationProblem, find_best: FindBest) -> None:
        self._problem, self._find_best = problem, find_best

    def report(self, cost: str) -> BudgetReport:
        smallest = self._smallest_bits(cost, {})
        assert smallest is not None, "without budgets everything is allowed"
        others = {name: budget for name, budget in self._problem.budgets.items() if name != cost}
        relaxed = self._smallest_bits(cost, others)
        fixed_layers = [
            name for group in self._problem.groups if len(group.choices) == 1 for name in group.layers
        ]
        row = max(self._problem.rows_of(cost), key=lambda row: row.exact_total(smallest))
        paid = {layer: choices[smallest[layer]] for layer, choices in row.costs.items()}
        largest = max(paid, key=paid.__getitem__, default="")
        return BudgetReport(
            cost=cost,
            budget=self._problem.budgets[cost],
            smallest=budget_for(self._problem, cost, smallest),
            smallest_bits=smallest,
            relaxation=None if relaxed is None else budget_for(self._problem, cost, relaxed),
            fixed={layer: paid[layer] for layer in fixed_layers if layer in paid},
            constant=row.constant,
            unit=row.unit,
            largest=largest,
            largest_cost=paid.get(largest, 0),
        )

    def conflict(self) -> tuple[str, ...]:
        budgets = self._problem.budgets
        for count in range(2, len(budgets) + 1):
            for names in itertools.combinations(budgets, count):
                some = self._problem.with_budgets({name: budgets[name] for name in names})
                if self._find_best(some) is None:
                    return names
        raise AssertionError("the budgets together are infeasible")

    def suggestion(self, reports: tuple[BudgetReport, ...]) -> dict[str, Number]:
        """Raise one budget if that is enough, the one that grows the least; else all that are below their smallest
        value to that, and then one; else all by the same factor."""
        budgets = dict(self._problem.budgets)
        for raised in (budgets, budgets | {r.cost: r.smallest for r in reports if not r.is_reachable}):
            if raised != budgets and self._find_best(self._problem.with_budgets(raised)) is not None:
                return raised
            best = self._raise_one(raised)
            if best is not None:
                return best
        return self._raise_all(raised)

    def _raise_one(self, budgets: dict[str, Number]) -> dict[str, Number] | None:
        options = []
        for cost, budget in budgets.items():
            others = {name: other for name, other in budgets.items() if name != cost}
            bits = self._smallest_bits(cost, others) if math.isfinite(budget) else None
            if bits is not None:
                needed = budget_for(self._problem, cost, bits)
                options.append((_growth(budget, needed), budgets | {cost: needed}))
        return min(options, key=lambda option: option[0])[1] if options else None

    def _raise_all(self, budgets: dict[str, Number]) -> dict[str, Number]:
        def scaled(factor: Fraction) -> dict[str, Number]:
            return {
                name: float(Fraction(b) * factor) if math.isfinite(b) else b for name, b in budgets.items()
            }

        def factor_of(bits: Bits) -> Fraction:
            totals = {
                cost: self._problem.exact_total(cost, bits)
                for cost in budgets
                if math.isfinite(budgets[cost])
            }
            return max(
                (t / Fraction(budgets[cost]) for cost, t in totals.items() if budgets[cost]),
                default=Fraction(1),
            )

        def find(factor: Fraction) -> Bits | None:
            return self._find_best(self._problem.with_budgets(scaled(factor)))

        start = self._problem.bits([0] * len(self._problem.groups))
        bits = _bisect(Fraction(1), start, factor_of, find)
        raised = {name: max(b, budget_for(self._problem, name, bits)) for name, b in budgets.items()}
        for name in [name for name, budget in raised.items() if budget > budgets[name]]:
            others = {other: budget for other, budget in raised.items() if other != name}
            least = self._smallest_bits(name, others)
            assert least is not None, "these budgets are met"
            raised[name] = max(budgets[name], budget_for(self._problem, name, least))
        return raised

    def _smallest_bits(self, cost: str, others: Mapping[str, Number]) -> Bits | None:
        return smallest_bits(self._problem, cost, others, self._find_best)


def smallest_bits(
    problem: AllocationProblem, cost: str, others: Mapping[str, Number], find_best: FindBest
) -> Bits | None:
    """Where a cost is smallest under the other budgets; None if those cannot be met."""
    rows = problem.rows_of(cost)
    cheapest = problem.with_values(_negative_sum([row.costs for row in rows], problem))
    bits = find_best(cheapest.with_budgets(others))
    if bits is None or len(rows) == 1:
        return bits

    def find(total: Fraction) -> Bits | None:
        return find_best(cheapest.with_budgets({**others, cost: float(total)}))

    floor = max(_least(row.costs, problem) + Fraction(row.constant) for row in rows)
    grain = int(isinstance(problem.total(cost, bits), int))
    return _bisect(floor, bits, lambda bits: problem.exact_total(cost, bits), find, grain)


def budget_for(problem: AllocationProblem, cost: str, bits: Bits) -> Number:
    """A cost as a number that, taken as a budget, is met by these bits: never rounded down."""
    return rounded_up(problem.exact_total(cost, bits), all(row.is_whole for row in problem.rows_of(cost)))


def rounded_up(exact: Fraction, is_whole: bool) -> Number:
    """The next number that is no smaller: a whole one, or one in floating point."""
    if is_whole:
        return int(exact)
    total = float(exact)
    return total if Fraction(total) >= exact else math.nextafter(total, math.inf)


def _negative_sum(tables: list[Table], problem: AllocationProblem) -> Table:
    """Values that prefer what is cheap in all tables together."""
    return {
        layer: {choice: -sum(t[layer][choice] for t in tables if layer in t) for choice in choices}
        for layer, choices in problem.values.items()
    }


def _least(table: Table, problem: AllocationProblem) -> Fraction:
    return sum(
        (
            min(
                sum((Fraction(table[layer][choice]) for layer in group.layers if layer in table), Fraction(0))
                for choice in group.choices
            )
            for group in problem.groups
        ),
        Fraction(0),
    )


def _growth(budget: Number, needed: Number) -> float:
    return float(needed) / float(budget) if budget > 0 else math.inf


def _bisect(
    low: Fraction,
    bits: Bits,
    measure: Callable[[Bits], Fraction],
    find: Callable[[Fraction], Bits | None],
    grain: int = 0,
) -> Bits:
    """Bits with the smallest measure, starting from some; ``low`` is known to be too small, or just right. Measures that
    are whole numbers have a ``grain`` of 1."""
    first = find(low)
    if first is not None:
        return first
    high = measure(bits)
    least = max(_CLOSE * max(abs(high), abs(low)), Fraction(grain))
    while high - low >= least:
        middle = (low + high) / 2
        found = find(middle)
        if found is None:
            low = middle
        else:
            bits = found
            high = min(middle, measure(found))
    return bits
