"""How good a network is at its task."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import isfinite, prod
from typing import Any

import torch
from torch import nn

from hwbmpq.data.batches import LoaderImages
from hwbmpq.data.images import LabelledImages
from hwbmpq.data.inputs import ModelInputs, map_tensors
from hwbmpq.errors import HwbmpqError, NonFiniteError
from hwbmpq.quant.layers import eval_mode
from hwbmpq.tasks import Task, get_task
from hwbmpq.values import Metric

EVALUATION_BATCH = 250
_MOST_BATCH_BYTES = 1 << 26
_VALUE_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    value: float
    """Of the task's metric: of a classifier, the share of images whose highest score is their label's."""
    loss: float
    """Mean over the images."""
    images: int

    @property
    def accuracy(self) -> float:
        """The value, which is the accuracy of a classifier."""
        return self.value


def figures(metric: Metric, part: str, found: Evaluation) -> dict[str, Any]:
    """An evaluation on the validation or test ``part``, as files have it."""
    return {f"{part}_{metric.key}": found.value, f"{part}_loss": found.loss, "metric": asdict(metric)}


def evaluation_batches(images: LabelledImages | LoaderImages) -> Iterator[tuple[Any, Any]]:
    """All images in batches of up to ``EVALUATION_BATCH``; in smaller ones if inputs are large, whatever a file says."""
    fitting = _MOST_BATCH_BYTES // (_VALUE_BYTES * max(1, prod(images.input_size)))
    return images.batches(max(1, min(EVALUATION_BATCH, fitting)))


def evaluate(
    model: nn.Module, batches: Iterable[tuple[Any, Any]], task: Task | str = "classification"
) -> Evaluation:
    """Metric and loss in evaluation mode; modules are then put back into the modes they were in.

    A batch is (inputs, targets); inputs are a tensor, a tuple of arguments or a dict of keyword arguments.
    """
    task = get_task(task)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    measured: list[Any] = []
    loss, count = 0.0, 0
    with eval_mode(model), torch.no_grad():
        for inputs, targets in batches:
            given = ModelInputs.of(inputs).on(device)
            outputs = given.call(model)
            targets = map_tensors(targets, lambda tensor: tensor.to(device))
            loss += float(task.summed_loss(outputs, targets, len(given)))
            measured.append(task.measure(outputs, targets))
            count += len(given)
    if not count:
        raise HwbmpqError("there are no images to evaluate on")
    value = float(task.value(measured))
    if not isfinite(value):
        raise NonFiniteError(
            f"the {task.metric} is {value}",
            hint="check the data, and value() of a task of your own"
            if isfinite(loss)
            else "check the data; if training diverged, lower the learning rate (--lr)",
        )
    return Evaluation(value=value, loss=loss / count, images=count)
