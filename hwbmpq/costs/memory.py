"""Weights in storage."""

from typing import ClassVar

from hwbmpq.costs.figures import FigureLog
from hwbmpq.costs.geometry import divide_up
from hwbmpq.costs.model import LayerCost, LayerwiseCost
from hwbmpq.costs.registry import register
from hwbmpq.costs.table import Capacity, Number
from hwbmpq.hardware.formats import WidthPair
from hwbmpq.values import Layer

SCALE_BITS = 32


@register("weight_memory")
class WeightMemory(LayerwiseCost):
    """Bits of the weights as they are stored.

    By itself the paper's count, weights only; options add what a real file also holds.
    """

    unit: ClassVar[str] = "bit"
    formula: ClassVar[str] = (
        "weights * weight_bits [+ scales * 32] [+ biases * bias_bits] [padded to simd_channels]"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "precisions.bias_bits (with biases)",
        "precisions.simd_channels (with padding)",
        "memory that holds weights: size_bytes (with level)",
    )

    scales: bool = False
    """Count a 32-bit scale per layer."""
    per_channel: bool = False
    """Count a 32-bit scale per output channel."""
    biases: bool = False
    """Count a bias per output channel, as folding a norm leaves it, at the profile's ``bias_bits``."""
    padding: bool = False
    """Pad output channels to the profile's ``simd_channels``."""
    level: str | None = None
    """The memory that the weights have to fit in (default: the last that holds them, if there is one)."""

    def per_layer(self, figures: FigureLog) -> LayerCost:
        precisions = figures.profile.precisions
        bias_bits = precisions.bias_bits if self.biases else 0
        if bias_bits is None:
            raise figures.missing("precisions.bias_bits")
        simd = precisions.simd_channels

        def cost(layer: Layer, pair: WidthPair) -> Number:
            if self.padding and pair.weight.name not in simd:
                raise figures.missing(f"precisions.simd_channels.{pair.weight.name}")
            weights = _padded(layer, simd[pair.weight.name]) if self.padding else layer.parameters
            biases = 0 if layer.shares_weight_with else layer.out_channels * bias_bits
            return weights * pair.weight.bits + self._scales(layer) * SCALE_BITS + biases

        return cost

    def _scales(self, layer: Layer) -> int:
        if layer.shares_weight_with or not (self.scales or self.per_channel):
            return 0
        return layer.out_channels if self.per_channel else 1

    def capacity(self, figures: FigureLog) -> Capacity | None:
        return figures.capacity("weights", self.level)


def _padded(layer: Layer, channels: int) -> int:
    """Stored weights with output channels padded to a multiple."""
    return layer.parameters // layer.out_channels * divide_up(layer.out_channels, channels) * channels
