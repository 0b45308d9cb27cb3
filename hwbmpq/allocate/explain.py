"""Why these bits: what budgets are worth, what the runner-up is, what would change first. All by solving again."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from hwbmpq.allocate.allocation import Allocation
from hwbmpq.allocate.exact.prove import PROOF
from hwbmpq.allocate.infeasible import budget_for, smallest_bits
from hwbmpq.allocate.problem import AllocationError, AllocationProblem, BudgetRow, Choice, Group
from hwbmpq.allocate.solve import Best, bits_of, find_best
from hwbmpq.allocate.solvers import SolverError
from hwbmpq.costs.table import Number
from hwbmpq.values import Precision

WrittenChoice = Annotated[
    Choice, PlainValidator(lambda text: Precision.parse(str(text))), PlainSerializer(str)
]
"""A choice that files keep as ``W4A8``; only precisions are read back."""
_PERCENT = 0.01
_KINDS = ("shrunk", "runner-up", "grown")


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What a larger budget would buy."""

    cost: str
    increase: Number
    budget: Number
    gain: float
    """Of the objective."""
    share: float
    """The gain as a share of all that the objective can gain, from every layer at its worst to every layer at its best
    choice."""
    changes: Mapping[str, WrittenChoice]
    """Layers that would change, and to what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerUp:
    """The best that is left if a layer may not have its choice."""

    choice: WrittenChoice
    loss: float
    """Of the objective."""
    changes: Mapping[str, WrittenChoice]
    """Other layers that would change with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstChange:
    """The nearest budget at which the allocation becomes another."""

    cost: str
    budget: Number
    gain: float
    """Of the objective; negative for a smaller budget."""
    changes: Mapping[str, WrittenChoice]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    prices: tuple[Price, ...]
    runner_ups: Mapping[str, RunnerUp | None]
    """By layer; None if nothing else fits. Layers without a choice, or out of time, are not in it."""
    if_grown: Mapping[str, FirstChange | None]
    """By budget; None if more of it buys nothing. Budgets for which there was no time are not in it."""
    if_shrunk: Mapping[str, FirstChange | None]
    """By budget; None if it cannot be smaller."""
    is_complete: bool = True
    """Whether there was time for every layer."""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        content: dict[str, Any] = TypeAdapter(Explanation).dump_python(self, mode="json")
        return content


def explain(
    allocation: Allocation,
    *,
    increases: Mapping[str, Sequence[Number]] | None = None,
    solver: str = "auto",
    time_limit: float = 30.0,
    on_step: Callable[[int, int], None] | None = None,
) -> Explanation:
    """What the budgets of an allocation are worth, and how firm each choice is.

    ``increases``: by cost, what to add to its budget (always included: 1 %). ``on_step`` is told how many of how many
    layers are done.
    """
    if allocation.problem is None:
        raise AllocationError(
            "an allocation that was read from JSON cannot be explained", hint="solve it again"
        )
    asker = _Asker(allocation, allocation.problem, solver, time.monotonic() + time_limit)
    limited = {row.cost for row in allocation.problem.limited_rows}
    budgets = {cost: budget for cost, budget in allocation.budgets.items() if cost in limited}
    steps = [(c, i) for c, b in budgets.items() for i in [_PERCENT * abs(b), *(increases or {}).get(c, ())]]
    free = [group for group in allocation.problem.groups if len(group.choices) > 1]
    questions: dict[tuple[Any, ...], Callable[[], Any]] = {
        **{("price", *step): partial(asker.price, *step) for step in steps},
        **{("shrunk", cost): partial(asker.if_shrunk, cost) for cost in budgets},
        **{("runner-up", group.name): partial(asker.runner_up, group) for group in free},
        **{("grown", cost): partial(asker.if_grown, cost) for cost in budgets},
    }
    answers: dict[tuple[Any, ...], Any] = {}
    for key, ask in questions.items():
        try:
            answers[key] = ask()
        except (SolverError, TimeoutError):
            continue  # there was no time for it
        if on_step is not None and key[0] == "runner-up":
            on_step(sum(kind == "runner-up" for kind, *_ in answers), len(free))
    found = {kind: {key[1]: a for key, a in answers.items() if key[0] == kind} for kind in _KINDS}
    return Explanation(
        prices=tuple(answer for answer in answers.values() if isinstance(answer, Price)),
        runner_ups={
            layer: found["runner-up"][group.name]
            for group in free
            if group.name in found["runner-up"]
            for layer in group.layers
        },
        if_grown=found["grown"],
        if_shrunk=found["shrunk"],
        is_complete=len(answers) == len(questions),
    )


class _Asker:
    def __init__(
        self, allocation: Allocation, problem: AllocationProblem, solver: str, deadline: float
    ) -> None:
        self._allocation, self._problem, self._deadline = allocation, problem, deadline
        self._solver = solver
        low, high = problem.objective_range
        self._range = high - low

    def price(self, cost: str, increase: Number) -> Price | None:
        budget = self._allocation.budgets[cost] + increase
        best = self._solve(self._with_budget(cost, budget))
        if best is None:
            return None
        gain = best.objective - self._allocation.objective
        gain = gain if gain > PROOF * abs(self._allocation.objective) else 0.0
        changes = self._changes(best.bits) if gain > 0 else {}
        share = gain / self._range if self._range else 0.0
        return Price(cost=cost, increase=increase, budget=budget, gain=gain, share=share, changes=changes)

    def if_shrunk(self, cost: str) -> FirstChange | None:
        """Any budget below what is used now."""
        used = self._allocation.costs[cost]
        budget = used - 1 if isinstance(used, int) else math.nextafter(used, -math.inf)
        change = self._first_change(cost, budget, self._solve(self._with_budget(cost, budget)))
        return change if change is not None and change.changes else None

    def if_grown(self, cost: str) -> FirstChange | None:
        """The least cost of an allocation that is better."""
        better = BudgetRow(
            cost="",
            costs={
                layer: {choice: -value for choice, value in choices.items()}
                for layer, choices in self._problem.values.items()
            },
            budget=-(
                self._allocation.objective + max(self._range * PROOF, abs(self._allocation.objective) * PROOF)
            ),
        )
        demanding = replace(
            self._problem,
            rows=(*self._problem.rows, better),
            budgets={**self._problem.budgets, "": better.budget},
        )
        others = {name: budget for name, budget in demanding.budgets.items() if name != cost}
        bits = smallest_bits(demanding, cost, others, lambda problem: bits_of(self._solve(problem)))
        if bits is None:
            return None
        budget = budget_for(self._problem, cost, bits)
        change = self._first_change(cost, budget, self._solve(self._with_budget(cost, budget)))
        return change if change is not None and change.gain > 0 else None

    def runner_up(self, group: Group) -> RunnerUp | None:
        mine = self._allocation.bits[group.name]
        others = [choice for choice in group.choices if choice != mine]
        best = self._solve(self._problem.with_choices(group.name, others))
        if best is None:
            return None
        changes = {n: c for n, c in self._changes(best.bits).items() if n not in group.layers}
        loss = max(0.0, self._allocation.objective - best.objective)
        return RunnerUp(choice=best.bits[group.name], loss=loss, changes=changes)

    def _first_change(self, cost: str, budget: Number, best: Best | None) -> FirstChange | None:
        if best is None:
            return None
        gain = best.objective - self._allocation.objective
        return FirstChange(cost=cost, budget=budget, gain=gain, changes=self._changes(best.bits))

    def _changes(self, bits: Mapping[str, Choice]) -> dict[str, Choice]:
        return {layer: choice for layer, choice in bits.items() if choice != self._allocation.bits[layer]}

    def _with_budget(self, cost: str, budget: Number) -> AllocationProblem:
        return self._problem.with_budgets({**self._problem.budgets, cost: budget})

    def _solve(self, problem: AllocationProblem) -> Best | None:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return find_best(problem, self._solver, seconds)
