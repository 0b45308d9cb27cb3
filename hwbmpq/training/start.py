"""Training that starts where calibration ends: widths, scales and rounded weights of a run without training.

The calibrated network is kept. If training ends below it, on the images that epochs are compared on, it is the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hwbmpq.quant import quantized_layers
from hwbmpq.quant.learned import LearnedStepQuantizer
from hwbmpq.values import FLOAT_BITS

_INSIDE = 0.45
"""How far from its code a weight may start, in steps: past a half it would be another code."""


@dataclass(frozen=True, kw_only=True)
class CalibratedStart:
    """The network that training began with."""

    value: float
    """Of the task's metric, on the images that epochs are compared on."""
    model: dict[str, Any]
    allocator: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "model": self.model, "allocator": self.allocator}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "CalibratedStart":
        return cls(
            value=float(content["value"]),
            model=dict(content["model"]),
            allocator=dict(content["allocator"]),
        )


def float_weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the weights that ``restore_fractions`` will need, by layer: those with learned steps."""
    return {
        name: layer.weight.detach().clone()  # type: ignore[operator]
        for name, layer in quantized_layers(model)
        if isinstance(layer.weight_quantizer, LearnedStepQuantizer) and not layer.may_compute_weight
    }


@torch.no_grad()
def restore_fractions(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Change ``model`` in place: rounded weights move as close to what they were as their codes allow.

    The network computes what it did. But a weight in the middle between two codes can now change to the other one after a
    small step, while one that rounding left on its code would be as far from all others as can be.
    """
    for name, layer in quantized_layers(model):
        if name not in before or layer.weight_bits == FLOAT_BITS:
            continue
        weight: Tensor = layer.weight  # type: ignore[assignment]
        codes, scale = layer.weight_quantizer.codes_and_scale(weight)
        near = torch.clamp(before[name].to(scale.dtype) / scale, codes - _INSIDE, codes + _INSIDE) * scale
        kept, _ = layer.weight_quantizer.codes_and_scale(near)
        # At 16 bits the scale is that of the largest weight, which must not move.
        if torch.equal(kept, codes):
            weight.copy_(near)
