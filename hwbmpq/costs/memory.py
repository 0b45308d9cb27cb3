"""Weights in storage."""

from typing import ClassVar

from hwbmpq.costs.figures import FigureLog
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
        "memory that holds weights (with level)",
    )

    scales: bool = False
    """Count a 32-bit scale per layer."""
    per_channel: bool = False
    """Count a 32-bit scale per output channel."""
    biases: bool = False
    """Count the biases at the profile's ``bias_bits``."""
    padding: bool = False
    """Pad output channels to the profile's ``simd_channels``."""
    level: str | None = None
    """The memory that the weights have to fit in."""

    def per_layer(self, figures: FigureLog) -> LayerCost:
        precisions = figures.profile.precisions
        bias_bits = precisions.bias_bits if self.biases else 0
        if bias_bits is None:
            raise figures.missing("precisions.bias_bits")
        channels = precisions.simd_channels if self.padding else {}
        if self.padding and not channels:
            raise figures.missing("precisions.simd_channels")

        def cost(layer: Layer, pair: WidthPair) -> Number:
            weights = _padded(layer, channels.get(pair.weight.name, 1)) * pair.weight.bits
            return weights + self._scales(layer) * SCALE_BITS + layer.bias_parameters * bias_bits

        return cost

    def _scales(self, layer: Layer) -> int:
        if layer.shares_weight_with or not (self.scales or self.per_channel):
            return 0
        return layer.out_channels if self.per_channel else 1

    def capacity(self, figures: FigureLog) -> Capacity | None:
        if self.level is None:
            return None
        level = figures.level("weights", self.level)
        return Capacity(level=level.name, bits=8 * figures.need_of(level, "size_bytes"))


def _padded(layer: Layer, channels: int) -> int:
    """Stored weights with output channels padded to a multiple."""
    full = -(-layer.out_channels // channels) * channels
    return layer.parameters // layer.out_channels * full if channels > 1 else layer.parameters
