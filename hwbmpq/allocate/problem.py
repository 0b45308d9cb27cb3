"""What is asked of the allocator, checked: groups of layers, their values, and sums that have a budget."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from numbers import Integral, Real
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


@dataclass(frozen=True, kw_only=True)
class BudgetRow:
    """A sum over layers that may have a budget."""

    cost: str
    costs: Table
    constant: Number = 0
    label: str = ""
    unit: str = ""
    """Of its numbers, for messages; empty if it is not known."""
    budget: Number = math.inf

    @cached_property
    def is_whole(self) -> bool:
        """Whether all its numbers are whole, so that plain sums are exact."""
        numbers = (value for choices in self.costs.values() for value in choices.values())
        return isinstance(self.constant, int) and all(isinstance(value, int) for value in numbers)

    def exact_total(self, bits: Mapping[str, Choice]) -> Fraction:
        """The sum without rounding."""
        terms = (choices[bits[layer]] for layer, choices in self.costs.items())
        if self.is_whole:
            return Fraction(sum(terms, self.constant))
        return sum(map(Fraction, terms), Fraction(self.constant))

    def holds(self, bits: Mapping[str, Choice]) -> bool:
        return self.budget == math.inf or self.exact_total(bits) <= Fraction(self.budget)


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationProblem:
    """Maximise the sum of the values; keep every row within its budget."""

    groups: tuple[Group, ...]
    values: Table
    rows: tuple[BudgetRow, ...]
    budgets: Mapping[str, Number]

    @property
    def costs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.cost for row in self.rows))

    @property
    def limited_rows(self) -> tuple[BudgetRow, ...]:
        return tuple(row for row in self.rows if row.budget < math.inf)

    def rows_of(self, cost: str) -> tuple[BudgetRow, ...]:
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

    @property
    def objective_range(self) -> tuple[float, float]:
        """From every group at its worst to every group at its best choice."""
        worth = [
            [sum(self.values[layer][choice] for layer in group.layers) for choice in group.choices]
            for group in self.groups
        ]
        return sum(map(min, worth)), sum(map(max, worth))

    def is_within_budgets(self, bits: Mapping[str, Choice]) -> bool:
        """In exact arithmetic: a budget is not overshot by the least bit."""
        return all(row.holds(bits) for row in self.limited_rows)

    def total(self, cost: str, bits: Mapping[str, Choice]) -> Number:
        """What the layers cost: the sum, or the largest of the sums."""
        total = self.exact_total(cost, bits)
        return int(total) if all(row.is_whole for row in self.rows_of(cost)) else float(total)

    def exact_total(self, cost: str, bits: Mapping[str, Choice]) -> Fraction:
        return max(row.exact_total(bits) for row in self.rows_of(cost))

    def with_budgets(self, budgets: Mapping[str, Number]) -> "AllocationProblem":
        """The same under other budgets; costs that are not named have none."""
        rows = tuple(replace(row, budget=budgets.get(row.cost, math.inf)) for row in self.rows)
        return replace(self, rows=rows, budgets=dict(budgets))

    def with_values(self, values: Table) -> "AllocationProblem":
        """The same with other values, as they are."""
        return replace(self, values=values)

    def valued(self, values: Table) -> "AllocationProblem":
        """The same with other values, checked, and without noise."""
        return self.with_values(_without_noise(_checked("values", values, self.values)))

    def with_choices(self, layer: str, choices: Sequence[Choice]) -> "AllocationProblem":
        """The same with fewer choices for the group of a layer."""
        groups = tuple(
            replace(group, choices=tuple(choices)) if layer in group.layers else group
            for group in self.groups
        )
        return replace(self, groups=groups)


def build_problem(
    values: Table, costs: Mapping[str, Cost], budgets: Mapping[str, Number], ties: Ties = ()
) -> AllocationProblem:
    """Check the numbers, merge tied layers, and spread the costs out into rows."""
    if not isinstance(values, Mapping) or not values:
        raise AllocationError("no layers: values is empty, or not a mapping")
    values = _checked("values", values)
    for name in budgets:
        if name not in costs:
            raise UnknownNameError("cost to budget", name, costs)
    limits = {name: _budget(name, budget) for name, budget in budgets.items()}
    rows = tuple(
        row for name, cost in costs.items() for row in _rows(name, cost, limits.get(name, math.inf), values)
    )
    return AllocationProblem(
        groups=_groups(values, ties), values=_without_noise(values), rows=rows, budgets=limits
    )


def _budget(name: str, budget: Number) -> Number:
    budget = _unwrapped(budget)
    if not _is_number(budget) or not (budget == math.inf or _is_finite(budget)):
        raise AllocationError(f"budget {name}={budget!r} is not a number")
    return _plain(budget)


def _rows(name: str, cost: Cost, budget: Number, values: Table) -> list[BudgetRow]:
    if isinstance(cost, str) or not isinstance(cost, CostTable | Mapping | Sequence):
        raise AllocationError(f"cost {name!r} is not a table: {cost!r}")
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
        parts = [CostRow(costs=_mapping(name, table)) for table in cost]
    if not parts:
        raise AllocationError(f"cost {name!r} has no table")
    return [
        BudgetRow(
            cost=name,
            costs=_checked(f"cost {name!r}", part.costs, values),
            constant=_budget(f"constant of {name}", part.constant),
            label=part.label,
            unit=cost.unit if isinstance(cost, CostTable) else "",
            budget=budget,
        )
        for part in parts
    ]


def _mapping(name: str, table: Any) -> Table:
    if not isinstance(table, Mapping):
        raise AllocationError(f"cost {name!r} is not a list of tables: {table!r}")
    return table


def _checked(what: str, table: Table, values: Table | None = None) -> Table:
    """The table in Python's own numbers."""
    checked: dict[str, dict[Choice, Number]] = {}
    for layer, choices in table.items():
        if not isinstance(layer, str) or not isinstance(choices, Mapping):
            raise AllocationError(
                f"{what}: {layer!r}: {choices!r} is not a table",
                hint='write {"layer": {2: number, 4: number}}',
            )
        if values is not None and layer not in values:
            raise UnknownNameError(f"layer for {what}", layer, values)
        numbers = {_plain_choice(choice): _unwrapped(value) for choice, value in choices.items()}
        if len({type(choice) for choice in numbers}) > 1:
            raise AllocationError(f"{what}, layer {layer!r}: choices of different kinds: {list(numbers)}")
        missing = set() if values is None else set(values[layer]) - set(numbers)
        if missing or not numbers:
            found = ", ".join(map(str, sorted(missing))) or "any choice"
            raise AllocationError(f"{what}, layer {layer!r}: no number for {found}")
        for choice, value in numbers.items():
            if not _is_number(value) or not _is_finite(value):
                raise AllocationError(f"{what}, layer {layer!r}, {choice}: {value!r} is not a finite number")
        checked[layer] = {choice: _plain(value) for choice, value in numbers.items()}
    return checked


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    """Whether it is one, as a floating-point number too."""
    return bool(abs(value) <= sys.float_info.max)


def _unwrapped(value: Any) -> Any:
    """What a tensor or array of one element holds."""
    return value.item() if hasattr(value, "item") else value


def _plain(number: Number) -> Number:
    """numpy's numbers become Python's."""
    return int(number) if isinstance(number, Integral) else float(number)


def _plain_choice(choice: Any) -> Choice:
    if isinstance(choice, Precision):
        return choice
    if isinstance(choice, Integral) and not isinstance(choice, bool):
        return int(choice)
    if isinstance(choice, tuple) and len(choice) == 2 and all(isinstance(bits, Integral) for bits in choice):
        return int(choice[0]), int(choice[1])
    raise AllocationError(
        f"{choice!r} is not a choice", hint="use a width, a (weight, activation) pair or a Precision"
    )


def _groups(values: Table, ties: Ties) -> tuple[Group, ...]:
    """Tied layers as one; ties that overlap are joined."""
    graph = nx.Graph()
    graph.add_nodes_from(values)
    for tie in ties:
        if isinstance(tie, str):
            raise AllocationError(f"ties: {tie!r} is not a group of layers", hint='write ties=[("a", "b")]')
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
