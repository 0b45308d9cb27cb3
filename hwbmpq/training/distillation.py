"""Distillation: a quantized network learns from what a float network answers to the same images."""

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq import distributed
from hwbmpq.data.images import ImageData
from hwbmpq.data.inputs import ModelInputs, first_tensor
from hwbmpq.errors import HwbmpqError
from hwbmpq.tasks import Task
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import find_device, place, starts_from_weights


class Teacher:
    """A float network in evaluation mode, and how much of the loss is its share."""

    def __init__(
        self,
        network: nn.Module,
        *,
        share: float,
        compares: Literal["mse", "kl"] = "mse",
        temperature: float = 1.0,
    ) -> None:
        """``network`` is used as it is; ``Teacher.copied`` leaves the original free to be quantized.

        ``compares``: scores by their mean squared difference, or probabilities by their divergence. On images that the
        teacher was trained on its probabilities are nearly 0 and 1, and tell little; its scores still differ.
        """
        self.network = network.eval().requires_grad_(False)
        self.share, self.compares, self.temperature = share, compares, temperature

    @classmethod
    def copied(cls, network: nn.Module, **options: Any) -> "Teacher":
        return cls(copy.deepcopy(network), **options)

    def loss(self, outputs: Any, inputs: ModelInputs, own: Tensor) -> Tensor:
        """``own``, the loss by the labels, mixed with the difference from the teacher's answers."""
        with torch.no_grad():
            wanted = first_tensor(inputs.call(self.network))
        scores = first_tensor(outputs)
        if wanted is None or scores is None or wanted.shape != scores.shape:
            seen = ["no tensor" if t is None else str(tuple(t.shape)) for t in (wanted, scores)]
            raise HwbmpqError(
                f"the teacher answers with {seen[0]}, the network with {seen[1]}",
                hint="a teacher has the network's classes",
            )
        return (1 - self.share) * own + self.share * self._difference(scores.float(), wanted.float())

    def _difference(self, scores: Tensor, wanted: Tensor) -> Tensor:
        if self.compares == "mse":
            return F.mse_loss(scores, wanted)
        divergence = F.kl_div(
            F.log_softmax(scores / self.temperature, dim=1),
            F.log_softmax(wanted / self.temperature, dim=1),
            reduction="batchmean",
            log_target=True,
        )
        # T² keeps the gradient's size whatever the temperature (Hinton et al. 2015).
        return self.temperature**2 * divergence


def make_teacher(
    network: nn.Module, given: nn.Module | None, data: ImageData, settings: RunSettings, task: Task
) -> Teacher | None:
    """The float network that a run learns from: another one, or ``network`` before it is quantized."""
    if not settings.distill or not settings.epochs or not task.has_classes:
        return None
    options: dict[str, Any] = {
        "share": settings.distill,
        "compares": settings.distill_loss,
        "temperature": settings.temperature,
    }
    if given is not None:
        place(given, find_device(settings.device, distributed.local_rank()), data)
        return Teacher(given, **options)
    if not starts_from_weights(settings):
        raise HwbmpqError(
            "there is no float network to learn from: the weights are random",
            hint="give trained weights (--weights FILE), another network (--teacher MODEL=FILE), or leave out --distill",
        )
    return Teacher.copied(network, **options)
