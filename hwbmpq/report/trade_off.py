"""What other budgets would give, and what simpler ways of choosing widths give within the same budget."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hwbmpq.allocate import AllocationError, Frontier, frontier, greedy_fill, random_fill, values_for
from hwbmpq.costs.table import Number
from hwbmpq.report.values import Plan, RunFacts
from hwbmpq.values import Sensitivity

MOST_POINTS = 60
_RANDOM_DRAWS = 5
_LARGEST_EXACT = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class TradeOffPoint:
    """The best widths at one price."""

    costs: Mapping[str, Number]
    """Of all costs, not only the one that is traded."""
    share: float
    """Of the objective's range."""
    weight_bits: tuple[int, ...]
    """By layer, in their order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """The run's widths, or others that were chosen without optimising."""

    kind: str
    """``chosen``, ``uniform``, ``greedy`` or ``random``."""
    name: str
    cost: Number
    share: float
    fits: bool


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """The objective over one cost."""

    cost: str
    unit: str
    points: tuple[TradeOffPoint, ...]
    """From cheap to expensive."""
    chosen: Control
    """The run's own widths."""
    controls: tuple[Control, ...]
    is_exact: bool
    """Whether the points are some of the exact frontier, or optima at sampled budgets."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_trade_off(
    facts: RunFacts,
    plan: Plan,
    sensitivity: Sensitivity | None = None,
    *,
    on_step: Callable[[int, int], None] | None = None,
) -> TradeOff | None:
    """The trade-off of the first budgeted cost (else memory); None where layers have no choice.

    ``sensitivity`` with its errors is needed for objectives that weigh them; a plan from a file has none.
    """
    cost = next(iter(facts.limits), "memory")
    table = facts.tables.get(cost)
    if table is None or all(len(options) < 2 for options in facts.choices.values()):
        return None
    try:
        values = values_for(sensitivity or plan.sensitivity, facts.choices, plan.objective)
    except AllocationError:
        return None  # the scores are not enough for this objective
    found = frontier(
        values, {cost: table}, facts.ties, most_points=_LARGEST_EXACT, samples=24, on_step=on_step
    )
    return TradeOff(
        cost=cost,
        unit=table.unit,
        points=tuple(_points(facts, found)),
        chosen=Control(
            kind="chosen",
            name="this run",
            cost=plan.costs[cost].total,
            share=plan.share_of_range(plan.allocation.objective),
            fits=True,
        ),
        controls=tuple(_controls(facts, plan, values, cost)),
        is_exact=found.is_exact,
    )


def _points(facts: RunFacts, found: Frontier) -> Iterator[TradeOffPoint]:
    """Up to ``MOST_POINTS`` of a frontier, both ends among them."""
    count = min(len(found), MOST_POINTS)
    for place in np.linspace(0, len(found) - 1, count).round().astype(int).tolist():
        bits = found[place].bits
        yield TradeOffPoint(
            costs={name: table.total(bits) for name, table in facts.tables.items()},
            share=float(found.shares[place]),
            weight_bits=tuple(bits[layer.name].weight_bits for layer in facts.layers),
        )


def _controls(facts: RunFacts, plan: Plan, values: Any, cost: str) -> list[Control]:
    found = [
        Control(
            kind="uniform",
            name=f"all {alternative.label}",
            cost=alternative.costs[cost],
            share=plan.share_of_range(alternative.objective),
            fits=alternative.fits,
        )
        for alternative in plan.alternatives
    ]
    limits = {name: limit for name, limit in plan.allocation.budgets.items() if name in facts.tables}
    if not limits:
        return found
    tables = {name: facts.tables[name] for name in limits}
    sizes = {layer.name: layer.parameters for layer in facts.layers}
    unoptimised = [("greedy", "greedy", greedy_fill(values, tables, limits, facts.ties, sizes=sizes))]
    unoptimised += [
        ("random", f"random {seed + 1}", random_fill(values, tables, limits, facts.ties, seed=seed))
        for seed in range(_RANDOM_DRAWS)
    ]
    for kind, name, allocation in unoptimised:
        share = plan.share_of_range(allocation.objective)
        bits: Any = allocation.bits  # precisions, since the tables have them
        total = facts.tables[cost].total(bits)
        found.append(Control(kind=kind, name=name, cost=total, share=share, fits=True))
    return found
