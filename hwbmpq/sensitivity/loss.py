"""The loss whose gradients are read: cross entropy of the network's answer with the labels."""

import torch
from torch import Tensor
from torch.nn import functional as F

from hwbmpq.errors import HwbmpqError, NonFiniteError
from hwbmpq.graph.operations import first_tensor


def classification_loss(output: object, labels: Tensor, where: str) -> Tensor:
    """Mean cross entropy over a batch; ``where`` is what errors call the batch."""
    logits = first_tensor(output)
    if logits is None or logits.dim() != 2 or len(logits) != len(labels):
        shape = "no tensor" if logits is None else f"shape {tuple(logits.shape)}"
        raise HwbmpqError(
            f"{where}: the network returns {shape} for {len(labels)} labels, not one score per image and class",
            hint="sensitivity from data needs a classifier; the method weight_error needs no data",
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= logits.shape[1]:
        bad = lowest if lowest < 0 else highest
        raise HwbmpqError(
            f"{where} has the label {bad}, but the network has {logits.shape[1]} outputs, 0 to {logits.shape[1] - 1}",
            hint="use a network with as many outputs as the data has classes",
        )
    loss = F.cross_entropy(logits, labels)
    if not bool(torch.isfinite(loss)):
        raise NonFiniteError(
            f"{where}: the loss is {loss.item()}",
            hint="check the images for infinite values, and the loaded weights",
        )
    return loss
