"""What is asked of the allocator, checked: groups of layers, their values, and sums that have a budget."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import networkx as nx

from hwbmpq.costs.table import CostRow, CostTable, Number
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.values import Precision, TieGroup

Choice = int | tuple[int, int] | Precision
"""A weight width, a (weight, activation) pair, or a ``Precision``."""

Table = Mapping[str, Mapping[Any, Number]]
"""A number by layer and choice (whose keys are of one kind)."""

Cost = Table | Sequence[Table] | CostTable
"""One additive table, or several of which each must hold."""

Ties = Iterable[Sequence[str] | TieGroup]

NOISE = 1e-9
"""Values below this share of the largest count as zero."""


class AllocationError(HwbmpqError):
    """Numbers that make no allocation problem."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Layers that share one choice."""

    layers: tuple[str, ...]
    choices: tuple[Choice, ...]
    """Ascending: the narrowest first."""

    @property
    def name(self) -> str:
        return self.layers[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A sum over layers that may have a budget."""

    cost: str
    costs: Table
    constant: Number = 0
    label: str = ""
    budget: Number = math.inf

    def exact_total(self, bits: Mapping[str, Choice]) -> Fraction:
        """The sum without rounding."""
        terms = (Fraction(choices[bits[layer]]) for layer, choices in self.costs.items())
        return sum(terms, Fraction(self.constant))

    def holds(self, bits: Mapping[str, Choice]) -> bool:
        return self.budget == math.inf or self.exact_total(bits) <= Fraction(self.budget)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Maximise the sum of the values; keep every row within its budget."""

    groups: tuple[Group, ...]
    values: Table
    rows: tuple[Row, ...]
    budgets: Mapping[str, Number]

    @property
    def costs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.cost for row in self.rows))

    @property
    def limited_rows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.budget < math.inf)

    def rows_of(self, cost: str) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.cost == cost)

    def bits(self, picks: Sequence[int]) -> dict[str, Choice]:
        """Choices by layer, from the position that each group takes among its own; layers in the given order."""
        chosen = {
            layer: group.choices[pick]
            for group, pick in zip(self.groups, picks, strict=True)
            for layer in group.layers
        }
        return {layer: chosen[layer] for layer in self.values}

    def objective(self, bits: Mapping[str, Choice]) -> float:
        return math.fsum(choices[bits[layer]] for layer, choices in self.values.items())

    def is_within_budgets(self, bits: Mapping[str, Choice]) -> bool:
        """In exact arithmetic: a budget is not overshot by the least bit."""
        return all(row.holds(bits) for row in self.limited_rows)

    def total(self, cost: str, bits: Mapping[str, Choice]) -> Number:
        """What the layers cost: the sum, or the largest of the sums."""
        rows = self.rows_of(cost)
        total = max(row.exact_total(bits) for row in rows)
        is_whole = total.denominator == 1 and all(_is_whole(row) for row in rows)
        return int(total) if is_whole else float(total)

    def with_budgets(self, budgets: Mapping[str, Number]) -> "Problem":
        """The same under other budgets; costs that are not named have none."""
        rows = tuple(replace(row, budget=budgets.get(row.cost, math.inf)) for row in self.rows)
        return replace(self, rows=rows, budgets=dict(budgets))

    def with_values(self, values: Table) -> "Problem":
        return replace(self, values=values)

    def with_choices(self, layer: str, choices: Sequence[Choice]) -> "Problem":
        """The same with fewer choices for the group of a layer."""
        groups = tuple(
            replace(group, choices=tuple(choices)) if layer in group.layers else group
            for group in self.groups
        )
        return replace(self, groups=groups)


def _is_whole(row: Row) -> bool:
    numbers = (value for choices in row.costs.values() for value in choices.values())
    return isinstance(row.constant, int) and all(isinstance(value, int) for value in numbers)


def build_problem(
    values: Table, costs: Mapping[str, Cost], budgets: Mapping[str, Number], ties: Ties = ()
) -> Problem:
    """Check the numbers, merge tied layers, and spread the costs out into rows."""
    if not values:
        raise AllocationError("no layers: values is empty")
    _check_table("values", values)
    for name, budget in budgets.items():
        if name not in costs:
            raise UnknownNameError("cost to budget", name, costs)
        if not _is_number(budget) or math.isnan(budget) or budget == -math.inf:
            raise AllocationError(f"budget {name}={budget!r} is no number")
    rows = tuple(
        row for name, cost in costs.items() for row in _rows(name, cost, budgets.get(name, math.inf), values)
    )
    return Problem(
        groups=_groups(values, ties), values=_without_noise(values), rows=rows, budgets=dict(budgets)
    )


def _rows(name: str, cost: Cost, budget: Number, values: Table) -> list[Row]:
    if isinstance(cost, CostTable):
        parts: Sequence[CostRow] = cost.rows
    elif isinstance(cost, Mapping):
        missing = [layer for layer in values if layer not in cost]
        if missing:
            raise AllocationError(
                f"cost {name!r} has no numbers for {', '.join(missing[:5])}",
                hint="write 0 where nothing is paid",
            )
        parts = [CostRow(costs=cost)]
    else:
        parts = [CostRow(costs=table) for table in cost]
    rows = []
    for part in parts:
        _check_table(f"cost {name!r}", part.costs, values)
        rows.append(Row(cost=name, costs=part.costs, constant=part.constant, label=part.label, budget=budget))
    if not rows:
        raise AllocationError(f"cost {name!r} has no table")
    return rows


def _check_table(what: str, table: Table, values: Table | None = None) -> None:
    for layer, choices in table.items():
        if values is not None and layer not in values:
            raise UnknownNameError(f"layer for {what}", layer, values)
        missing = set() if values is None else set(values[layer]) - set(choices)
        if missing or not choices:
            found = ", ".join(map(str, sorted(missing))) or "any choice"
            raise AllocationError(f"{what}, layer {layer!r}: no number for {found}")
        for choice, value in choices.items():
            if not _is_number(value) or not math.isfinite(value):
                raise AllocationError(f"{what}, layer {layer!r}, {choice}: {value!r} is no finite number")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _groups(values: Table, ties: Ties) -> tuple[Group, ...]:
    """Tied layers as one; ties that overlap are joined."""
    graph = nx.Graph()
    graph.add_nodes_from(values)
    for tie in ties:
        layers = tie.layers if isinstance(tie, TieGroup) else tuple(tie)
        for layer in layers:
            if layer not in values:
                raise UnknownNameError("layer to tie", layer, values)
        nx.add_path(graph, layers)
    groups = []
    seen: set[str] = set()
    order = {layer: position for position, layer in enumerate(values)}
    for layer in values:
        if layer in seen:
            continue
        members = sorted(nx.node_connected_component(graph, layer), key=order.__getitem__)
        seen.update(members)
        groups.append(Group(layers=tuple(members), choices=_shared_choices(members, values)))
    return tuple(groups)


def _shared_choices(layers: Sequence[str], values: Table) -> tuple[Choice, ...]:
    shared = set.intersection(*(set(values[layer]) for layer in layers))
    if not shared:
        offers = "; ".join(f"{layer}: {', '.join(map(str, values[layer]))}" for layer in layers)
        raise AllocationError(f"tied layers have no choice in common ({offers})")
    return tuple(sorted(shared))


def _without_noise(values: Table) -> Table:
    largest = max(abs(value) for choices in values.values() for value in choices.values())
    return {
        layer: {choice: value if abs(value) >= NOISE * largest else 0 for choice, value in choices.items()}
        for layer, choices in values.items()
    }
