"""A task of a plug-in, and one that is not finished."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from hwbmpq.tasks import Task


class ErrorRate(Task):
    """Classification, measured by what is wrong."""

    metric, higher_is_better, is_share = "error rate", False, True

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def measure(self, outputs: Any, targets: Any) -> Any:
        return (outputs.argmax(dim=1) != targets).sum(), len(targets)


class Unfinished(Task):
    """It says how to train, but not how good the network is."""

    metric, higher_is_better = "nothing", True

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return F.cross_entropy(outputs, targets)
