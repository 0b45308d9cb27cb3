"""What a run is put together from: its search space, allocator and trainer, the calibrated start, and a trained probe."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from shlex import quote

from torch import nn

from hwbmpq import distributed
from hwbmpq.data.images import ImageData
from hwbmpq.errors import RunStoppedError
from hwbmpq.graph import describe
from hwbmpq.hardware import load_profile
from hwbmpq.report import AccuracyProbe
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.search.methods import get_method
from hwbmpq.search.space import SearchSpace
from hwbmpq.tasks import Task, get_task
from hwbmpq.training.distillation import Teacher, make_teacher
from hwbmpq.training.evaluation import evaluate, evaluation_batches
from hwbmpq.training.hooks import TrainingHook
from hwbmpq.training.probes import probe_of
from hwbmpq.training.ptq.run import decide_and_round, loss_of
from hwbmpq.training.run_directory import RunDirectory
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import (
    HESSIAN_IMAGES,
    calibration_batches,
    example_input,
    seed_everything,
    training_batches,
)
from hwbmpq.training.trainer import Trainer


def search_space_of(network: nn.Module, data: ImageData, settings: RunSettings) -> SearchSpace:
    """What the settings ask of an allocation for this network, still in float."""
    graph = describe(network, example_input(network, data.train), tie=settings.tie)
    graph = graph.with_scales(per_channel=settings.per_channel)
    profile = load_profile(settings.target)
    return get_method(settings.method).search_space(graph, profile, settings)


def make_allocator(
    network: nn.Module, data: ImageData, settings: RunSettings, task: Task | None = None
) -> BitAllocator:
    """Prepare the network for its device. Budgets that cannot be met are found here, before any training."""
    return BitAllocator(
        network,
        example_input(network, data.train),
        config=settings,
        calibration=lambda: calibration_batches(data.train, HESSIAN_IMAGES),
        loss=None if task is None else loss_of(task),
    )


def compared_on(data: ImageData) -> str:
    """The images that epochs are compared on."""
    return "test" if data.validation is None else "validation"


def make_trainer(
    network: nn.Module,
    allocator: BitAllocator,
    data: ImageData,
    settings: RunSettings,
    task: Task | None = None,
    *,
    run: RunDirectory | None = None,
    hooks: Sequence[TrainingHook] = (),
    teacher: Teacher | None = None,
) -> Trainer:
    task = get_task(task or settings.task, label_smoothing=settings.label_smoothing)
    compared = data.test if data.validation is None else data.validation
    batches = training_batches(
        data.train,
        batch_size=settings.batch_size,
        augment=settings.augment or data.augment,
        seed=settings.seed,
        rank=distributed.rank(),
        ranks=distributed.rank_count(),
    )
    return Trainer(
        network,
        allocator,
        settings,
        batches,
        lambda model: evaluate(model, evaluation_batches(compared), task),
        run=run,
        hooks=hooks,
        task=task,
        compared_on=compared_on(data),
        teacher=teacher,
    )


def start_from_calibration(
    trainer: Trainer, allocator: BitAllocator, data: ImageData, hooks: Sequence[TrainingHook]
) -> None:
    """Decide widths and round weights before the first epoch, where the settings say so."""
    if trainer.settings.start != "calibrated" or allocator.method.in_float:
        return
    decide_and_round(trainer.model, allocator, data, trainer.settings, trainer.task, hooks)
    trainer.start_from_calibration()


def trained_probe(
    network: nn.Module,
    teacher: nn.Module | None,
    data: ImageData,
    task: Task,
    hooks: Sequence[TrainingHook],
    run: RunDirectory | None,
    on_trainer: Callable[[Trainer], None] | None,
    settings: RunSettings,
) -> AccuracyProbe:
    """What a copy of the network reaches on validation images once it is trained by other settings.

    Its checkpoints are in a folder of their own in that of ``run``; if there are any, it goes on from these.
    """
    model = deepcopy(network)
    seed_everything(settings)
    allocator = make_allocator(model, data, settings, task)
    taught_by = make_teacher(network, teacher, data, settings, task)
    folder = None if run is None else distributed.on_first_rank(run.probe_folder)
    trainer = make_trainer(model, allocator, data, settings, task, run=folder, hooks=hooks, teacher=taught_by)
    if folder is not None and folder.has_checkpoint:
        trainer.load_state_dict(folder.load_checkpoint()[0])
    else:
        start_from_calibration(trainer, allocator, data, hooks)
    if on_trainer is not None:
        on_trainer(trainer)
    try:
        progress = trainer.run()
    except RunStoppedError as error:
        hint = "" if run is None else f"hwbmpq compress --resume {quote(str(run.path))}"
        raise RunStoppedError(f"{error} of a probe of accuracy", hint=hint) from None
    trained = progress.records[-1][f"validation_{task.described.key}"]
    value = trainer.start.value if trainer.start is not None and progress.keeps_calibrated else trained
    return probe_of(allocator, value, is_trained=True)
