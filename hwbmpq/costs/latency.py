"""Latency from peak rates: a roofline, or a table of rates."""

from typing import ClassVar

from hwbmpq.costs.figures import FigureLog
from hwbmpq.costs.geometry import traffic_bits
from hwbmpq.costs.model import MS_PER_SECOND, LayerCost, LayerwiseCost
from hwbmpq.costs.registry import register
from hwbmpq.costs.table import Number
from hwbmpq.hardware.formats import WidthPair
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import MemoryLevel
from hwbmpq.hardware.widths import op_of
from hwbmpq.values import Layer


@register("throughput_table")
class ThroughputTable(LayerwiseCost):
    """Milliseconds from the MACs per cycle that the profile lists per operation and widths."""

    unit: ClassVar[str] = "ms"
    formula: ClassVar[str] = "MACs / (efficiency * units * macs_per_cycle(op, w, a) * clock), or / macs_per_s"
    needs: ClassVar[tuple[str, ...]] = ("clock.core_hz (for macs_per_cycle)", "compute.table")

    def per_layer(self, figures: FigureLog) -> LayerCost:
        units = figures.profile.compute.units * figures.efficiency()
        rates: dict[tuple[str, tuple[int, ...], WidthPair], float] = {}

        def cost(layer: Layer, pair: WidthPair) -> Number:
            key = (op_of(layer), layer.kernel_size, pair)
            if key not in rates:
                field, rate = figures.row("compute", *key)
                rates[key] = rate * (figures.need("clock", "core_hz") if field == "macs_per_cycle" else 1.0)
            return layer.macs / (rates[key] * units) * MS_PER_SECOND

        return cost


@register("roofline")
class Roofline(ThroughputTable):
    """Milliseconds, the longer of computing and of moving weights and activations.

    Each memory that holds weights or activations moves its share at its bandwidth, all at the same time. A
    memory that is ``on_chip`` keeps up with the compute units.
    """

    formula: ClassVar[str] = (
        "max(MACs / (efficiency * units * macs_per_cycle * clock), bytes / bandwidth of each memory); "
        "bytes = weights * w / 8 + (inputs + outputs) * a / 8"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "clock.core_hz (for macs_per_cycle)",
        "compute.table",
        "memory that holds weights, activations: bandwidth_bytes_per_s or bytes_per_cycle",
    )
    weights_in: str | None = None
    """The memory that stores the weights (default: the last that holds them)."""
    activations_in: str | None = None
    """The memory that stores the activations (default: the last that holds them)."""

    def per_layer(self, figures: FigureLog) -> LayerCost:
        compute = super().per_layer(figures)
        weights = figures.level("weights", self.weights_in)
        activations = figures.level("activations", self.activations_in)
        weight_rate = _bytes_per_second(figures, weights)
        activation_rate = _bytes_per_second(figures, activations)
        is_shared = weights is activations

        def cost(layer: Layer, pair: WidthPair) -> Number:
            weight_bits, activation_bits = traffic_bits(layer, pair.weight.bits, pair.activation.bits)
            times = (weight_bits / 8 / weight_rate, activation_bits / 8 / activation_rate)
            moving = sum(times) if is_shared else max(times)
            return max(compute(layer, pair), moving * MS_PER_SECOND)

        return cost

    def notes(self, profile: HardwareProfile) -> tuple[str, ...]:
        efficiency = profile.compute.efficiency
        is_measured = any(
            "measured" in (row.kind, row.macs_per_cycle and row.macs_per_cycle.kind)
            for row in profile.compute.table
        )
        if not is_measured and (efficiency is None or efficiency.value == 1):
            return ("a peak roofline: real kernels are slower",)
        return ()


def _bytes_per_second(figures: FigureLog, level: MemoryLevel) -> float:
    if level.bandwidth_bytes_per_s is None and level.bytes_per_cycle is not None:
        return figures.need_of(level, "bytes_per_cycle") * figures.need("clock", "core_hz")
    if level.bandwidth_bytes_per_s is None and level.on_chip:
        return float("inf")
    return figures.need_of(level, "bandwidth_bytes_per_s")
