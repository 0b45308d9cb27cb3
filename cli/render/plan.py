"""Plans, and budgets that cannot be met, drawn for a terminal."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hwbmpq.cli.console import Console, Text, escape
from hwbmpq.cli.render.plan_costs import bound_lines, capacity_remarks, cost_table, omissions, storage_lines
from hwbmpq.cli.render.tables import (
    and_more,
    bar,
    largest_layers,
    plain_table,
    print_json,
    print_remarks,
    shorten,
)
from hwbmpq.errors import HwbmpqError
from hwbmpq.units import amount, budget_text, counted

if TYPE_CHECKING:
    from hwbmpq.allocate import InfeasibleBudget
    from hwbmpq.report import LayerReport, Plan
    from hwbmpq.search.space import SearchSpace

_WIDE = 110
_BAR = 6
_NARROWEST_NAME = 12
_NARROW = 76
_COLOURS = {2: "red", 3: "yellow", 4: "yellow", 5: "green", 6: "green", 7: "green", 8: "green"}


def print_plan(
    console: Console, plan: "Plan", *, title: str, all_rows: bool, remarks: Sequence[str] = ()
) -> None:
    shown = list(plan.layers) if all_rows else largest_layers(plan.layers)
    console.print(_layer_table(console, plan, shown, title))
    if len(shown) < len(plan.layers):
        console.print(f"{len(plan.layers) - len(shown)} smaller layers are not shown; --all lists them")
    if console.width >= _NARROW:
        runner_up = "; runner-up: the next best width, and what it costs of the objective"
        console.print(
            f"[dim]needs: sensitivity, logarithmic{runner_up if plan.explanation is not None else ''}[/]"
        )
    console.print(_strip(plan))
    console.print()
    console.print(cost_table(plan, console.width))
    for line in [*bound_lines(plan), *storage_lines(plan), *_verdicts(plan), *_prices(plan)]:
        console.print(line)
    console.print()
    print_remarks(
        console,
        [*remarks, *plan.remarks, *plan.sensitivity.remarks, *capacity_remarks(plan), *omissions(plan)],
    )
    for name, reason in plan.missing.items():
        console.print(f"[yellow]no {escape(name)}:[/] {escape(reason)}")


def _layer_table(console: Console, plan: "Plan", shown: "Sequence[LayerReport]", title: str) -> Table:
    is_wide, is_narrow = console.width >= _WIDE, console.width < _NARROW
    budgeted = [name for name, cost in plan.costs.items() if cost.budget is not None]
    others = [name for name in plan.costs if name not in budgeted] if is_wide else []
    additive = [name for name in [*budgeted, *others] if any(name in layer.costs for layer in plan.layers)]
    costs = additive[: 4 if is_wide else 1 if is_narrow else 2]
    explains = plan.explanation is not None and not is_narrow
    bars = _log_bars(plan.layers)
    # Columns with what they take: two spaces, and their widest content.
    columns: list[tuple[str, int, Callable[[LayerReport], Any]]] = [
        *([("kind", 16, lambda layer: Text(layer.kind))] if is_wide else []),
        (">weights", 11, lambda layer: f"{layer.parameters:,}"),
        *([] if is_narrow else [("needs", _BAR + 2, lambda layer: bars[layer.name])]),
        ("width", 9, _width),
        *((f">{name}", 11, partial(_layer_cost, plan, name)) for name in costs),
        *([("runner-up", 14, partial(_runner_up, plan))] if explains else []),
    ]
    table = plain_table(f"{title} on {plan.target}", "layer", *(heading for heading, *_ in columns))
    room = max(_NARROWEST_NAME, console.width - sum(taken for _, taken, _ in columns))
    for layer in shown:
        table.add_row(Text(shorten(layer.name, room)), *(cell(layer) for *_, cell in columns))
    return table


def _layer_cost(plan: "Plan", name: str, layer: "LayerReport") -> Text:
    if name not in layer.costs:
        return Text("no figure", style="red")
    return Text(amount(layer.costs[name], plan.costs[name].unit))


def _log_bars(layers: "Sequence[LayerReport]") -> dict[str, str]:
    """A bar for each score on a logarithmic scale, since they span decades; the layers with a choice make the scale."""
    logs = {layer.name: math.log(layer.sensitivity) for layer in layers if layer.sensitivity > 0}
    free = [logs[layer.name] for layer in layers if layer.name in logs and not layer.is_fixed] or [
        *logs.values()
    ]
    if not free:
        return dict.fromkeys((layer.name for layer in layers), "")
    low, high = min(free), max(free)
    shares = {name: (log - low) / (high - low) if high > low else 1.0 for name, log in logs.items()}
    return {
        layer.name: bar(max(0.1, 0.1 + 0.9 * shares[layer.name]), _BAR) if layer.name in shares else ""
        for layer in layers
    }


def _width(layer: "LayerReport") -> Text:
    return Text(str(layer.precision), style=_style(layer.precision.weight_bits, layer.is_fixed))


def _runner_up(plan: "Plan", layer: "LayerReport") -> Text:
    """What the layer would have otherwise, and the share of the objective's range that it would cost."""
    if layer.is_fixed:
        return Text("fixed", style="dim")
    assert plan.explanation is not None
    if layer.name not in plan.explanation.runner_ups:
        return Text("·", style="dim")
    runner_up = plan.explanation.runner_ups[layer.name]
    if runner_up is None:
        return Text("none fits", style="dim")
    low, high = plan.objective_range
    return Text(f"{runner_up.choice} {_percent(-runner_up.loss / (high - low) if high > low else 0.0)}")


def _percent(share: float) -> str:
    """``-3.1%``, ``-0.02%``; a change too small to show is not shown as none."""
    if share == 0:
        return "±0%"
    if abs(share) < 0.0001:
        return f"{'-' if share < 0 else '+'}<0.01%"
    return f"{share:+.1%}" if abs(share) >= 0.01 else f"{share:+.2%}"


def _strip(plan: "Plan") -> Text:
    """The widths in the network's order, one character each."""
    text = Text("widths in order: ").append_text(plan_strip(plan))
    counts = Counter(layer.precision for layer in plan.layers if not layer.is_fixed)
    fixed = sum(layer.is_fixed for layer in plan.layers)
    parts = [f"{count} at {pair}" for pair, count in sorted(counts.items())]
    text.append(f"  ({', '.join([*parts, *([f'{fixed} fixed'] if fixed else [])])})", style="dim")
    return text


def plan_strip(plan: "Plan") -> Text:
    """The weight widths of a plan, one character each."""
    fixed = frozenset(layer.name for layer in plan.layers if layer.is_fixed)
    return strip({layer.name: layer.precision.weight_bits for layer in plan.layers}, fixed)


def strip(weight_bits: Mapping[str, int], fixed: frozenset[str]) -> Text:
    """Weight widths in order, one character each: hexadecimal, a dot from 16 bits on."""
    text = Text()
    for name, width in weight_bits.items():
        text.append(f"{width:x}" if width < 16 else "·", style=_style(width, name in fixed))
    return text


def _style(weight_bits: int, is_fixed: bool) -> str:
    return "dim" if is_fixed else _COLOURS.get(weight_bits, "")


def _verdicts(plan: "Plan") -> list[str]:
    allocation = plan.allocation
    lines = [
        f"{_proof(plan)}; the objective is a share of its range, from every layer at its worst to its best width"
    ]
    memory = plan.costs.get("memory")
    if memory is not None and memory.float_total and memory.total:
        lines.append(f"memory is {memory.float_total / memory.total:.1f} times smaller than in float")
    best = plan.best_uniform
    if len(plan.alternatives) < 2 or not plan.is_optimized:
        return lines
    if best is None:
        lines.append("no single width fits the budgets; mixed widths do")
    elif not plan.is_no_better_than_uniform:
        here, there = plan.share_of_range(allocation.objective), plan.share_of_range(best.objective)
        lines.append(
            f"mixed widths reach {here:.1%}; the best single width that fits, {best.label}, {there:.1%}"
        )
    else:
        lines.append(
            f"[yellow]mixed widths are no better than {best.label} for all layers, which fits too[/]"
        )
    return lines


def _proof(plan: "Plan") -> str:
    allocation = plan.allocation
    if not plan.is_optimized:
        return f"widths by {allocation.solver}, which optimises nothing"
    took = f" in {allocation.seconds:.1f} s" if allocation.seconds >= 1 else ""
    if allocation.optimal:
        return f"[green]optimal[/]: {allocation.origin}{took}"
    if allocation.inertia:
        return (
            f"[green]optimal[/] with inertia {allocation.inertia:g}: other widths would be worth {allocation.gap:.1%} more, too "
            f"little to move layers from those they were trained at ({allocation.origin}){took}"
        )
    return f"[yellow]not proven[/]: the best may be {allocation.gap:.2g} better, relatively ({allocation.origin}){took}"


def _prices(plan: "Plan") -> list[str]:
    if plan.explanation is None:
        return []
    lines = []
    for price in plan.explanation.prices:
        unit = plan.costs[price.cost].unit
        gain = f"{_percent(price.share)} of the range" if price.gain > 0 else "nothing"
        lines.append(
            f"{price.cost} +{amount(price.increase, unit)} would buy {gain}{_spelled_changes(price.changes)}"
        )
    for cost, change in plan.explanation.if_grown.items():
        unit = plan.costs[cost].unit
        if change is None:
            lines.append(f"more {cost} would buy nothing")
        else:
            step = amount(change.budget, unit)
            lines.append(f"first to change if {cost} grew, at {step}{_spelled_changes(change.changes)}")
    for cost, change in plan.explanation.if_shrunk.items():
        if change is None:
            lines.append(f"{cost} cannot be smaller")
        else:
            lines.append(f"first to change if {cost} shrank{_spelled_changes(change.changes)}")
    if not plan.explanation.is_complete:
        lines.append("[yellow]there was no time for every runner-up (·)[/]")
    return lines


def _spelled_changes(changes: Mapping[str, Any]) -> str:
    if not changes:
        return ""
    return f": {and_more([f'{escape(layer)} to {choice}' for layer, choice in changes.items()], 3)}"


def explained_infeasible(
    error: "InfeasibleBudget", space: "SearchSpace", *, as_json: bool = False
) -> HwbmpqError:
    """Print what is possible; the error to raise has budgets to paste."""
    if as_json:
        print_json(error.to_dict())
    console = Console(stderr=True, highlight=False)
    tables = space.costs.tables
    units = {name: table.unit for name, table in tables.items()}
    _print_infeasible(console, error, units)
    limits = [(table.capacity, error.suggestion.get(name, 0)) for name, table in tables.items()]
    print_remarks(
        console,
        (
            f"the device has {amount(capacity.bits, 'bit')} of {capacity.level}, less than that"
            for capacity, suggested in limits
            if capacity is not None and suggested > capacity.bits
        ),
    )
    # Budgets as --budget takes them: those that may stay as they were given, the others rounded up.
    given = {report.cost: report.budget for report in error.reports}
    texts = (
        f"{name}={space.asked[name] if value == given.get(name) else budget_text(value, units.get(name, ''))}"
        for name, value in error.suggestion.items()
    )
    hint = f"--budget {' '.join(texts)}"
    return HwbmpqError(
        str(error),
        hint=f"{hint}; or {error.advice} (--pin; the first and last also with --ends free)"
        if error.advice
        else hint,
    )


def _print_infeasible(console: Console, error: "InfeasibleBudget", units: Mapping[str, str]) -> None:
    """Per budget: the least that is possible, and what would do."""
    columns = ("cost", ">budget", ">smallest", ">enough if the\nothers stay", ">of which\nfixed")
    table = plain_table("The budgets cannot be met", *columns)
    for report in error.reports:
        unit = units.get(report.cost, "")
        held = sum(report.fixed.values()) + report.constant
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
        console.print(f"fixed are {escape(and_more(fixed, 4))}: their width cannot be chosen")
    if error.conflict:
        console.print(f"each can be met alone, but not {' and '.join(error.conflict)} together")
    narrow = {report.cost: report.smallest_bits for report in error.reports if not report.is_reachable}
    for cost, bits in narrow.items():
        widths = Counter(str(choice) for choice in bits.values())
        spelled = ", ".join(f"{counted(count, 'layer')} at {width}" for width, count in widths.items())
        console.print(f"{cost} is smallest with {spelled}")
