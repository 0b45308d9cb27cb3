"""One class for each pixel."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hwbmpq.data.inputs import first_tensor
from hwbmpq.errors import HwbmpqError
from hwbmpq.registry import TASKS
from hwbmpq.tasks.base import Task

IGNORED = 255
"""The label of pixels that do not count, as in Pascal VOC and Cityscapes."""


@TASKS.register("segmentation")
class Segmentation(Task):
    """Cross entropy per pixel and mean IoU over the classes that occur.

    The first output is scores (B, classes, H, W), targets are labels (B, H, W); pixels labelled 255 do not count.
    """

    metric, higher_is_better, is_share = "mean IoU", True, True
    label_smoothing = 0.0
    """Of the training loss."""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        scores, labels = _pair(outputs, targets)
        return F.cross_entropy(scores, labels, ignore_index=IGNORED, label_smoothing=self.label_smoothing)

    def summed_loss(self, outputs: Any, targets: Any, samples: int) -> Tensor:
        scores, labels = _pair(outputs, targets)
        return F.cross_entropy(scores, labels, ignore_index=IGNORED) * samples

    def measure(self, outputs: Any, targets: Any) -> Tensor:
        """Pixels in the intersection and in the union, by class: (2, classes)."""
        scores, labels = _pair(outputs, targets)
        counted = labels != IGNORED
        classes = scores.shape[1]
        pairs = labels[counted] * classes + scores.argmax(dim=1)[counted]
        confusion = torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)
        both = confusion.diagonal()
        return torch.stack([both, confusion.sum(0) + confusion.sum(1) - both])

    def value(self, measured: Sequence[Any]) -> float:
        both, either = torch.stack(list(measured)).sum(0).double()
        return float((both[either > 0] / either[either > 0]).mean())


def _pair(outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    scores, labels = first_tensor(outputs), first_tensor(targets)
    if scores is None or labels is None or scores.dim() < 3 or labels.shape != scores[:, 0].shape:
        shapes = ["no tensor" if x is None else str(tuple(x.shape)) for x in (scores, labels)]
        raise HwbmpqError(
            f"segmentation needs scores (B, classes, H, W) and labels (B, H, W), not {shapes[0]} and {shapes[1]}",
            hint="resize the network's output to the size of the labels in its forward",
        )
    return scores.float(), labels.long()
