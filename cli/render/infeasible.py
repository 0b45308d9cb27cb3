"""Budgets that cannot be met, drawn for a terminal."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from hwbmpq.cli.render.tables import counted, plain_table
from hwbmpq.errors import HwbmpqError
from hwbmpq.units import amount, scale

if TYPE_CHECKING:
    from hwbmpq.allocate import InfeasibleBudget
    from hwbmpq.costs import CostTable
    from hwbmpq.search.space import SearchSpace

_BUDGET_UNITS = {"Gbit-op": "GBOP", "Mbit-op": "MBOP", "bit-op": "BOP"}


def capacity_lines(budgets: Mapping[str, float], tables: "Mapping[str, CostTable]") -> list[str]:
    """Which of these budgets are more than the device has."""
    return [
        f"[yellow]![/] the device has {amount(table.capacity.bits, 'bit')} of {escape(table.capacity.level)}, less than that"
        for name, table in tables.items()
        if table.capacity is not None and budgets.get(name, 0) > table.capacity.bits
    ]


def explained_infeasible(error: "InfeasibleBudget", space: "SearchSpace") -> HwbmpqError:
    """Print what is possible; the error to raise has budgets to paste."""
    console = Console(stderr=True, highlight=False)
    tables = space.costs.tables
    units = {name: table.unit for name, table in tables.items()}
    print_infeasible(console, error, units)
    for line in capacity_lines(error.suggestion, tables):
        console.print(line)
    return HwbmpqError(
        "the budgets cannot be met", hint=f"--budget {paste_budgets(error, space.asked, units)}"
    )


def print_infeasible(console: Console, error: "InfeasibleBudget", units: Mapping[str, str]) -> None:
    """Per budget: the least that is possible, and what would do."""
    columns = ("cost", ">budget", ">smallest", ">enough if the others stay", ">of it fixed")
    table = plain_table("The budgets cannot be met", *columns)
    for report in error.reports:
        unit = units.get(report.cost, "")
        held = sum(report.fixed.values())
        table.add_row(
            report.cost,
            Text(amount(report.budget, unit), style="" if report.is_reachable else "red"),
            amount(report.smallest, unit),
            "not by itself" if report.relaxation is None else amount(report.relaxation, unit),
            amount(held, unit) if held else "",
        )
    console.print(table)
    fixed = list(dict.fromkeys(layer for report in error.reports for layer in report.fixed))
    if fixed:
        more = f" and {len(fixed) - 4} more" if len(fixed) > 4 else ""
        console.print(
            f"fixed are {escape(', '.join(fixed[:4]))}{more}: their width is not a matter of choice"
        )
    if error.conflict:
        console.print(f"each can be met alone, but not {' and '.join(error.conflict)} together")
    narrow = {report.cost: report.smallest_bits for report in error.reports if not report.is_reachable}
    for cost, bits in narrow.items():
        widths = Counter(str(choice) for choice in bits.values())
        spelled = ", ".join(f"{counted(count, 'layer')} at {width}" for width, count in widths.items())
        console.print(f"{cost} is smallest with {spelled}")


def paste_budgets(error: "InfeasibleBudget", asked: Mapping[str, str], units: Mapping[str, str]) -> str:
    """Budgets as ``--budget`` takes them: those that may stay as they were given, the others rounded up."""
    given = {report.cost: report.budget for report in error.reports}
    return " ".join(
        f"{name}={asked[name]}"
        if value == given.get(name)
        else f"{name}={budget_text(value, units.get(name, ''))}"
        for name, value in error.suggestion.items()
    )


def budget_text(value: float, unit: str) -> str:
    """``352.14KiB``: a little more than ``value``, never less."""
    name, size = scale(value, unit)
    digits = max(0, 4 - len(str(int(value / size))))
    rounded = math.ceil(value / size * 10**digits) / 10**digits
    return f"{rounded:.{digits}f}{_BUDGET_UNITS.get(name, name)}"
