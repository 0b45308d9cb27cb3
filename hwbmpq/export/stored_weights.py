"""The integers that a quantized network's weights are stored as."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from hwbmpq.data.inputs import Inputs, ModelInputs
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import WeightQuantizer, quantized_layers
from hwbmpq.quant.layers import FROZEN, QuantizedLayer, eval_mode, float_inputs, float_weights
from hwbmpq.quant.quantizers import PaperQuantizer, keep_weights
from hwbmpq.quant.weights import QuantizedWeight
from hwbmpq.values import FLOAT_BITS

_BYTE_BITS = 8


@dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """What a layer multiplies with: ``codes * scale``, in the layer's own precision."""

    codes: Tensor
    """int8 up to 8 bits, else int16; shaped as the weight that enters the product. On the CPU."""
    scale: Tensor
    """float32 (float64 for weights in it), with as many axes as ``codes``, all of length 1 but ``channel_axis``."""
    bits: int
    channel_axis: int | None
    is_computed: bool
    """Whether the layer computes its weight in the forward pass (timm's ``StdConv2d``, a parametrization): its parameter
    is then not what it multiplies with."""

    def values(self) -> Tensor:
        """The weight itself."""
        return self.codes.to(self.scale.dtype) * self.scale


@torch.no_grad()
def stored_weights(model: nn.Module, example_input: Inputs) -> dict[str, StoredWeight]:
    """The weights of a quantized network by layer name; layers at 32 bits, in float, are left out.

    If a layer may compute its weight in the forward pass, the network runs once on ``example_input``; it is not changed.
    """
    layers = {name: layer for name, layer in quantized_layers(model) if layer.weight_bits != FLOAT_BITS}
    weights = {layer: _known_weights(layer) for layer in layers.values()}
    unknown = [layer for layer, known in weights.items() if not known]
    if unknown:
        weights |= _seen_weights(model, unknown, example_input)
    return {name: _stored(layer, weights[layer]) for name, layer in layers.items()}


_Layer = QuantizedLayer | QuantizedWeight


def _known_weights(layer: _Layer) -> list[Tensor]:
    """The weight that the layer multiplies with; nothing if only a run can tell."""
    frozen = layer._buffers.get(FROZEN)
    if frozen is not None:
        return [frozen]
    return [] if layer.may_compute_weight else [cast(Tensor, layer.weight)]


def _seen_weights(
    model: nn.Module, layers: Iterable[_Layer], example_input: Inputs
) -> dict[_Layer, list[Tensor]]:
    """What enters the quantizers of ``layers`` when the network runs, in evaluation mode and without learning."""
    found: dict[_Layer, list[Tensor]] = {layer: [] for layer in layers}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(eval_mode(model))
        # An input quantizer that was never calibrated would start with this input.
        stack.enter_context(float_inputs(layer for _, layer in quantized_layers(model)))
        stack.enter_context(float_weights(found))
        for layer, weights in found.items():
            stack.enter_context(keep_weights(layer.weight_quantizer, weights))
        ModelInputs.of(example_input).call(model)
    for buffer, before in buffers:
        if not torch.equal(buffer, before):
            buffer.copy_(before)
    return found


def _stored(layer: _Layer, weights: list[Tensor]) -> StoredWeight:
    """``weights`` are those that the layer multiplied with, one for each run."""
    different = [w for n, w in enumerate(weights) if not any(torch.equal(w, other) for other in weights[:n])]
    if len(different) != 1:
        raise HwbmpqError(
            f"layer '{layer.layer_name}' ({layer.float_class.__name__}) multiplied with "
            f"{len(different) or 'no'} weights in a run on the example input: it cannot be stored as one",
            hint="leave the layer in float (32 bits), or give an example input that makes it run",
        )
    codes, scale = _canonical_codes(layer.weight_quantizer, weights[0])
    if not bool(torch.isfinite(scale).all()):
        raise HwbmpqError(f"layer '{layer.layer_name}' holds infinite or NaN weights: it cannot be stored")
    dtype = torch.int8 if layer.weight_bits <= _BYTE_BITS else torch.int16
    return StoredWeight(
        codes=codes.detach().to(dtype).cpu().contiguous(),
        scale=scale.detach().cpu().contiguous(),
        bits=layer.weight_bits,
        channel_axis=layer.channel_axis,
        is_computed=isinstance(layer, QuantizedLayer)
        and any(weight is not layer._parameters.get("weight") for weight in weights),
    )


def _canonical_codes(quantizer: WeightQuantizer, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scale, as floats, that quantizing their product gives again."""
    codes, scale = quantizer.codes_and_scale(weight.detach())
    if weight.dtype == scale.dtype:
        return codes, scale
    # Half precision rounds the product: at many bits, several codes then give one value.
    return quantizer.codes_and_scale((codes * scale).to(weight.dtype))


def canonical_codes(weight: Tensor, bits: int, channel_axis: int | None) -> tuple[Tensor, Tensor]:
    """The codes and scale that the paper's quantizer stores a weight as."""
    quantizer = PaperQuantizer(channel_axis=channel_axis, name="the weight", like=weight)
    quantizer.set_bits(bits)
    return _canonical_codes(quantizer, weight)
