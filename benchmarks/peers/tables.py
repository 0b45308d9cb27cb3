"""Tables of what the scripts of this folder have measured. Imports none of the tools."""

from collections.abc import Callable
from typing import Any

BudgetRow = dict[str, Any]


def allocation(content: dict[str, Any]) -> dict[str, str]:
    weights_only, with_activations = (
        [row for row in content["rows"] if row["activation_bits"] == bits] for bits in (None, 8)
    )
    return {
        "own": _accuracies(weights_only, lambda row: row["accuracy"]),
        "own, 8-bit activations": _accuracies(with_activations, lambda row: row["accuracy"]),
        "nearest": _accuracies(weights_only, lambda row: row["common"]["nearest"]),
        "compensated": _accuracies(weights_only, lambda row: row["common"]["compensated"]),
        "search": _costs(weights_only),
    }


def _by_tool(rows: list[BudgetRow]) -> dict[str, list[BudgetRow]]:
    found: dict[str, list[BudgetRow]] = {}
    for row in sorted(rows, key=lambda row: (not row["tool"].startswith("hwbmpq"), row["average_bits"])):
        found.setdefault(row["tool"], []).append(row)
    return found


def _accuracies(rows: list[BudgetRow], accuracy_of: Callable[[BudgetRow], float]) -> str:
    """A row for each tool, a column for each budget, the best of each column in bold."""
    budgets = sorted({row["average_bits"] for row in rows})
    best = {bits: max(accuracy_of(row) for row in rows if row["average_bits"] == bits) for bits in budgets}
    lines = [
        f"| widths by | {' | '.join(f'{bits:g} bits' for bits in budgets)} |",
        "| --- |" + " --- |" * len(budgets),
    ]
    for tool, found in _by_tool(rows).items():
        cells = {row["average_bits"]: _percent(accuracy_of(row), best[row["average_bits"]]) for row in found}
        lines.append(f"| {tool} | {' | '.join(cells.get(bits, '·') for bits in budgets)} |")
    return "\n".join(lines)


def _percent(accuracy: float, best: float) -> str:
    shown = f"{100 * accuracy:.1f} %"
    return f"**{shown}**" if accuracy == best else shown


def _costs(rows: list[BudgetRow]) -> str:
    lines = ["| search | seconds | peak memory |", "| --- | --- | --- |"]
    for tool, found in _by_tool(rows).items():
        cost = found[0]["search"]
        lines.append(f"| {tool} | {cost['seconds']:.1f} | {cost['peak_mib']:.0f} MiB |")
    return "\n".join(lines)


def train_step(content: dict[str, Any]) -> dict[str, str]:
    lines = ["| tool | step | ratio to float |", "| --- | --- | --- |"]
    lines += [f"| {row['tool']} | {row['step_ms']:.0f} ms | {row['ratio']:.2f} |" for row in content["rows"]]
    return {"train step": "\n".join(lines)}


def delivered_bytes(content: dict[str, Any]) -> dict[str, str]:
    widths = ("8", "4", "2")
    lines = ["| file | 8 bits | 4 bits | 2 bits |", "| --- | --- | --- | --- |"]
    for row in content["rows"]:
        shown = (_size(row[width]) for width in widths)
        lines.append(f"| {row['format']} | {' | '.join(shown)} |")
    return {"delivered bytes": "\n".join(lines)}


def _size(found: int | str) -> str:
    """Bytes, or the kind of error that the tool ended with."""
    return found.partition(":")[0] if isinstance(found, str) else f"{found / 1024:,.0f} KiB"
