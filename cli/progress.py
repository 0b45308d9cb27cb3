"""What a person sees while something takes its time: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hwbmpq.cli.console import Console, Text, escape
from hwbmpq.cli.render.plan import strip
from hwbmpq.cli.render.tables import and_more, print_remarks, print_wrapped
from hwbmpq.units import amount, counted
from hwbmpq.values import Metric

if TYPE_CHECKING:
    from hwbmpq.report import AccuracyProbe, AccuracySearch
    from hwbmpq.search.decisions import Decision
    from hwbmpq.training.hooks import StepReport
    from hwbmpq.training.trainer import Trainer

_MOST_MOVES = 4
_STRIP = 40
"""Widths that are shown beside the bar of a deep network."""


def status(text: str) -> AbstractContextManager[object]:
    """A spinner on stderr while a person is watching."""
    console = Console(stderr=True)
    return console.status(escape(text)) if console.is_terminal else nullcontext()


@contextmanager
def progress(text: str, total: int = 0) -> Iterator[Any]:
    """A bar on stderr while a person is watching; yields what to call with the number done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(escape(text), total=total or None)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)


class TrainingProgress:
    """A hook of the training loop. Everything goes to stderr; stdout is for the result."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console, self._verbose = console, verbose
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
        )
        is_hidden = console.quiet or not console.is_terminal
        self._bars = Progress(*columns, console=console, transient=True, disable=is_hidden)
        self._epoch_started = time.monotonic()
        self._epochs = self._warmup = 0
        self._part, self._metric = "test", Metric()
        self._tasks: dict[str, Any] = {}
        self._fixed: frozenset[str] = frozenset()

    def __enter__(self) -> "TrainingProgress":
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def on_start(self, trainer: "Trainer") -> None:
        allocator: Any = trainer.allocator
        self._fixed = frozenset(n for n, options in allocator.space.choices.items() if len(options) == 1)
        self._epochs = trainer.settings.epochs
        self._part, self._metric = trainer.compared_on, trainer.task.described
        self._warmup = _warmup_epochs(allocator)
        for line in _what_is_ahead(allocator, trainer.settings.activation_bits):
            self._say(line)
        print_remarks(self._console, allocator.space.remarks)
        self._say(f"{counted(trainer.steps_per_epoch, 'step')} an epoch")
        # The bar of the whole run counts steps, so that the time left is known within the first epoch.
        steps = trainer.steps_per_epoch
        self._advance("run  ", trainer.progress.epoch * steps, self._epochs * steps)
        self._advance("epoch", 0, steps)
        self._bits = self._short(allocator.bits)
        self._epoch_started = time.monotonic()

    def on_remark(self, remark: str) -> None:
        print_remarks(self._console, [remark])

    def during_calibration(self, what: str, done: int, total: int) -> None:
        """A bar of its own for each thing that takes a while without training."""
        self._advance(what, min(done, total), total)

    def after_probe(self, probe: "AccuracyProbe", search: "AccuracySearch") -> None:
        if len(search.probes) == 1:
            self._say(escape(search.question))
        self._say(escape(f"probe {len(search.probes)}: {search.line(probe)}"))

    def _advance(self, what: str, done: int, total: int, text: str = "") -> None:
        if what not in self._tasks:
            self._bars.start()
            self._tasks[what] = self._bars.add_task(what, total=total, text="")
        self._bars.update(self._tasks[what], completed=done, text=text)

    def after_step(self, report: "StepReport") -> None:
        if self._bars.disable:
            return
        figures = f"loss {report.loss:.3f}"
        if report.accuracy is not None:
            figures += f"  train {report.accuracy:.1%}"
        self._advance("epoch", report.step, report.steps, figures)
        done = (report.epoch - 1) * report.steps + report.step
        text = f"epoch {report.epoch} of {self._epochs}  {self._bits}"
        self._advance("run  ", done, self._epochs * report.steps, text)

    def after_epoch(self, record: Mapping[str, Any], decision: "Decision | None") -> None:
        seconds = time.monotonic() - self._epoch_started
        self._epoch_started = time.monotonic()
        is_warmup = self._warmup and record["epoch"] <= self._warmup
        mark = "  warm-up" if is_warmup else "  best" if record["is_best"] else ""
        width = len(str(self._epochs))
        train = f"train {record['train_accuracy']:.1%}  " if "train_accuracy" in record else ""
        value = record[f"{self._part}_{self._metric.key}"]
        shown = f"{value:.1%}" if self._metric.is_share else f"{self._metric.name} {value:.4g}"
        self._say(
            f"epoch {record['epoch']:{width}}/{self._epochs}  loss {record['loss']:.3f}  "
            f"{train}{self._part} {escape(shown)}  lr {record['learning_rate']:.2g}  {seconds:.1f} s{mark}"
        )
        if decision is not None:
            self._show(decision)

    def _show(self, decision: "Decision") -> None:
        self._bits = self._short(decision.after)
        moves = [f"{escape(move.layer)} {move.before} to {move.after}" for move in decision.moves]
        shown = and_more(moves, len(moves) if self._verbose else _MOST_MOVES)
        changes = f"{counted(len(moves), 'layer')} moved: {shown}" if moves else "all stay"
        self._say(f"  widths decided: {changes}")
        for move in decision.moves if self._verbose else ():
            self._say(f"    {escape(move.layer)}: {escape(move.why)}")
        self._say(Text("  widths now: ").append_text(self._strip(decision.after)))

    def _say(self, line: str | Text) -> None:
        print_wrapped(self._console, line)

    def _strip(self, bits: Mapping[str, Any]) -> Text:
        return strip({name: precision.weight_bits for name, precision in bits.items()}, self._fixed)

    def _short(self, bits: Mapping[str, Any]) -> str:
        """The widths, as far as they fit beside a bar."""
        text = self._strip(bits)
        text.truncate(_STRIP, overflow="ellipsis")
        return text.markup


def _warmup_epochs(allocator: Any) -> int:
    """None where widths were decided before the first epoch."""
    if allocator.schedule is None or allocator.config.start == "calibrated":
        return 0
    return int(allocator.schedule.warmup_epochs)


def _what_is_ahead(allocator: Any, activation_bits: str | int) -> list[str]:
    """Candidates, budgets and schedule."""
    space = allocator.space
    costs = space.costs
    if allocator.method.in_float:
        return ["in float: nothing is quantized"]
    candidates = ", ".join(map(str, space.pairs_apart or [costs.label(width) for width in costs.widths]))
    ends = ", ".join(
        dict.fromkeys(
            " or ".join(map(str, costs.choices[layer.name])) for layer in space.graph if layer.is_end
        )
    )
    lines = [f"candidates {candidates}; first and last layer {ends}"]
    if allocator.method.keeps_budget:
        limits = (f"{name} up to {amount(v, costs.table(name).unit)}" for name, v in space.limits.items())
        lines.append(f"budget: {', '.join(limits)}")
    schedule = allocator.schedule
    if schedule is not None:
        epochs = ", ".join(map(str, schedule.decide_after[:6]))
        last = f" … {schedule.decide_after[-1]}" if len(schedule.decide_after) > 6 else ""
        warmup = _warmup_epochs(allocator)
        begins = f"warm-up of {counted(warmup, 'epoch')}" if warmup else "widths were decided by calibration"
        lines.append(f"{begins}; widths are decided after epoch {epochs}{last}")
    if activation_bits == "same":
        lines.append("activations are as wide as the weights, the paper's rule; --activation-bits changes it")
    return lines
