"""``Task``: the loss that a network is trained by, and the metric that tells how good it is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hwbmpq.values import Metric


class Task(ABC):
    """What a network is trained for. A task of your own is a subclass:

        class Pose(Task):
            metric = "mean angle error"
            higher_is_better = False

            def loss(self, outputs, targets):
                return torch.nn.functional.smooth_l1_loss(outputs["pose"], targets["pose"])

            def measure(self, outputs, targets):
                errors = (outputs["pose"] - targets["pose"]).abs()
                return errors.sum(), errors.numel()

    ``outputs`` is what the network returns and ``targets`` what the loader yields beside the inputs, each a tensor or a
    nest of tuples, lists and dicts, on one device. ``--task file:task.py:Pose`` uses it; an installed package makes it
    known by name with an entry point of the group ``hwbmpq.tasks``.
    """

    metric: str
    """Its name, as reports call it: ``mean absolute error``."""
    higher_is_better: bool
    """Which way the metric is better: it chooses the best epoch."""
    is_share: bool = False
    """Whether the metric is a share between 0 and 1, which is shown in percent."""
    has_classes: bool = False
    """Whether the network's first output is one score per class, (B, classes)."""

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """The mean loss of a batch, one number that can be differentiated."""

    @abstractmethod
    def measure(self, outputs: Any, targets: Any) -> Any:
        """What a batch contributes to the metric: by default a sum and a count."""

    def value(self, measured: Sequence[Any]) -> float:
        """The metric of an evaluation from what its batches contributed: by default the sums over the counts."""
        rows = [
            torch.stack([torch.as_tensor(x, dtype=torch.float64).cpu() for x in pair]) for pair in measured
        ]
        total, count = torch.stack(rows).sum(0).tolist()
        return float(total / count)

    def summed_loss(self, outputs: Any, targets: Any, samples: int) -> Tensor:
        """The loss of a batch of an evaluation, added up over its samples."""
        return self.loss(outputs, targets) * samples

    def hits(self, outputs: Any, targets: Any) -> Tensor | None:
        """How many samples of a training batch are right; None where there is no right and wrong."""
        return None

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.higher_is_better else value < than

    @property
    def described(self) -> Metric:
        """The metric, as files and reports know it."""
        return Metric(name=self.metric, higher_is_better=self.higher_is_better, is_share=self.is_share)

    @property
    def title(self) -> str:
        """As messages call the task."""
        return type(self).__name__
