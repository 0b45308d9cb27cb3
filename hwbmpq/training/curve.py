"""The curve that people ask for: accuracy on validation images against a cost, measured without training."""

from collections.abc import Sequence

from torch import nn

from hwbmpq.data.images import ImageData
from hwbmpq.report import AccuracySearch
from hwbmpq.tasks import Task, get_task
from hwbmpq.training.accuracy import with_validation
from hwbmpq.training.hooks import TrainingHook
from hwbmpq.training.probes import Prober, tell_probe
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import get_ready
from hwbmpq.values import Sensitivity

CURVE_POINTS = 8


def accuracy_curve(
    network: nn.Module,
    data: ImageData,
    settings: RunSettings,
    *,
    points: int = CURVE_POINTS,
    sensitivity: Sensitivity | None = None,
    task: Task | None = None,
    hooks: Sequence[TrainingHook] = (),
) -> AccuracySearch:
    """Probes at up to ``points`` budgets, evenly spaced from the least that the cost can be to all widths at their widest.

    ``settings.minimise`` names the cost, memory by default; other budgets stay in force. ``network`` keeps its weights.
    """
    task = get_task(task or settings.task, label_smoothing=settings.label_smoothing)
    data = with_validation(data, settings, is_measured=True)
    get_ready(network, data, settings, task)
    prober = Prober(network, data, settings, task, hooks=hooks, sensitivity=sensitivity)
    low, high = prober.ends
    steps = (low + (high - low) * place / max(1, points - 1) for place in range(points))
    budgets = sorted({prober.snap(step) for step in steps} | {high})
    found = prober.search
    for number, budget in enumerate(budgets):
        found = found.with_probe(prober.probe(budget))
        tell_probe(hooks, found, number + 1, len(budgets))
    return found
