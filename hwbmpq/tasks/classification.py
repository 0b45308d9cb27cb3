"""One class for each input."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hwbmpq.data.inputs import first_tensor
from hwbmpq.errors import HwbmpqError
from hwbmpq.registry import TASKS
from hwbmpq.tasks.base import Task


@TASKS.register("classification")
class Classification(Task):
    """Cross entropy and accuracy. The first output is scores (B, classes), targets are labels (B,)."""

    metric, higher_is_better, is_share, has_classes = "accuracy", True, True, True
    label_smoothing = 0.0
    """Of the training loss."""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return F.cross_entropy(_scores(outputs).float(), targets, label_smoothing=self.label_smoothing)

    def summed_loss(self, outputs: Any, targets: Any, samples: int) -> Tensor:
        return F.cross_entropy(_scores(outputs).float(), targets, reduction="sum")

    def measure(self, outputs: Any, targets: Any) -> Any:
        return self.hits(outputs, targets), len(targets)

    def hits(self, outputs: Any, targets: Any) -> Tensor:
        return torch.as_tensor((_scores(outputs).argmax(dim=1) == targets).sum())


def _scores(outputs: Any) -> Tensor:
    scores = first_tensor(outputs)
    if scores is None or scores.dim() != 2:
        raise HwbmpqError(
            "the network returns no scores, one per image and class",
            hint="for anything but classification give a task: --task regression, segmentation or file:task.py:Task",
        )
    return scores
