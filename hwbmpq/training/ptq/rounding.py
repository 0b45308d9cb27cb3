"""``round_weights``: replace float weights by quantized ones with the least effect on the outputs."""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from hwbmpq.data.inputs import ModelInputs
from hwbmpq.quant import assign, quantized_layers
from hwbmpq.quant.functional import TERNARY_BITS, largest_code
from hwbmpq.quant.layers import QuantizedLayer, eval_mode, float_weights
from hwbmpq.quant.scales import best_scale, nearest_codes
from hwbmpq.quant.weights import QuantizedWeight
from hwbmpq.training.ptq.calibration import Batches, CapturedInput, InputCapture, inputs_of
from hwbmpq.values import FLOAT_BITS

_DAMPING = 0.01
"""Share of the mean diagonal that is added to it (Frantar et al. 2022 use the same)."""
_BLOCK = 64
"""Columns after which the rest is updated: one large product instead of many thin ones."""


def gptq_round(weight: Tensor, scale: Tensor, bits: int, moments: Tensor) -> Tensor:
    """Codes column by column, later columns compensating for the error so far (GPTQ, Frantar et al. 2022).

    ``weight`` is (groups, rows, n), ``moments`` the inputs' second moments (groups, n, n), ``scale`` broadcasts to the
    weight. The columns with the largest inputs come first, while most columns are left to compensate.
    """
    order = moments.diagonal(dim1=1, dim2=2).argsort(dim=1, descending=True)  # (groups, n)
    columns = order[:, None, :].expand_as(weight)
    left, tops = weight.gather(2, columns), _top_codes(weight, scale, bits).gather(2, columns)
    moments = moments.gather(1, order[:, :, None].expand_as(moments))
    factor = _inverse_factor(moments.gather(2, order[:, None, :].expand_as(moments))).to(weight.dtype)
    codes = tops  # where they are not zero they stay; the others are filled in
    for start in range(0, left.shape[2], _BLOCK):
        block, rest = slice(start, start + _BLOCK), slice(start + _BLOCK, None)
        errors = _round_block(left[:, :, block], codes[:, :, block], scale, bits, factor[:, block, block])
        left[:, :, rest] -= errors @ factor[:, block, rest]
    return torch.empty_like(codes).scatter_(2, columns, codes)


def damped(moments: Tensor) -> Tensor:
    """Second moments in double precision that can be inverted, whatever the inputs were."""
    moments = moments.double()
    diagonal = moments.diagonal(dim1=1, dim2=2)
    mean = diagonal.mean(dim=1, keepdim=True)
    extra = torch.where(mean > 0, _DAMPING * mean, 1.0)  # inputs that are all zero: any code will do
    return moments + torch.diag_embed(extra.expand_as(diagonal))


def _round_block(left: Tensor, codes: Tensor, scale: Tensor, bits: int, factor: Tensor) -> Tensor:
    """Fill in the codes of some columns; returns their errors in units of the factor's diagonal."""
    errors = torch.empty_like(left)
    for column in range(left.shape[2]):
        here = slice(column, column + 1)
        given, values = codes[:, :, here], left[:, :, here]
        chosen = torch.where(given != 0, given, nearest_codes(values, scale, bits))
        codes[:, :, here] = chosen
        errors[:, :, here] = (values - chosen * scale) / factor[:, here, here]
        left[:, :, column + 1 :] -= errors[:, :, here] * factor[:, here, column + 1 :]
    return errors


def _top_codes(weight: Tensor, scale: Tensor, bits: int) -> Tensor:
    """The largest code for the largest weight of each scale, zero elsewhere: compensation must not change the range."""
    codes = torch.zeros_like(weight)
    if bits == TERNARY_BITS:
        return codes
    rows = (1, -1) if scale.numel() == 1 else (-1, weight.shape[2])
    where = weight.abs().reshape(rows).argmax(dim=1, keepdim=True)
    tops = weight.reshape(rows).gather(1, where).sign() * largest_code(bits, signed=True)
    codes.view(rows).scatter_(1, where, tops)
    return codes


def _inverse_factor(moments: Tensor) -> Tensor:
    """Upper triangular U with UᵀU the inverse of the (damped) moments."""
    lower = torch.linalg.cholesky(damped(moments))
    upper: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    return upper


MOST_COLUMNS = 2**13
"""Weights with more inputs each are rounded to nearest: their moments would take more than half a gigabyte."""
_DTYPES = (torch.float32, torch.float64)
_MOST_INPUTS = 2**14
"""Inputs of a layer that one batch adds to its moments."""


@torch.no_grad()
def round_weights(
    model: nn.Module, batches: Batches | None = None, *, on_layer: Callable[[int, int], None] | None = None
) -> None:
    """Change ``model`` in place: its quantized layers' weights become values that their quantizers leave as they are.

    Scales are those with the least error, not those of the largest weight. With ``batches``, each layer in turn gets
    the weights that come closest to what it computes in float, on inputs from the layers before it, which are
    quantized by then. The weights still to be rounded compensate for those that are (GPTQ), the bias for the rest
    of the mean error. Without ``batches``, and in transposed convolutions, weights are rounded to nearest.

    Weights of weight-only layers (LSTM, attention, embedding …) are rounded to nearest too. Left alone are weights at
    32 bits, in half precision or shared, and those of layers that multiply with something other than their parameter. ``on_layer`` is called with the number of layers done and their total.
    """
    layers = _roundable(model)
    seen: list[QuantizedLayer] = []
    if batches is not None:
        multiplies = [layer for layer in layers if isinstance(layer, QuantizedLayer)]
        seen = _round_with_data(model, multiplies, inputs_of(model, batches), on_layer)
    for layer in layers:
        if layer not in seen and not layer.may_compute_weight:
            _round_to_nearest(layer)


def _round_with_data(
    model: nn.Module,
    layers: Iterable[QuantizedLayer],
    inputs: Sequence[ModelInputs],
    on_layer: Callable[[int, int], None] | None,
) -> list[QuantizedLayer]:
    """Round the layers that run on the images; returns them."""
    reference = float_copy(model)
    twins: dict[str, Any] = dict(quantized_layers(reference))
    with eval_mode(model):
        calls = _calls_by_layer(model, layers, inputs[0].part(slice(1)))
        # One layer per pass: with two at once, the second would not see the effect of rounding the first.
        widths = {layer: layer.weight_bits for layer in calls}
        with float_weights(calls):
            for done, (layer, count) in enumerate(calls.items()):
                moments = _Moments(layer)
                for batch in inputs:
                    quantized = _columns(model, layer, batch, count)
                    exact = _columns(reference, twins[layer.layer_name], batch, count)
                    moments.add(quantized, exact)
                layer.weight_quantizer.bits = widths[layer]
                _round_by(moments, layer)
                if on_layer is not None:
                    on_layer(done + 1, len(calls))
    return list(calls)


def float_copy(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode that rounds nothing."""
    reference = copy.deepcopy(model).eval()
    assign(reference, {name: FLOAT_BITS for name, _ in quantized_layers(model)})
    return reference


def _roundable(model: nn.Module) -> list[QuantizedLayer | QuantizedWeight]:
    owners = Counter(
        id(p) for module in model.modules() for p in module._parameters.values() if p is not None
    )
    found = []
    for _, layer in quantized_layers(model):
        is_held = isinstance(layer, QuantizedWeight)
        # None if it is computed by a parametrization.
        weight = layer.weight if is_held else layer._parameters.get("weight")
        if weight is None or owners[id(weight)] > 1 or weight.dtype not in _DTYPES:
            continue
        if layer.weight_bits != FLOAT_BITS:
            found.append(layer)
    return found


def _round_to_nearest(layer: QuantizedLayer | QuantizedWeight) -> None:
    weight = cast(Tensor, layer.weight)
    axis = layer.channel_axis
    rows = weight.reshape(1, -1) if axis is None else weight.movedim(axis, 0).flatten(1)
    scale = best_scale(rows, layer.weight_bits)
    rounded = nearest_codes(rows, scale, layer.weight_bits) * scale
    moved = weight.shape if axis is None else weight.movedim(axis, 0).shape
    weight.copy_(rounded.view(moved) if axis is None else rounded.view(moved).movedim(0, axis))
    layer.weight_quantizer.take_scale(scale)


class _Enough(Exception):  # noqa: N818 (not an error: the rest of the forward pass is not needed)
    pass


def _calls_by_layer(
    model: nn.Module, layers: Iterable[QuantizedLayer], inputs: ModelInputs
) -> dict[QuantizedLayer, int]:
    """How often each layer's weight is multiplied with in one pass, in order of the first time."""
    seen: list[QuantizedLayer] = []
    with InputCapture(layers, lambda product: seen.append(product.layer)):
        inputs.call(model)
    calls = Counter(seen)
    return {layer: n for layer, n in calls.items() if cast(Tensor, layer.weight)[0].numel() <= MOST_COLUMNS}


def _columns(model: nn.Module, layer: QuantizedLayer, inputs: ModelInputs, count: int) -> Tensor:
    """What ``layer`` multiplies with in its first ``count`` products when ``model`` sees the inputs."""
    found: list[Tensor] = []

    def keep(product: CapturedInput) -> None:
        found.append(product.columns(_MOST_INPUTS // count))
        if len(found) == count:
            raise _Enough

    try:
        with InputCapture([layer], keep):
            inputs.call(model)
    except _Enough:
        pass
    return torch.cat(found, dim=1)


class _Moments:
    """What is known of a layer's inputs, in the quantized and in the float network. Shapes: (groups, n, …)."""

    def __init__(self, layer: QuantizedLayer) -> None:
        like = cast(Tensor, layer.weight)
        groups, n = getattr(layer, "groups", 1), like[0].numel()
        self.products = like.new_zeros(groups, n, n)
        """Sum of q·qᵀ for the quantized network's inputs q."""
        self.drift = like.new_zeros(groups, n, n)
        """Sum of (f - q)·qᵀ for the float network's inputs f."""
        self.sums = like.new_zeros(2, groups, n, 1)
        """Of q, and of f."""
        self.count = 0

    def add(self, quantized: Tensor, exact: Tensor) -> None:
        self.products += quantized.transpose(1, 2) @ quantized
        self.drift += (exact - quantized).transpose(1, 2) @ quantized
        self.sums += torch.stack([quantized.sum(1), exact.sum(1)])[..., None]
        self.count += quantized.shape[1]


def _round_by(moments: _Moments, layer: QuantizedLayer) -> None:
    weight = cast(Tensor, layer.weight)
    groups, n = moments.products.shape[:2]
    rows = weight.reshape(groups, -1, n)
    target = rows + _compensation(rows @ moments.drift, moments.products)
    importance = moments.products.diagonal(dim1=1, dim2=2)[:, None].expand_as(rows)
    flat = (1, -1) if layer.channel_axis is None else (-1, n)
    scale = best_scale(target.reshape(flat), layer.weight_bits, importance.reshape(flat))
    scale = scale.view((1, 1, 1) if layer.channel_axis is None else (groups, -1, 1))
    rounded = gptq_round(target, scale, layer.weight_bits, moments.products) * scale
    bias = layer._parameters.get("bias")
    if bias is not None:
        quantized, exact = moments.sums / moments.count
        bias.add_((rows @ exact - rounded @ quantized).flatten())
    weight.copy_(rounded.view_as(weight))
    layer.weight_quantizer.take_scale(scale)


def _compensation(drift: Tensor, products: Tensor) -> Tensor:
    """The change of weights that best compensates for inputs that differ from the float network's."""
    solved: Tensor = torch.linalg.solve(damped(products), drift.double().transpose(1, 2))
    return solved.transpose(1, 2).to(drift.dtype)
