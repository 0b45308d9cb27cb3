"""What a run led to, drawn for a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

import hwbmpq
from hwbmpq.cli.render.export import in_bytes
from hwbmpq.cli.render.plan import print_plan
from hwbmpq.cli.render.tables import counted

if TYPE_CHECKING:
    from hwbmpq.export import SizeAccount
    from hwbmpq.pipeline import Compression
    from hwbmpq.training import RunSettings


def print_run(
    console: Console, result: "Compression", settings: "RunSettings", run: Path, *, title: str, all_rows: bool
) -> None:
    if result.plan is not None:
        print_plan(console, result.plan, title=title, all_rows=all_rows)
    for line in [*accuracy_lines(result, settings), *_decision_lines(result)]:
        console.print(line)
    if result.size is not None:
        console.print(_size_line(result.size))
    console.print(f"run: {escape(str(run))}; with plots: {escape(str(run / hwbmpq.report.run_files.PAGE))}")
    console.print(f"as ONNX: hwbmpq export {escape(str(run))}", style="dim")


def _size_line(size: "SizeAccount") -> str:
    weights = next(line for line in size.lines if line.label == "packed weights")
    return (
        f"model.safetensors: {in_bytes(size.actual_bytes or 0)}, of which weights {in_bytes(weights.actual_bytes or 0)} "
        f"(predicted {in_bytes(size.predicted_bytes)}); hwbmpq.load reads it"
    )


def accuracy_lines(result: "Compression", settings: "RunSettings") -> list[str]:
    found, progress = result.evaluation, result.progress
    line = f"[bold]test accuracy {found.accuracy:.2%}[/] on {counted(found.images, 'image')}"
    if progress.float_accuracy is not None:
        change = found.accuracy - progress.float_accuracy
        line += f"; the weights it began with had {progress.float_accuracy:.2%} in float ({change:+.2%})"
    lines = [line]
    if progress.best_epoch and progress.best_epoch < settings.epochs:
        lines.append(f"best {progress.best_accuracy:.2%} after epoch {progress.best_epoch}, kept as best.pt")
    return lines


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


def baseline_lines(result: "Compression", baseline: "Compression") -> list[str]:
    """Whether mixed widths were worth it, by accuracy."""
    assert baseline.plan is not None
    label = baseline.plan.alternatives[-1].label
    mixed, uniform = result.evaluation.accuracy, baseline.evaluation.accuracy
    if mixed > uniform:
        return [f"mixed widths: {mixed:.2%}; {label} for all layers, trained the same way: {uniform:.2%}"]
    return [
        f"[yellow]mixed widths ({mixed:.2%}) are no better than {label} for all layers ({uniform:.2%}), trained the "
        "same way within the same budget[/]"
    ]
