"""Clipping points of inputs and statistics of norms, from a few hundred images without labels."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import InputQuantizer
from hwbmpq.quant.layers import eval_mode

Batches = Iterable[Tensor | Sequence[Tensor]]
"""Images, or tuples that begin with them: labels are not looked at."""


def images_of(model: nn.Module, batches: Batches) -> list[Tensor]:
    """The images of all batches, as the model takes them."""
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    found = []
    for number, batch in enumerate(batches):
        images = batch if isinstance(batch, Tensor) else batch[0]
        if not isinstance(images, Tensor):
            raise HwbmpqError(f"batch {number} does not hold a tensor of images")
        if like is not None:
            images = images.to(like.device, like.dtype if images.is_floating_point() else images.dtype)
        found.append(images)
    if not found:
        raise HwbmpqError("there are no images to calibrate on", hint="give at least one batch")
    return found


@torch.no_grad()
def calibrate_inputs(model: nn.Module, batches: Batches) -> None:
    """Change ``model`` in place: every clipping point α anew, where the error at the present width is least.

    α is the mean over the first 8 batches, as in training; the range at 16 bits is that of all. Nothing else
    learns: norms keep their statistics, modules their modes.
    """
    images = images_of(model, batches)
    with eval_mode(model):
        for module in model.modules():
            if isinstance(module, InputQuantizer):
                module.set_extra_state(torch.tensor([0, 0]))  # no batch, no range
                module.alpha.fill_(1.0)  # as in the beginning: nothing of a large one is left in the digits
                module.observed.zero_()
                module.train()
        for batch in images:
            model(batch)


@torch.no_grad()
def reestimate_batch_norm(model: nn.Module, batches: Batches, reference: nn.Module | None = None) -> None:
    """Change ``model`` in place: the norms' running statistics become those of the quantized network.

    They are the mean over the batches. With a float ``reference``, only the difference between the two networks on
    the same images is applied: images that the network was not trained on in this very form (augmented, say)
    shift the statistics of both. On a trained ResNet-20 that shift alone costs 3 % of the images.
    """
    images = images_of(model, batches)
    norms, found = _norms(model), _batch_statistics(model, images)
    usual = None if reference is None else _batch_statistics(reference, images)
    if usual is not None and len(usual) != len(found):
        raise HwbmpqError(f"the reference has {len(usual)} batch norms, the model {len(found)}")
    for position, (norm, (mean, variance)) in enumerate(zip(norms, found, strict=True)):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        if usual is not None:
            usual_mean, usual_variance = usual[position]
            mean = norm.running_mean + mean - usual_mean
            variance = norm.running_var * variance / usual_variance.clamp_min(norm.eps)
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)


def _norms(model: nn.Module) -> list[_BatchNorm]:
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


def _batch_statistics(model: nn.Module, images: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance that each norm sees, averaged over the batches; the model stays as it was."""
    norms = _norms(model)
    with eval_mode(model), _fresh_statistics(norms):
        for norm in norms:
            norm.train()
        for batch in images:
            model(batch)
        return [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]  # type: ignore[union-attr]


@contextmanager
def _fresh_statistics(norms: list[_BatchNorm]) -> Iterator[None]:
    """Inside, running statistics begin anew and average all batches equally."""
    before = [({k: v.clone() for k, v in n._buffers.items() if v is not None}, n.momentum) for n in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    try:
        yield
    finally:
        for norm, (buffers, momentum) in zip(norms, before, strict=True):
            norm.momentum = momentum
            for name, value in buffers.items():
                norm.get_buffer(name).copy_(value)
