"""Quantization without training: a few hundred images, no labels, a minute."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import InputQuantizer, quantized_layers
from hwbmpq.training.model_runs import Batches, images_of, modes_kept
from hwbmpq.training.ptq.weight_rounding import float_weights, round_weights

ROUNDING_IMAGES = 256
"""More hardly change what the weights of a ResNet-20 are rounded to, and each layer costs a pass over them."""


def post_training(
    model: nn.Module,
    batches: Batches,
    *,
    rounding_images: int = ROUNDING_IMAGES,
    on_layer: Callable[[int, int], None] | None = None,
) -> nn.Module:
    """Change ``model`` in place: round the weights of a prepared model, widths assigned, as well as images allow.

    Clipping points first, on float weights: what they clip is then known to the rounding, which imitates the float
    network layer by layer (``round_weights``, on the first ``rounding_images``). Statistics of norms stay: on a
    trained ResNet-20 the weights make up for what re-estimating them would. Returns ``model``.
    """
    images = images_of(model, batches)
    with float_weights(layer for _, layer in quantized_layers(model)):
        calibrate_inputs(model, images)
    round_weights(model, _first(images, rounding_images), on_layer=on_layer)
    return model


def _first(batches: Iterable[Tensor], images: int) -> list[Tensor]:
    found: list[Tensor] = []
    for batch in batches:
        left = images - sum(map(len, found))
        if left > 0:
            found.append(batch[:left])
    return found


@torch.no_grad()
def calibrate_inputs(model: nn.Module, batches: Batches) -> None:
    """Change ``model`` in place: every clipping point α anew, where the error at the present width is least.

    α is the mean over the first 8 batches, as in training; the range at 16 bits is that of all. Nothing else
    learns: norms keep their statistics, modules their modes.
    """
    images = images_of(model, batches)
    with modes_kept(model):
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
    with modes_kept(model), _fresh_statistics(norms):
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
