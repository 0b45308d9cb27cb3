"""Distillation: a quantized network learns from what a float network answers to the same images."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.data.inputs import ModelInputs, first_tensor
from hwbmpq.errors import HwbmpqError


class Teacher:
    """A float network in evaluation mode, and how much of the loss is its share."""

    def __init__(self, network: nn.Module, *, share: float, temperature: float = 1.0) -> None:
        """``network`` is used as it is; ``Teacher.copied`` leaves the original free to be quantized."""
        self.network = network.eval().requires_grad_(False)
        self.share, self.temperature = share, temperature

    @classmethod
    def copied(cls, network: nn.Module, *, share: float, temperature: float = 1.0) -> "Teacher":
        return cls(copy.deepcopy(network), share=share, temperature=temperature)

    def loss(self, outputs: Any, inputs: ModelInputs, own: Tensor) -> Tensor:
        """``own``, the loss by the labels, mixed with the divergence from the teacher's answers."""
        with torch.no_grad():
            wanted = first_tensor(inputs.call(self.network))
        scores = first_tensor(outputs)
        if wanted is None or scores is None or wanted.shape != scores.shape:
            seen = ["no tensor" if t is None else str(tuple(t.shape)) for t in (wanted, scores)]
            raise HwbmpqError(
                f"the teacher answers with {seen[0]}, the network with {seen[1]}",
                hint="a teacher has the network's classes",
            )
        divergence = F.kl_div(
            F.log_softmax(scores.float() / self.temperature, dim=1),
            F.log_softmax(wanted.float() / self.temperature, dim=1),
            reduction="batchmean",
            log_target=True,
        )
        # T² keeps the gradient's size whatever the temperature (Hinton et al. 2015).
        return (1 - self.share) * own + self.share * self.temperature**2 * divergence
