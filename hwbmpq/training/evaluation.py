"""How good a network is on labelled images."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.errors import HwbmpqError
from hwbmpq.inputs import first_tensor
from hwbmpq.quant.layers import eval_mode

EVALUATION_BATCH = 250


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    accuracy: float
    """Share of images whose highest score is their label's."""
    loss: float
    """Mean cross entropy."""
    images: int


def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Evaluation:
    """Accuracy and loss in evaluation mode; modules are then put back into the modes they were in."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    totals = torch.zeros(3, dtype=torch.float64)
    with eval_mode(model), torch.no_grad():
        for images, labels in batches:
            logits, labels = first_tensor(model(images.to(device))), labels.to(device)
            if logits is None or logits.dim() != 2:
                raise HwbmpqError("the network returns no scores, one per image and class")
            loss = F.cross_entropy(logits.float(), labels, reduction="sum")
            correct = (logits.argmax(dim=1) == labels).sum()
            totals += torch.stack([correct.float(), loss, loss.new_tensor(len(labels))]).cpu()
    correct, loss, count = totals.tolist()
    if not count:
        raise HwbmpqError("there are no images to evaluate on")
    return Evaluation(accuracy=correct / count, loss=loss / count, images=int(count))
