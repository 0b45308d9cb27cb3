"""The whole method: a network, images and settings in; a network at the widths that a device's budget allows out."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from hwbmpq import distributed
from hwbmpq.data.images import ImageData
from hwbmpq.deprecated import renamed_attribute
from hwbmpq.errors import HwbmpqError, NonFiniteError, cut
from hwbmpq.graph import describe
from hwbmpq.quant import as_float, prepare
from hwbmpq.report import (
    AccuracySearch,
    Plan,
    RunFacts,
    build_report,
    find_trade_off,
    read_facts,
)
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.search.decisions import Decision
from hwbmpq.search.planning import MEASURING_BATCH as MEASURING_BATCH
from hwbmpq.search.planning import facts_of as facts_of
from hwbmpq.search.planning import measure as measure
from hwbmpq.search.planning import plan as plan
from hwbmpq.search.planning import report_on
from hwbmpq.search.planning import trade_off as trade_off
from hwbmpq.search.space import build_search_space as build_search_space
from hwbmpq.tasks import Task, get_task
from hwbmpq.training.accuracy import find_budget, unmet_remark, with_result
from hwbmpq.training.accuracy import with_validation as with_validation
from hwbmpq.training.assemble import compared_on, start_from_calibration, trained_probe
from hwbmpq.training.assemble import make_allocator as make_allocator
from hwbmpq.training.assemble import make_trainer as make_trainer
from hwbmpq.training.assemble import search_space_of as search_space_of
from hwbmpq.training.curve import accuracy_curve as accuracy_curve
from hwbmpq.training.distillation import make_teacher
from hwbmpq.training.evaluation import Evaluation, evaluate, evaluation_batches, figures
from hwbmpq.training.hooks import Progress, TrainingHook, tell
from hwbmpq.training.ptq.run import calibrate_only
from hwbmpq.training.run_directory import RunDirectory
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import (
    check_outputs,
    example_input,
    find_device,
    float_remark,
    get_ready,
    may_be_random,
    place,
    starts_from_weights,
)
from hwbmpq.training.trainer import Trainer
from hwbmpq.values import Metric

if TYPE_CHECKING:
    from hwbmpq.export import SizeAccount


@dataclass(frozen=True, kw_only=True)
class Compression:
    """What a run led to."""

    evaluation: Evaluation
    """Of the network as it stands at the end, on the test images, which nothing was chosen by."""
    metric: Metric = field(default_factory=Metric)
    """What the evaluation's value is."""
    task: str = "classification"
    """What the network was trained for, as the settings or the task itself call it."""
    samples: str = "images"
    """What the test part holds: ``images`` or ``samples``."""
    compared_on: str = "test"
    """The images that epochs were compared on: ``validation``, or ``test`` if nothing was held out."""
    progress: Progress
    decisions: tuple[Decision, ...]
    plan: Plan | None
    """The widths, their costs and alternatives; None for a run in float."""
    seconds: float
    """Of this process; a run that was resumed took longer."""
    size: "SizeAccount | None" = None
    """Of the packed file, if there is a run directory to keep it in."""
    remarks: tuple[str, ...] = ()
    """Warnings about the run as a whole; the plan has them too."""
    accuracy: AccuracySearch | None = None
    """The probes that the budget was found by, where accuracy was asked for."""


def compress(
    network: nn.Module,
    data: ImageData,
    settings: RunSettings,
    *,
    run: RunDirectory | None = None,
    state: Mapping[str, Any] | None = None,
    hooks: Sequence[TrainingHook] = (),
    on_ready: Callable[[], None] | None = None,
    on_trainer: Callable[[Trainer], None] | None = None,
    command: Sequence[str] = (),
    task: Task | None = None,
    teacher: nn.Module | None = None,
) -> Compression:
    """Train ``network`` once, quantized, deciding widths on the way; with 0 epochs, only calibrate it.

    Changes ``network`` in place. ``run`` receives checkpoints, history and the result; ``state`` is a checkpoint of it
    to continue from. ``on_ready`` is called when all has been found to fit, before anything is written or trained, and before
    the first probe of a run that looks for its budget by accuracy and trains;
    ``on_trainer`` gets the trainer before it starts, so that the caller can ask it to stop; first that of a probe, if one trains. ``command`` is kept for the
    report. ``task`` is what to train for, if the settings do not name it. ``teacher`` is a float network to learn from where
    the settings ``distill``; by default it is ``network`` as it is given.

    Epochs are compared on validation images, which ``data`` has or which are held out of its training part. The test
    images choose nothing: the weights that a run starts from are measured on them in float, and then the result.
    """
    start = time.monotonic()
    if state is not None and settings.epochs == 0:
        raise HwbmpqError(
            "a run without training has nothing to continue",
            hint="leave state out to calibrate anew, or set epochs to train",
        )
    title = settings.task if task is None else task.title
    task = get_task(task or settings.task, label_smoothing=settings.label_smoothing)
    data = with_validation(data, settings)
    get_ready(network, data, settings, task)
    ready = _once(on_ready)
    train_at = partial(trained_probe, network, teacher, data, task, hooks, run, on_trainer)
    earlier = None if state is None else run
    search, settings = find_budget(
        network, data, settings, task, train_at, earlier=earlier, run=run, on_ready=ready, hooks=hooks
    )
    taught_by = make_teacher(network, teacher, data, settings, task)
    allocator = make_allocator(network, data, settings, task)
    ready()
    facts = None
    if run is not None and distributed.rank() == 0:
        facts = _facts(run, allocator, data, settings, command, search)
    if settings.epochs == 0:
        progress = calibrate_only(network, allocator, data, settings, task, run=run, hooks=hooks)
    else:
        trainer = make_trainer(
            network, allocator, data, settings, task, run=run, hooks=hooks, teacher=taught_by
        )
        progress = _train(trainer, allocator, data, state, run, hooks, on_trainer)
    folder = run if distributed.rank() == 0 else None
    search = with_result(search, network, allocator, data, progress, task)
    remarks = (*unmet_remark(search), *float_remark(progress.float_accuracy, data, settings, task))
    result = Compression(
        evaluation=_last_evaluation(network, data, progress, task),
        task=title,
        metric=task.described,
        samples=data.samples,
        compared_on=compared_on(data),
        progress=progress,
        decisions=tuple(allocator.history),
        plan=final_report(allocator, remarks),
        remarks=remarks,
        accuracy=search,
        seconds=time.monotonic() - start,
        size=None if folder is None else _save_packed(network, data, settings, folder),
    )
    if folder is not None and facts is not None:
        _save_result(folder, facts, result, settings)
    return result


def _once(act: Callable[[], None] | None) -> Callable[[], None]:
    """A function that acts when it is called for the first time."""
    left = [] if act is None else [act]

    def first_time() -> None:
        while left:
            left.pop()()

    return first_time


def _save_result(run: RunDirectory, facts: RunFacts, result: Compression, settings: RunSettings) -> None:
    # Again: a run may have been cut off between its last checkpoint and the history that belongs to it.
    run.save_history(result.progress.records)
    content = summary(result, settings)
    run.save_allocation(content)
    write_report(run, facts, result, content)


def _facts(
    run: RunDirectory,
    allocator: BitAllocator,
    data: ImageData,
    settings: RunSettings,
    command: Sequence[str],
    search: AccuracySearch | None,
) -> RunFacts:
    """What a run's folder keeps from its start; a run that is resumed has it already."""
    if run.has_facts:
        return read_facts(run.path)
    size = settings.input or "x".join(map(str, data.test.input_size))
    facts = facts_of(
        allocator.space,
        title=f"{settings.model} at {size}",
        settings=settings.model_dump(mode="json"),
        command=command,
    )
    facts = replace(facts, accuracy=search)
    run.save_facts(facts.to_dict())
    return facts


def write_report(run: RunDirectory, facts: RunFacts, result: Compression, content: Mapping[str, Any]) -> None:
    """Write a run's page into its folder; ``content`` is the summary of the result."""
    from hwbmpq.report.html import write_page  # brings matplotlib along, which training does not need

    plan = result.plan
    last = result.decisions[-1].decided_by if result.decisions else None
    report = build_report(
        str(run.path),
        facts,
        plan,
        history=result.progress.records,
        result=content,
        trade_off=None if plan is None else find_trade_off(facts, plan, last),
    )
    write_page([report], run.page)


def _save_packed(
    network: nn.Module, data: ImageData, settings: RunSettings, run: RunDirectory
) -> "SizeAccount":
    from hwbmpq.export.deployment import (
        save_model,  # brings ONNX along, which takes a while and plans do not need
    )

    return save_model(network, data, settings, run.packed_file)


def _last_evaluation(network: nn.Module, data: ImageData, progress: Progress, task: Task) -> Evaluation:
    """On the test images, once: after the last epoch nothing changes any more."""
    last, key = progress.records[-1], f"test_{task.described.key}"
    if (
        key in last and not progress.keeps_calibrated
    ):  # no validation images: the last epoch was measured on these
        return Evaluation(value=last[key], loss=last["test_loss"], images=len(data.test))
    return distributed.on_first_rank(lambda: evaluate(network, evaluation_batches(data.test), task))


def _train(
    trainer: Trainer,
    allocator: BitAllocator,
    data: ImageData,
    state: Mapping[str, Any] | None,
    run: RunDirectory | None,
    hooks: Sequence[TrainingHook],
    on_trainer: Callable[[Trainer], None] | None,
) -> Progress:
    _begin(trainer, allocator, data, state, hooks)
    if run is not None and distributed.rank() == 0 and trainer.progress.epoch < trainer.settings.epochs:
        run.forget_exports()
    if on_trainer is not None:
        on_trainer(trainer)
    return trainer.run()


def _begin(
    trainer: Trainer,
    allocator: BitAllocator,
    data: ImageData,
    state: Mapping[str, Any] | None,
    hooks: Sequence[TrainingHook],
) -> None:
    settings = trainer.settings
    if state is not None:
        with _fitting(settings.model):
            trainer.load_state_dict(state)
        return
    if starts_from_weights(settings):
        trainer.progress.float_accuracy = _float_figure(trainer, data, hooks)
    start_from_calibration(trainer, allocator, data, hooks)


def _float_figure(trainer: Trainer, data: ImageData, hooks: Sequence[TrainingHook]) -> float | None:
    """Of the weights that a run starts from, to compare the result with, on the same images; nothing is chosen by it."""
    unknown = may_be_random(trainer.settings)
    try:
        with as_float(trainer.model):
            value = evaluate(trainer.model, evaluation_batches(data.test), trainer.task).value
    except NonFiniteError:
        if unknown:  # training may repair what random weights give
            return None
        raise
    remarks = float_remark(value, data, trainer.settings, trainer.task)
    tell(hooks, remarks)
    return None if remarks and unknown else value  # guesses of random weights are nothing to compare with


@contextmanager
def _fitting(model: str) -> Iterator[None]:
    """A checkpoint that is not of this network, or not as we write it, is one error."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
        what = next(iter(str(error).splitlines()), type(error).__name__)
        raise HwbmpqError(
            f"the checkpoint does not fit {model}: {cut(what)}", hint="was the run's config.yaml changed?"
        ) from error


def restore(
    network: nn.Module, data: ImageData, settings: RunSettings, state: Mapping[str, Any]
) -> nn.Module:
    """Change ``network`` in place: quantize it as a run did, with the run's weights and widths."""
    check_outputs(network, data, settings.task, at_least=True)
    graph = describe(network, example_input(network, data.test), tie=settings.tie)
    prepare(network, graph, per_channel=settings.per_channel, quantizer=settings.quantizer)
    with _fitting(settings.model):
        network.load_state_dict(state["model"])
    return place(network, find_device(settings.device), data).eval()


def final_report(allocator: BitAllocator, remarks: Sequence[str] = ()) -> Plan | None:
    """The report of the widths that an allocator ended with; ``remarks`` come before its own."""
    if not allocator.history:
        return None
    last = allocator.history[-1]
    found = report_on(
        allocator.space,
        last.decided_by,
        last.allocation,
        objective=last.objective,
        is_optimized=allocator.method.is_optimal,
        with_explanation=allocator.method.is_optimal
        and not last.allocation.inertia,  # others are better by the values
        solver=allocator.config.solver,
    )
    return replace(found, remarks=(*remarks, *found.remarks))


def summary(result: Compression, settings: RunSettings) -> dict[str, Any]:
    """The result of a run, ready for JSON."""
    progress, metric = result.progress, result.metric
    return {
        "model": settings.model,
        "data": settings.data,
        "method": settings.method,
        "epochs": settings.epochs,
        "task": result.task,
        **figures(metric, "test", result.evaluation),
        "test_images": result.evaluation.images,
        f"float_{metric.key}": progress.float_accuracy,
        "calibrated": None
        if progress.calibrated is None
        else {
            f"{result.compared_on}_{metric.key}": progress.calibrated,
            "is_kept": progress.keeps_calibrated,
        },
        "best": {f"{result.compared_on}_{metric.key}": progress.best_accuracy, "epoch": progress.best_epoch}
        if progress.best_epoch
        else None,
        "decisions": len(result.decisions),
        "packed_file": None if result.size is None else result.size.to_dict(),
        "normalise": settings.normalise,
        "accuracy_search": None if result.accuracy is None else result.accuracy.to_dict(),
        **({"plan": None, "remarks": list(result.remarks)} if result.plan is None else result.plan.to_dict()),
    }


__getattr__ = renamed_attribute(
    "hwbmpq.pipeline", {"ask": "build_search_space", "question_of": "search_space_of"}
)
