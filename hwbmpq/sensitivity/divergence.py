"""What narrowing one layer alone does to the network's answers: measured rather than estimated, and slower for it."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.graph.operations import first_tensor
from hwbmpq.quant import quantized_layers
from hwbmpq.quant.layers import QuantizedLayer
from hwbmpq.sensitivity.measure import SensitivityInputs
from hwbmpq.sensitivity.registry import register
from hwbmpq.sensitivity.steps import run_steps
from hwbmpq.values import Sensitivity


@register("divergence", needs_data=True)
def measure(measurement: SensitivityInputs) -> Sensitivity:
    """Errors: divergence of the answers, per image, from those at the precisions given; the score is the narrowest width's.

    A forward pass for every layer, width and batch. Labels do not matter.
    """
    network = measurement.quantized_copy(measurement.precisions)
    layers = dict(quantized_layers(network))
    totals = {
        layer.name: dict.fromkeys(sorted(measurement.widths[layer.name]), 0.0) for layer in measurement.layers
    }
    images = 0
    for step in run_steps(measurement, network):
        images += step.images
        usual = _log_probabilities(network, step.inputs)
        for name, sums in totals.items():
            for bits, answers in _narrowed(network, layers[name], sums, step.inputs):
                sums[bits] += float(F.kl_div(answers, usual, log_target=True, reduction="sum"))
    # Rounding may leave a little below zero, which a divergence never is.
    errors = {name: {bits: max(0.0, s / images) for bits, s in sums.items()} for name, sums in totals.items()}
    scores = {name: by_width[min(by_width)] for name, by_width in errors.items()}
    return Sensitivity(method="divergence", scores=scores, errors=errors)


def _narrowed(
    network: nn.Module, layer: QuantizedLayer, widths: Iterable[int], images: Tensor
) -> Iterable[tuple[int, Tensor]]:
    """The answers with this layer's weights at each width that it does not have now."""
    usual = layer.precision
    for bits in widths:
        if bits == usual.weight_bits:
            continue
        layer.set_precision(replace(usual, weight_bits=bits))
        try:
            yield bits, _log_probabilities(network, images)
        finally:
            layer.set_precision(usual)


@torch.no_grad()
def _log_probabilities(network: nn.Module, images: Tensor) -> Tensor:
    logits = first_tensor(network(images))
    assert logits is not None  # run_steps has seen it
    return logits.double().log_softmax(1)
