"""Numbers for each input."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from hwbmpq.data.inputs import first_tensor
from hwbmpq.errors import HwbmpqError
from hwbmpq.registry import TASKS
from hwbmpq.tasks.base import Task


@TASKS.register("regression")
class Regression(Task):
    """Mean squared error and mean absolute error of the first output, which has as many numbers as the target."""

    metric, higher_is_better = "mean absolute error", False

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return F.mse_loss(*_pair(outputs, targets))

    def measure(self, outputs: Any, targets: Any) -> Any:
        found, wanted = _pair(outputs, targets)
        errors = (found - wanted).abs()
        return errors.double().sum(), errors.numel()


def _pair(outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Outputs and targets of one shape: (B, 1) and (B,) would silently be broadcast to (B, B)."""
    found, wanted = first_tensor(outputs), first_tensor(targets)
    if found is None or wanted is None or len(found) != len(wanted) or found.numel() != wanted.numel():
        shapes = ["no tensor" if x is None else str(tuple(x.shape)) for x in (found, wanted)]
        raise HwbmpqError(
            f"regression compares outputs of {shapes[0]} with targets of {shapes[1]}",
            hint="give as many target numbers for each input as the network has outputs",
        )
    found = found.float()
    return found, wanted.to(found.dtype).reshape(found.shape)
