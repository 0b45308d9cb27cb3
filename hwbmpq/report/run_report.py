"""The report of a run or a plan, for the terminal, as JSON or as a page; also from a run directory, without torch: the
run may still be going on, or be on a machine that only looks at it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from hwbmpq.costs.table import Number, Uncosted
from hwbmpq.deprecated import warn
from hwbmpq.errors import HwbmpqError, cut
from hwbmpq.io import read_json
from hwbmpq.report import run_files
from hwbmpq.report.accuracy import AccuracySearch
from hwbmpq.report.records import check_plan, check_records
from hwbmpq.report.storage import StorageLine, storage_lines
from hwbmpq.report.trade_off import TradeOff, find_trade_off
from hwbmpq.report.values import Plan, RunFacts
from hwbmpq.units import amount
from hwbmpq.values import FLOAT_BITS, Metric, Precision, Sensitivity

_PERCENT = "%"
_WRONG = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What comes of values that no run has written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """One of the few numbers that people look at first."""

    name: str
    value: Number
    unit: str
    budget: Number | None = None
    """What it must not exceed."""
    reference: Number | None = None
    """The same in float, where that is known."""
    is_metric: bool = False
    """Whether it says how good the network is at its task."""
    uncosted: tuple[Uncosted, ...] = ()
    """What it is without: it is at least this, then."""
    note: str = ""

    @property
    def is_lower_bound(self) -> bool:
        return bool(self.uncosted)

    @property
    def is_met(self) -> bool | None:
        """None without a budget, and where a lower bound is within it."""
        if self.budget is None or (self.is_lower_bound and self.value <= self.budget):
            return None
        return self.value <= self.budget

    @property
    def shown(self) -> str:
        """The value as text."""
        return f"at least {self.text(self.value)}" if self.is_lower_bound else self.text(self.value)

    def text(self, value: Number | None) -> str:
        """A value of the same kind, with its unit; nothing for None."""
        if value is None:
            return ""
        if self.is_metric:
            return f"{value:.2f} %" if self.unit == _PERCENT else f"{value:.4g}"
        return amount(value, self.unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """What a line of the history says."""

    epoch: int
    loss: float | None
    train_accuracy: float | None
    """None where the task has no right and wrong."""
    part: str
    """The images that epochs are compared on: ``validation`` or ``test``."""
    metric: Metric
    value: float
    """Of the metric, on these images."""
    compared_loss: float
    """On these images."""
    weight_bits: tuple[int, ...]
    """While it was trained, by layer in their order."""
    has_decision: bool

    @property
    def test_accuracy(self) -> float:
        """Deprecated: ``value``."""
        warn("Epoch.test_accuracy", "Epoch.value")
        return self.value

    @property
    def test_loss(self) -> float:
        """Deprecated: ``compared_loss``."""
        warn("Epoch.test_loss", "Epoch.compared_loss")
        return self.compared_loss

    def to_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "loss": self.loss,
            "train_accuracy": self.train_accuracy,
            f"{self.part}_{self.metric.key}": self.value,
            f"{self.part}_loss": self.compared_loss,
            "weight_bits": self.weight_bits,
            "has_decision": self.has_decision,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class WidthMove:
    """A layer that got another width at the end of an epoch, and why."""

    epoch: int
    layer: str
    before: str
    after: str
    why: str


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """All that the terminal, JSON and the page show."""

    name: str
    """Of the run: its folder, or what was planned."""
    facts: RunFacts
    plan: Plan | None
    """None for a run in float, or one that has not ended."""
    headlines: tuple[Headline, ...]
    epochs: tuple[Epoch, ...] = ()
    moves: tuple[WidthMove, ...] = ()
    sensitivities: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Scores of the layers at each decision, by epoch."""
    trade_off: TradeOff | None = None
    packed_file: Mapping[str, Any] | None = None
    """The account of the file on disk."""
    accuracy: AccuracySearch | None = None
    """What was measured along a cost, where accuracy was asked for."""
    state: str = "planned"
    """``planned``, ``finished``, or ``epoch 3 of 20``."""

    @property
    def storage(self) -> tuple[StorageLine, ...]:
        """What is on the device; nothing for a run in float that has no file."""
        return storage_lines({} if self.plan is None else self.plan.stored, self.packed_file)

    @property
    def is_in_float(self) -> bool:
        """Whether it was trained without quantizing anything."""
        widths = [epoch.weight_bits for epoch in self.epochs]
        return self.plan is None and bool(widths) and all(set(bits) == {FLOAT_BITS} for bits in widths)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "facts": self.facts.to_dict(),
            "plan": None if self.plan is None else self.plan.to_dict(),
            "headlines": [
                {**asdict(one), "is_lower_bound": one.is_lower_bound, "is_met": one.is_met}
                for one in self.headlines
            ],
            "epochs": [epoch.to_dict() for epoch in self.epochs],
            "moves": [asdict(move) for move in self.moves],
            "sensitivities": {str(epoch): dict(found) for epoch, found in self.sensitivities.items()},
            "trade_off": None if self.trade_off is None else self.trade_off.to_dict(),
            "accuracy_search": None if self.accuracy is None else self.accuracy.to_dict(),
            "packed_file": self.packed_file,
            "storage": [asdict(line) for line in self.storage],
        }


def build_report(
    name: str,
    facts: RunFacts,
    plan: Plan | None,
    *,
    history: Sequence[Mapping[str, Any]] = (),
    result: Mapping[str, Any] | None = None,
    trade_off: TradeOff | None = None,
) -> RunReport:
    """Build a report.

    ``history`` are the lines of ``history.jsonl``, ``result`` the content of ``allocation.json``: neither for a plan,
    and no result yet while a run goes on.
    """
    decisions = {record["epoch"]: record["decision"] for record in history if record.get("decision")}
    epochs = tuple(_epoch(facts, record) for record in history)
    state = f"epoch {epochs[-1].epoch if epochs else 0} of {facts.settings.get('epochs', '?')}"
    if epochs and epochs[-1].has_decision:
        state += ", before the widths that were decided after it"
    return RunReport(
        name=name,
        facts=facts,
        plan=plan,
        headlines=tuple(_headlines(facts, plan, history, result)),
        epochs=epochs,
        moves=tuple(
            WidthMove(epoch=epoch, **move)
            for epoch, decision in decisions.items()
            for move in decision["moves"]
        ),
        sensitivities={epoch: decision["decided_by"]["scores"] for epoch, decision in decisions.items()},
        trade_off=trade_off,
        packed_file=None if result is None else result.get("packed_file"),
        accuracy=_accuracy(facts, result),
        state="finished" if result is not None else state if facts.settings else "planned",
    )


def _accuracy(facts: RunFacts, result: Mapping[str, Any] | None) -> AccuracySearch | None:
    """The probes of a run, with what it reached once it has ended."""
    written = None if result is None else result.get("accuracy_search")
    found = facts.accuracy if written is None else AccuracySearch.from_dict(written)
    return None if found is None else found.checked(len(facts.layers))


def _costs_now(facts: RunFacts, last: Mapping[str, Any]) -> list[Headline]:
    """What the widths cost that the last epoch was trained and measured at; nothing for a run in float, which no table has."""
    bits = {name: Precision.parse(text) for name, text in last["bits"].items()}
    if any(bits[name] not in options for name, options in facts.choices.items()):
        return []
    weights = FLOAT_BITS * sum(layer.parameters for layer in facts.layers)  # all that 0.1.0 counted
    return [
        Headline(
            name=name,
            value=table.total(bits),
            unit=table.unit,
            budget=facts.limits.get(name),
            reference=weights if name == "memory" and table.float_total is None else table.float_total,
            uncosted=table.uncosted,
        )
        for name, table in facts.tables.items()
    ]


def _headlines(
    facts: RunFacts, plan: Plan | None, history: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None
) -> list[Headline]:
    found = [
        Headline(
            name=name,
            value=cost.total,
            unit=cost.unit,
            budget=cost.budget,
            reference=cost.float_total,
            uncosted=cost.uncosted,
        )
        for name, cost in ({} if plan is None else plan.costs).items()
    ]
    if plan is None and history:
        found += _costs_now(facts, history[-1])
    packed = None if result is None else result.get("packed_file")
    if packed and packed.get("actual_bytes"):
        found.append(Headline(name="file on disk", value=8 * packed["actual_bytes"], unit="bit"))
    source = result if result is not None else history[-1] if history else None
    if source is not None:
        found.append(replace(_metric_headline(source), note=_beside_calibration(source, history)))
    return found


def _beside_calibration(source: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> str:
    """What training made of the calibrated network that it started from, on the images that epochs are compared on."""
    calibrated = source.get("calibrated")
    if not calibrated or not history:
        return ""
    metric = Metric(**(source.get("metric") or {}))
    key = next((name for name in calibrated if name.endswith(metric.key)), "")
    before, after = calibrated.get(key), history[-1].get(key)
    if before is None or after is None:
        return ""
    part = key.removesuffix(f"_{metric.key}")
    kept = ": the calibrated network was kept" if calibrated.get("is_kept") else ""
    return f"{part} {metric.name} {metric.text(before)} calibrated, {metric.text(after)} trained{kept}"


def _metric_headline(source: Mapping[str, Any]) -> Headline:
    """How good the network is: on test images at the end, else on those that the last epoch was measured on."""
    metric, part = _measured(source)
    value, reference = source[f"{part}_{metric.key}"], source.get(f"float_{metric.key}")
    scale = 100 if metric.is_share else 1
    return Headline(
        name=f"{part} {metric.name}",
        value=scale * value,
        unit=_PERCENT if metric.is_share else "",
        reference=None if reference is None else scale * reference,
        is_metric=True,
    )


def _measured(source: Mapping[str, Any]) -> tuple[Metric, str]:
    """The metric of a result or of a line of the history, and the part of the data it was measured on."""
    metric = Metric(**(source.get("metric") or {}))
    return metric, "validation" if source.get(f"test_{metric.key}") is None else "test"


def _epoch(facts: RunFacts, record: Mapping[str, Any]) -> Epoch:
    bits = {name: Precision.parse(text).weight_bits for name, text in record["bits"].items()}
    metric, part = _measured(record)
    return Epoch(
        epoch=record["epoch"],
        loss=record.get("loss"),
        train_accuracy=record.get("train_accuracy"),
        part=part,
        metric=metric,
        value=record[f"{part}_{metric.key}"],
        compared_loss=record[f"{part}_loss"],
        weight_bits=tuple(bits[layer.name] for layer in facts.layers),
        has_decision=bool(record.get("decision")),
    )


def report_on_run(folder: str | Path, *, on_step: Callable[[int, int], None] | None = None) -> RunReport:
    """The report of a run; ``on_step`` is called as the trade-off is solved again."""
    folder = Path(folder)
    facts = read_facts(folder)
    try:
        history = _read(folder / run_files.HISTORY) or []
        result = _read(folder / run_files.ALLOCATION)
        check_records(facts, history, result)
        plan = Plan.from_dict(result) if result is not None and "allocation" in result else None
        if plan is not None:
            check_plan(plan)
        decided = [record["decision"]["decided_by"] for record in history if record.get("decision")]
        last = Sensitivity.from_dict(decided[-1]) if decided else None
        trade_off = None if plan is None else find_trade_off(facts, plan, last, on_step=on_step)
        return build_report(str(folder), facts, plan, history=history, result=result, trade_off=trade_off)
    except HwbmpqError as error:
        raise HwbmpqError(_in_folder(folder, error)) from error
    except _WRONG as error:
        what = _problem(error)
        raise HwbmpqError(f"{folder}: its files do not belong together or were changed: {what}") from error


def _problem(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {cut(str(error))}"
    first = error.errors(include_url=False, include_input=False)[0]
    return cut(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")


def read_facts(folder: Path) -> RunFacts:
    """What was known before a run began."""
    if (folder / run_files.CONFIG).is_file() and not (folder / run_files.FACTS).is_file():
        raise HwbmpqError(
            f"{folder} has no {run_files.FACTS}: it never began, or an earlier version of hwbmpq wrote it",
            hint=f"hwbmpq compress --resume {quote(str(folder))} writes it",
        )
    if not (folder / run_files.FACTS).is_file():
        what = "is not a run of hwbmpq" if folder.exists() else "does not exist"
        raise HwbmpqError(f"{folder} {what}", hint="give the folder that hwbmpq compress wrote")
    try:
        return RunFacts.from_dict(_read(folder / run_files.FACTS))
    except HwbmpqError as error:
        raise HwbmpqError(_in_folder(folder, error)) from error
    except _WRONG as error:
        raise HwbmpqError(f"{folder}: these are not the facts of a run: {_problem(error)}") from error


def _in_folder(folder: Path, error: HwbmpqError) -> str:
    return str(error) if str(error).startswith(str(folder)) else f"{folder}: {error}"


def _read(path: Path) -> Any:
    """The JSON in a file, or in each of its lines; None if there is no such file."""
    return read_json(path) if os.path.lexists(path) else None
