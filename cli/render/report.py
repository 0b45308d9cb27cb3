"""What runs led to, drawn for a terminal."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import hwbmpq
from hwbmpq.cli.console import Console, Text, escape
from hwbmpq.cli.render.accuracy import print_accuracy
from hwbmpq.cli.render.plan import plan_strip, print_plan, strip
from hwbmpq.cli.render.tables import in_bytes, plain_table, print_remarks, print_table, shorten
from hwbmpq.units import counted

if TYPE_CHECKING:
    from hwbmpq.export import SizeAccount
    from hwbmpq.pipeline import Compression
    from hwbmpq.report import Headline, Plan, RunReport
    from hwbmpq.training import RunSettings

_MOST_MOVES = 12
_MOST_EPOCHS = 12
_NARROWEST_NAME = 12


def print_report(console: Console, report: "RunReport", *, all_rows: bool = False) -> None:
    """Headlines, the plan's tables, training, moves, coverage, figures that need care, and how it was made."""
    console.print(
        f"[bold]{escape(report.facts.title)}[/] on {escape(report.facts.target)}: {escape(report.state)}, {escape(report.name)}\n"
    )
    _print_headlines(console, report)
    if report.plan is not None:
        print_plan(console, report.plan, title=report.facts.title, all_rows=all_rows)
        console.print()
    if report.accuracy is not None:
        print_accuracy(console, report.accuracy, title="Accuracy that was measured")
    _print_epochs(console, report)
    _print_moves(console, report, all_rows=all_rows)
    _print_storage(console, report)
    _print_coverage(console, report)
    _print_figures(console, report)
    _print_origin(console, report)


def _print_headlines(console: Console, report: "RunReport") -> None:
    rows = ((Text(one.name), _cell(one), _budget(one), one.text(one.reference)) for one in report.headlines)
    print_table(console, "Result", ("", ">", ">budget", ">in float"), rows)


def _budget(headline: "Headline") -> Text:
    over = headline.is_met is False
    return Text(headline.text(headline.budget) + (" exceeded" if over else ""), style="red" if over else "")


def _print_epochs(console: Console, report: "RunReport") -> None:
    if not any(epoch.epoch for epoch in report.epochs):
        return
    last = report.epochs[-1]
    compared = f"{last.part} {last.metric.name}"
    columns = (">epoch", ">loss", f">{escape(compared)}", "weight bits, layers in order")
    table = plain_table("Training", *columns)
    step = -(-len(report.epochs) // _MOST_EPOCHS)
    fixed = frozenset(layer.name for layer in report.facts.layers if layer.is_end)
    for epoch in [*report.epochs[:-1:step], report.epochs[-1]]:
        bits = dict(zip((layer.name for layer in report.facts.layers), epoch.weight_bits, strict=True))
        loss = "" if epoch.loss is None else f"{epoch.loss:.3f}"
        table.add_row(str(epoch.epoch), loss, epoch.metric.text(epoch.value), strip(bits, fixed))
    console.print(table)


def _print_moves(console: Console, report: "RunReport", *, all_rows: bool) -> None:
    decisions = sum(epoch.has_decision for epoch in report.epochs)
    if not decisions:
        return
    moved = Counter(move.epoch for move in report.moves)
    console.print(f"widths were decided {times(decisions)}; they {changed(len(moved))}")
    shown = report.moves if all_rows else report.moves[-_MOST_MOVES:]
    room = max(_NARROWEST_NAME, console.width // 3)
    for move in shown:
        console.print(
            f"  after epoch {move.epoch}: {escape(shorten(move.layer, room))} {escape(move.before)} to "
            f"{escape(move.after)}; {escape(move.why)}"
        )
    if len(shown) < len(report.moves):
        console.print(f"  {len(report.moves) - len(shown)} earlier moves are not shown; --all lists them")
    console.print()


def _print_storage(console: Console, report: "RunReport") -> None:
    if not report.storage:
        return
    table = plain_table("What is on the device", "", ">planned", ">in the file")
    for line in report.storage:
        cells = ("" if size is None else in_bytes(size) for size in (line.planned_bytes, line.actual_bytes))
        table.add_row(Text(line.label), *cells, style="bold" if line.is_total else "")
    console.print(table)


def _print_coverage(console: Console, report: "RunReport") -> None:
    facts = report.facts
    if report.is_in_float:
        console.print("nothing is quantized: the run is in float")
        return
    left = ", ".join(
        f"{entry.reason} {entry.parameters:,}" for entry in facts.unquantized if entry.parameters
    )
    console.print(
        f"{facts.covered_share:.2%} of {facts.parameters:,} parameters are quantized"
        + (f"; in float: {escape(left)}" if left else "")
    )


def _print_figures(console: Console, report: "RunReport") -> None:
    if report.is_in_float:
        return
    console.print(
        f"the costs rest on {counted(len(report.facts.figures), 'figure')}, each with its source in the page"
    )
    doubts = report.facts.doubtful_figures
    notes = (f": {use.note}" if use.note else "" for use in doubts)
    lines = (f"{use.path} = {use.value:.6g} {use.unit} is {use.kind}" for use in doubts)
    print_remarks(console, map("".join, zip(lines, notes, strict=True)))


def _print_origin(console: Console, report: "RunReport") -> None:
    if report.facts.command:
        console.print(f"[dim]made by:[/] {escape(' '.join(report.facts.command))}")
    versions = ", ".join(f"{name} {version}" for name, version in report.facts.versions.items())
    console.print(f"[dim]{escape(versions)}[/]")


def print_comparison(console: Console, reports: "Sequence[RunReport]") -> None:
    """Several runs side by side."""
    # The task's metric first, then what has a budget, then the rest: a narrow terminal has room for a few.
    found = {one.name: one for report in reports for one in report.headlines}
    order = sorted(found.values(), key=lambda one: (not one.is_metric, one.budget is None))
    names = [one.name for one in order][: max(1, (console.width - 30) // 14)]
    rows = []
    for report in reports:
        by_name = {one.name: one for one in report.headlines}
        rows.append([Text(report.name), *(_cell(by_name.get(name)) for name in names)])
    columns = ("~run", *(f">{escape(name)}" for name in names))
    print_table(console, f"{len(reports)} runs", columns, rows)
    for report in reports:
        line = Text(f"{report.name}: {report.facts.title} on {report.facts.target}, {report.state}")
        if report.plan is not None:
            line.append("; ").append_text(plan_strip(report.plan))
        console.print(line)


def _cell(headline: "Headline | None") -> Text:
    if headline is None:
        return Text("·", style="dim")
    style = "red" if headline.is_lower_bound else {True: "green", False: "red", None: ""}[headline.is_met]
    return Text(headline.shown, style=style)


def print_run(
    console: Console, result: "Compression", settings: "RunSettings", run: Path, *, title: str, all_rows: bool
) -> None:
    if result.plan is not None:
        print_plan(console, result.plan, title=title, all_rows=all_rows)
    if result.accuracy is not None:
        print_accuracy(console, result.accuracy, title="Accuracy that was measured")
    for line in [*accuracy_lines(result, settings), *_decision_lines(result)]:
        console.print(line)
    if result.size is not None:
        console.print(_size_line(result.size, result.plan, settings.target))
    console.print(f"run: {escape(str(run))}; with plots: {escape(str(run / hwbmpq.report.run_files.PAGE))}")
    names_code = any(
        str(value).startswith("file:") for value in (settings.model, settings.data, settings.task)
    )
    trust = " --trust" if names_code else ""  # the run's own settings name Python files then
    console.print(f"as ONNX: hwbmpq export {escape(quote(str(run)))}{trust}", style="dim")


def _size_line(size: "SizeAccount", plan: "Plan | None", target: str) -> str:
    """The bytes of the file; and those of the device, if it stores some widths as wider ones."""
    held, total = size.on_device.actual_bytes or 0, size.actual_bytes or 0
    planned = size.on_device.predicted_bytes if plan is None else _planned_bytes(plan)
    wider = "" if plan is None else _wider_on_device(plan, planned, target)
    compared = ", as planned," if held == planned else "" if wider else f" ({in_bytes(planned)} planned)"
    return (
        f"model.safetensors: {in_bytes(total)}: {in_bytes(held)} of weights, scales and the rest{compared} and "
        f"{in_bytes(total - held)} of file header; {wider}hwbmpq.load reads it"
    )


def _planned_bytes(plan: "Plan") -> int:
    memory = plan.costs.get("memory")
    bits = sum(plan.stored.values()) if memory is None or memory.unit != "bit" else memory.total
    return math.ceil(bits / 8)


def _wider_on_device(plan: "Plan", planned: int, target: str) -> str:
    """``mpic stores 50.93 KiB, since it stores 3 bits as 4 and 5 as 8; ``."""
    if hwbmpq.costs.stored.WIDER not in plan.stored:
        return ""
    promote = hwbmpq.load_profile(target).precisions.promote
    used = {layer.precision.weight_bits for layer in plan.layers}
    parts = [f"{bits} as {wide}" for bits, wide in sorted(promote.items()) if bits in used]
    widths = " and ".join(parts).replace(" as", " bits as", 1)
    return (
        f"{escape(plan.target)} stores {in_bytes(planned)}, since it stores {widths or 'some widths wider'}; "
    )


def accuracy_lines(result: "Compression", settings: "RunSettings") -> list[str]:
    found, progress = result.evaluation, result.progress
    metric = result.metric
    images = counted(found.images, result.samples.removesuffix("s"))
    line = f"[bold]test {escape(metric.name)} {metric.text(found.value)}[/] on {images}"
    if progress.float_accuracy is not None:
        in_float, change = progress.float_accuracy, found.value - progress.float_accuracy
        line += f"; the weights it began with had {metric.text(in_float)} in float ({metric.change(change)})"
    lines = [line]
    if progress.calibrated is not None:
        lines.append(_calibrated_line(result, progress.calibrated))
    if progress.best_epoch and progress.best_epoch < settings.epochs:
        value = metric.text(progress.best_accuracy)
        lines.append(
            f"best {result.compared_on} {escape(metric.name)} {value} after epoch {progress.best_epoch}, kept as best.pt"
        )
    return lines


def _calibrated_line(result: "Compression", calibrated: float) -> str:
    """How calibration alone compares with training, on the same images."""
    progress, metric = result.progress, result.metric
    trained = progress.records[-1][f"{result.compared_on}_{metric.key}"]
    figures = (
        f"{result.compared_on} {escape(metric.name)}: {metric.text(calibrated)} calibrated, "
        f"{metric.text(trained)} trained"
    )
    if progress.keeps_calibrated:
        return f"{figures}: training did not help, so the calibrated network is kept"
    return figures


def _decision_lines(result: "Compression") -> list[str]:
    if len(result.decisions) < 2:
        return []
    moving = sum(bool(decision.moves) for decision in result.decisions)
    last = result.decisions[-1].epoch
    return [
        f"widths were decided {times(len(result.decisions))}, last after epoch {last}; they {changed(moving)}"
    ]


def changed(count: int) -> str:
    return f"changed {times(count)}" if count else "never changed"


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def baseline_line(result: "Compression", baseline: "Compression") -> str:
    """Whether mixed widths were worth it, by the task's metric."""
    assert baseline.plan is not None
    label = baseline.plan.alternatives[-1].label
    metric = result.metric
    found = [result.evaluation.value, baseline.evaluation.value]
    mixed, uniform = map(metric.text, found)
    if found[0] != found[1] and (found[0] > found[1]) == metric.higher_is_better:
        return f"mixed widths: {mixed}; {label} for all layers, trained the same way: {uniform}"
    return (
        f"[yellow]mixed widths ({mixed}) are no better than {label} for all layers ({uniform}), trained the same way "
        "within the same budget[/]"
    )
