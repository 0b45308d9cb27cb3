"""Bits that cost nothing are given away."""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from hwbmpq.allocate.problem import AllocationProblem, BudgetRow, Group


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
