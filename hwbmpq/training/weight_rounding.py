"""``round_weights``: float weights are replaced by quantized ones that do the least harm."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hwbmpq.quant import assign, quantized_layers
from hwbmpq.quant.layers import QuantizedLayer
from hwbmpq.quant.rounding import best_scale, compensated_codes, damped, nearest_codes
from hwbmpq.training.model_runs import Batches, images_of, modes_kept
from hwbmpq.training.product_tap import Product, ProductTap
from hwbmpq.values import FLOAT_BITS, Precision

WIDEST = 8
"""Wider weights are left alone: nothing is to be gained by rounding them better."""
MOST_COLUMNS = 2**13
"""Weights with more inputs are rounded to nearest: their table of moments would take over half a gigabyte."""
_MOST_INPUTS = 2**14
"""Inputs of a layer that one batch adds to its moments."""


@torch.no_grad()
def round_weights(
    model: nn.Module, batches: Batches | None = None, *, on_layer: Callable[[int, int], None] | None = None
) -> None:
    """Change ``model`` in place: the weights of its quantized layers become what their quantizers make of them.

    Scales are those with the least error rather than those of the largest weight. With ``batches``, layer after layer
    is given the weights that bring it closest to what it computes in float, on the inputs that the layers before
    it, now quantized, hand it; rounding errors are made up for by the weights still to be rounded (GPTQ), and what
    is left of their mean by the bias. Left alone are weights wider than 8 bits, shared ones, and those that
    a layer computes on the way; transposed convolutions are rounded to nearest. ``on_layer`` is called after
    each layer with the number done and the number of all.
    """
    layers = _roundable(model)
    if batches is None:
        for layer in layers:
            _round_to_nearest(layer)
        return
    images = images_of(model, batches)
    reference = _float_copy(model)
    with modes_kept(model), modes_kept(reference):
        calls = _calls(model, layers, images[0])
        partners = dict(quantized_layers(reference))
        for layer in layers:
            if layer not in calls:
                _round_to_nearest(layer)
        for done, (layer, count) in enumerate(calls.items()):
            pair = (model, layer), (reference, partners[layer.layer_name])
            _round_with(layer, _moments(pair, images, count))
            if on_layer is not None:
                on_layer(done + 1, len(calls))
