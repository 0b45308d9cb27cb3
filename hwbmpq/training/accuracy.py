"""Accuracy as the question: the smallest cost whose accuracy on validation images is what was asked for."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from hwbmpq import distributed
from hwbmpq.data.chance import chance_remark
from hwbmpq.data.images import ImageData
from hwbmpq.data.validation import MOST_BY_DEFAULT, hold_out_validation
from hwbmpq.errors import HwbmpqError
from hwbmpq.report import AccuracyProbe, AccuracySearch, read_facts
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.search.bisection import MOST_TRIES, least_that_holds
from hwbmpq.tasks import Task
from hwbmpq.training.evaluation import evaluate, evaluation_batches
from hwbmpq.training.hooks import Progress, TrainingHook
from hwbmpq.training.probe_log import ProbeLog
from hwbmpq.training.probes import Prober, budgets_for_search, probe_of, tell_probe
from hwbmpq.training.run_directory import RunDirectory
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import seed_everything, starts_from_weights
from hwbmpq.units import amount
from hwbmpq.values import Metric

TrainAt = Callable[[RunSettings], AccuracyProbe]
"""Trains a copy of the network by these settings, and measures it."""


class AccuracyNotReached(HwbmpqError):  # noqa: N818 (a state of the demand, as InfeasibleBudget is of budgets)
    """A demand on accuracy that no budget meets."""

    def __init__(self, message: str, search: AccuracySearch, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.search = search


def with_validation(data: ImageData, settings: RunSettings, *, is_measured: bool = False) -> ImageData:
    """The data with the validation part that the settings ask for; a run without training chooses nothing by it, unless
    accuracy is asked for, or ``is_measured``.

    Then half of the training images, at most 5,000, are held out unless the settings say how many: calibration needs few,
    and the more there are, the surer is the answer.
    """
    if settings.epochs:
        return hold_out_validation(data, settings.validation, seed=settings.seed)
    if not (settings.asks_for_accuracy or is_measured):
        return replace(data, validation=None)
    amount = settings.validation
    if amount is None and len(data.train) > 1:
        amount = float(min(MOST_BY_DEFAULT, len(data.train) // 2))
    return hold_out_validation(data, amount, seed=settings.seed)


def find_budget(
    network: nn.Module,
    data: ImageData,
    settings: RunSettings,
    task: Task,
    train_at: TrainAt,
    *,
    earlier: RunDirectory | None = None,
    run: RunDirectory | None = None,
    on_ready: Callable[[], None] = lambda: None,
    hooks: Sequence[TrainingHook] = (),
) -> tuple[AccuracySearch | None, RunSettings]:
    """The probes that a demand on accuracy takes, and the settings with the budget that they found.

    Nothing happens without a demand. ``earlier`` is a run that has made its probes already and goes on. ``run`` keeps the
    probes of one that trains; ``on_ready`` is called before the first of them.
    """
    if not settings.asks_for_accuracy:
        return None, settings
    if earlier is not None:
        search = read_facts(earlier.path).accuracy
    else:
        search = search_accuracy(
            network, data, settings, task, train_at, run=run, on_ready=on_ready, hooks=hooks
        )
        seed_everything(settings)  # the run draws as if nothing had been tried before
    if search is None or search.budget is None:
        return search, settings
    return search, with_budget(settings, search.budget)


def search_accuracy(
    network: nn.Module,
    data: ImageData,
    settings: RunSettings,
    task: Task,
    train_at: TrainAt,
    *,
    run: RunDirectory | None = None,
    on_ready: Callable[[], None] = lambda: None,
    hooks: Sequence[TrainingHook] = (),
) -> AccuracySearch:
    """Probe along the cost that is to be small, by calibration; ``budget`` is the least that holds.

    A run that trains has one more point trained, halfway to the least that is possible, since training makes up for much
    of what calibration loses; if that holds, it is taken. Its probes are kept in the folder of ``run``: a run that is cut off
    goes on with them.
    """
    check_demand(settings, task)
    prober = Prober(network, data, settings, task, hooks=hooks)
    search = _asked(prober.search, settings)
    _check_float(search, data, settings, task)
    low, high = prober.ends
    # Without training there is nothing to go on with, and a demand that fails leaves no folder.
    if settings.epochs:
        on_ready()
    log = ProbeLog(run if settings.epochs else None)

    def holds(budget: float) -> bool:
        nonlocal search
        search = search.with_probe(log.probe(budget, prober.probe))
        tell_probe(hooks, search, len(search.probes), MOST_TRIES)
        return bool(search.probes[-1].holds)

    found = least_that_holds(low, high, prober.snap, holds)
    if found is None and not settings.epochs:
        raise _not_reached(search, data)
    smaller = None if found is None or not settings.epochs else prober.snap(low + (found - low) / 2)
    if smaller is not None and found is not None and smaller < found:
        trained = log.probe(smaller, lambda budget: train_at(with_budget(settings, budget)), is_trained=True)
        if run is not None and distributed.rank() == 0:
            run.forget_probe()  # only now that its result is kept
        search = search.with_probe(trained)
        tell_probe(hooks, search, len(search.probes), len(search.probes))
        found = smaller if search.probes[-1].holds else found
    return replace(search, budget=high if found is None else found)


def with_result(
    search: AccuracySearch | None,
    network: nn.Module,
    allocator: BitAllocator,
    data: ImageData,
    progress: Progress,
    task: Task,
) -> AccuracySearch | None:
    """The search with what the run reached in the end, on the same images."""
    if search is None or data.validation is None:
        return search
    validation, key = data.validation, f"validation_{task.described.key}"
    if key not in progress.records[-1]:  # not trained; probes are calibrated fast, the run as it was asked to
        found = distributed.on_first_rank(lambda: evaluate(network, evaluation_batches(validation), task))
        return replace(search, reached=found.value)
    if progress.keeps_calibrated:
        return replace(search, reached=progress.calibrated)
    value = progress.records[-1][key]
    return replace(search, reached=value).with_probe(probe_of(allocator, value, is_trained=True))


def with_budget(settings: RunSettings, budget: float) -> RunSettings:
    """The settings of a run within the budget that was found."""
    return settings.model_copy(update={"budgets": budgets_for_search(settings, budget)})


def check_demand(settings: RunSettings, task: Task) -> None:
    """Refuse what no probe could answer, before anything slow."""
    metric: Metric = task.described
    if not metric.is_share or not metric.higher_is_better:
        raise HwbmpqError(
            f"--max-drop and --min-accuracy are for a metric in percent of which more is better, not {metric.name}",
            hint="give a --budget instead",
        )
    if not starts_from_weights(settings):
        raise HwbmpqError(
            "--max-drop and --min-accuracy compare with a trained network: its weights are missing",
            hint="give --weights FILE or --pretrained; or a --budget, to train from scratch",
        )


def unmet_remark(search: AccuracySearch | None) -> tuple[str, ...]:
    """What to say if the run's network is not as accurate as was asked."""
    if search is None or search.is_met is not False:
        return ()
    assert search.reached is not None
    assert search.least is not None
    text = search.metric.text
    return (
        f"{search.asked} does not hold: the network has {text(search.reached)} on {search.images:,} validation images, "
        f"less than {text(search.least)}; train for more --epochs, or ask for less",
    )


def _asked(search: AccuracySearch, settings: RunSettings) -> AccuracySearch:
    said, least = [], []
    if settings.max_drop is not None:
        said.append(f"max-drop {settings.max_drop:.4%}")
        least.append(search.in_float - settings.max_drop)
    if settings.min_accuracy is not None:
        said.append(f"min-accuracy {settings.min_accuracy:.4%}")
        least.append(settings.min_accuracy)
    shown = [f"{text.rstrip('%').rstrip('0').rstrip('.')}%" for text in said]
    return replace(search, asked=" and ".join(shown), least=max(least))


def _check_float(search: AccuracySearch, data: ImageData, settings: RunSettings, task: Task) -> None:
    """Weights that are not trained, or not good enough even in float, need no probes."""
    doubt = chance_remark(
        search.in_float,
        search.images,
        data.classes if task.has_classes else None,
        inputs=data.inputs,
        what="the network",
        name=data.name,
    )
    if doubt is not None:
        raise HwbmpqError(
            doubt.removeprefix("WARNING: "), hint="a demand on accuracy starts from a trained network"
        )
    if not settings.epochs and not search.is_enough(search.in_float):
        assert search.least is not None
        text = search.metric.text
        raise AccuracyNotReached(
            f"{search.asked}: the network has {text(search.in_float)} in float on {search.images:,} validation images, "
            f"which no widths make {text(search.least)}",
            search,
            hint="ask for less, or train it with --epochs",
        )


def _not_reached(search: AccuracySearch, data: ImageData) -> AccuracyNotReached:
    best = max(search.probes, key=lambda probe: probe.value)
    text, cost = search.metric.text, amount(best.costs[search.cost], search.unit)
    assert search.least is not None
    return AccuracyNotReached(
        f"{search.asked} cannot be held without training: {text(search.least)} is asked for, and the widest widths within "
        f"the budgets reach {text(best.value)} on {search.images:,} validation {data.samples} ({search.cost} {cost}, "
        f"{best.average_bits:.2f} bits on average); in float it is {text(search.in_float)}",
        search,
        hint="allow wider widths (--bits 2,4,8) or a larger --budget, train with --epochs 10, or ask for less",
    )
