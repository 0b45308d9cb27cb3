"""The integers that a quantized network's weights really are."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import quantize_weight, quantized_layers
from hwbmpq.quant.layers import FROZEN, QuantizedLayer
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
    """Whether the layer computes its weight on the way (timm's ``StdConv2d``, a parametrization): its parameter
    is then not what it multiplies with."""

    def values(self) -> Tensor:
        """The weight itself."""
        return self.codes.to(self.scale.dtype) * self.scale


@torch.no_grad()
def stored_weights(model: nn.Module, example_input: Tensor) -> dict[str, StoredWeight]:
    """The weights of a quantized network by layer name; layers at 32 bits, in float, are left out.

    If a layer may compute its weight on the way, the network runs once on ``example_input``; it is left as it was.
    """
    layers = {name: layer for name, layer in quantized_layers(model) if layer.weight_bits != FLOAT_BITS}
    found = {layer: _Multiplied() for layer in layers.values() if not _is_known(layer)}
    if found:
        with _undisturbed(model), _watched(found):
            model(example_input)
    return {name: _stored(layer, found.get(layer)) for name, layer in layers.items()}


def _is_known(layer: QuantizedLayer) -> bool:
    """Whether the weight is frozen, or surely the parameter itself: torch's own classes compute nothing."""
    is_torchs = type(layer).__bases__[1].__module__.startswith("torch.nn.modules.")
    return FROZEN in layer._buffers or (is_torchs and "weight" in layer._parameters)


@dataclass
class _Multiplied:
    """What one layer multiplied with in a forward pass."""

    weights: list[Tensor] = field(default_factory=list)
    """Different ones only."""
    is_computed: bool = False

    def add(self, weight: Tensor, parameter: Tensor | None) -> None:
        self.is_computed |= weight is not parameter
        if not any(weight is known or torch.equal(weight, known) for known in self.weights):
            self.weights.append(weight)


def _stored(layer: QuantizedLayer, seen: _Multiplied | None) -> StoredWeight:
    frozen = layer._buffers.get(FROZEN)
    weight, is_computed = cast(Tensor, layer.weight) if frozen is None else frozen, frozen is not None
    if seen is not None:
        if len(seen.weights) != 1:
            raise HwbmpqError(
                f"layer '{layer.layer_name}' ({type(layer).__bases__[1].__name__}) multiplied with "
                f"{len(seen.weights) or 'no'} weights in a run on the example input: it cannot be stored as one",
                hint="leave the layer in float (32 bits), or give an example input that makes it run",
            )
        weight, is_computed = seen.weights[0], seen.is_computed
    codes, scale = canonical_codes(weight, layer.weight_bits, layer.channel_axis)
    if not bool(torch.isfinite(scale).all()):
        raise HwbmpqError(f"layer '{layer.layer_name}' holds infinite or NaN weights: it cannot be stored")
    dtype = torch.int8 if layer.weight_bits <= _BYTE_BITS else torch.int16
    return StoredWeight(
        codes=codes.to(dtype).cpu().contiguous(),
        scale=scale.cpu().contiguous(),
        bits=layer.weight_bits,
        channel_axis=layer.channel_axis,
        is_computed=is_computed,
    )


def canonical_codes(weight: Tensor, bits: int, channel_axis: int | None) -> tuple[Tensor, Tensor]:
    """Codes and scale, as floats, that quantizing their product gives again."""
    codes, scale = quantize_weight(weight.detach(), bits, channel_axis=channel_axis)
    if weight.dtype == scale.dtype:
        return codes, scale
    # Half precision rounds the product: at many bits, several codes then stand for one value.
    return quantize_weight((codes * scale).to(weight.dtype), bits, channel_axis=channel_axis)


@contextmanager
def _watched(found: dict[QuantizedLayer, _Multiplied]) -> Iterator[None]:
    """Inside, what the layers multiply with is added to what was ``found``, and stays in float."""

    def watch(layer: QuantizedLayer, weight: Tensor) -> Tensor:
        found[layer].add(weight, layer._parameters.get("weight"))
        return weight

    for layer in found:
        layer.quantize_weight = lambda weight, layer=layer: watch(layer, weight)  # type: ignore[method-assign, misc]
    try:
        yield
    finally:
        for layer in found:
            del layer.quantize_weight  # the method of the class comes to light again


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Inside, the network is in evaluation mode and no quantizer learns; after, it is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_float_inputs(layer for _, layer in quantized_layers(model)))
        try:
            model.eval()
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


@contextmanager
def _float_inputs(layers: Iterable[QuantizedLayer]) -> Iterator[None]:
    """Inside, no quantizer is asked for anything: one that was never calibrated would start with this input."""
    widths = {layer: layer.activation_bits for layer in layers}
    for layer in widths:
        layer.activation_bits = FLOAT_BITS
    try:
        yield
    finally:
        for layer, bits in widths.items():
            layer.activation_bits = bits
