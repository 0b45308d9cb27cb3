"""What a plan costs, drawn for a terminal: totals and budgets, what has no figure, what is stored."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from hwbmpq.cli.console import Text, escape
from hwbmpq.cli.render.tables import and_more, plain_table
from hwbmpq.units import amount

if TYPE_CHECKING:
    from hwbmpq.report import CostReport, Plan

_LABELS, _AMOUNT = 36, 12  # columns of the table of costs


def cost_table(plan: "Plan", width: int) -> Table:
    """Costs across, those without a budget only where there is room; this plan, its budgets and alternatives down."""
    room = max(1, (width - _LABELS) // _AMOUNT)
    order = sorted(plan.costs.values(), key=lambda cost: cost.budget is None)[:room]
    costs = [cost for cost in plan.costs.values() if cost in order]
    table = plain_table("Costs", "")
    for cost in costs:
        table.add_column(cost.name, justify="right", overflow="fold")
    table.add_column("objective", justify="right", no_wrap=True)

    def add(label: str, numbers: Sequence[float | None], objective: float | None, style: str = "") -> None:
        cells = [
            "" if number is None or not math.isfinite(number) else amount(number, cost.unit)
            for number, cost in zip(numbers, costs, strict=True)
        ]
        share = "" if objective is None else f"{plan.share_of_range(objective):.1%}"
        if objective is not None:
            cells = [f"≥ {cell}" if c.is_lower_bound else cell for cell, c in zip(cells, costs, strict=True)]
        table.add_row(label, *cells, share, style=style)

    over = any(cost.budget is not None and cost.total > cost.budget for cost in plan.costs.values())
    totals = [Text(amount_of(cost), style="red" if cost.is_lower_bound else "") for cost in costs]
    table.add_row(
        "this plan, over budget" if over else "this plan",
        *totals,
        f"{plan.share_of_range(plan.allocation.objective):.1%}",
        style="bold red" if over else "bold",
    )
    add("budget", [cost.budget for cost in costs], None)
    left = [None if c.budget is None or c.is_lower_bound else c.budget - c.total for c in costs]
    add("left", left, None)
    table.add_section()
    for alternative in plan.alternatives:
        label = f"all {alternative.label}" + ("" if alternative.fits else ", over budget")
        add(
            label,
            [alternative.costs[c.name] for c in costs],
            alternative.objective,
            "" if alternative.fits else "red",
        )
    if any(cost.float_total is not None for cost in costs):
        add("float", [cost.float_total for cost in costs], None)
    return table


def amount_of(cost: "CostReport") -> str:
    """``at least 48.67 us`` where something has no figure."""
    total = amount(cost.total, cost.unit)
    return f"at least {total}" if cost.is_lower_bound else total


def bound_lines(plan: "Plan") -> list[str]:
    """Costs of which only a part is known, and those that rest on estimates."""
    lines = []
    for name, cost in plan.costs.items():
        if cost.is_lower_bound:
            is_open = cost.holds is None and cost.budget
            what = ": the budget is not shown to hold" if is_open else " is a lower bound"
            lines.append(f"[red]{escape(name)}{what}: {escape(cost.no_figure)}[/]")
            lines.append(f"[dim]{escape(cost.uncosted[0].why)}[/]")
        if cost.estimated_share > 0:
            names = escape(and_more(list(cost.estimated), 2))
            share = f"{cost.estimated_share:.0%}"
            lines.append(f"{share} of {escape(name)} rests on estimates: {names}")
    return lines


def storage_lines(plan: "Plan") -> list[str]:
    """What memory is made of."""
    parts = [f"{label} {amount(size, 'bit')}" for label, size in plan.stored.items()]
    return [f"[dim]stored: {escape(', '.join(parts))}[/]"] if parts else []


def scales_remark(plan: "Plan", *, per_channel: bool) -> list[str]:
    """How many weight scales a budget on what is stored counts, and the flag that changes it."""
    budgeted = [
        name for name in ("memory", "flash") if name in plan.costs and plan.costs[name].budget is not None
    ]
    if not budgeted or not plan.stored.get("scales"):
        return []
    counted, other, flag = "layer", "output channel (the default of compress --epochs 0)", "--per-channel"
    if per_channel:
        counted, other, flag = (
            "output channel",
            "layer (the default of compress with training)",
            "--no-per-channel",
        )
    return [f"{' and '.join(budgeted)}: one scale per {counted} is counted; {flag} counts one per {other}"]


def capacity_remarks(plan: "Plan") -> list[str]:
    remarks: dict[tuple[str, float], str] = {}
    for name, cost in plan.costs.items():
        if cost.capacity is not None and cost.total > cost.capacity[1]:
            level, bits = cost.capacity
            text = f"{name} ({amount(cost.total, cost.unit)}) does not fit in {level} ({amount(bits, 'bit')})"
            remarks.setdefault((level, cost.total), text)
    return list(remarks.values())


def omissions(plan: "Plan") -> list[str]:
    """What costs leave out by their definition."""
    return list(dict.fromkeys(cost.leaves_out for cost in plan.costs.values() if cost.leaves_out))
