"""Bit operations: a proxy without a device."""

from typing import ClassVar

from hwbmpq.costs.figures import FigureLog
from hwbmpq.costs.model import LayerCost, LayerwiseCost
from hwbmpq.costs.registry import register
from hwbmpq.hardware.profile import HardwareProfile


@register("bops")
class BitOperations(LayerwiseCost):
    """Bit operations, MACs times both widths: a proxy, not the time or energy of a real device."""

    unit: ClassVar[str] = "bit-op"
    formula: ClassVar[str] = "MACs * weight_bits * activation_bits"

    def per_layer(self, figures: FigureLog) -> LayerCost:
        return lambda layer, pair: layer.macs * pair.weight.bits * pair.activation.bits

    def notes(self, profile: HardwareProfile) -> tuple[str, ...]:
        return ("bit operations are a proxy: real devices gain less from fewer bits",)
