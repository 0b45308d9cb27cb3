"""Latency on the GAP8 cluster, whatever the widths."""

from typing import ClassVar

from hwbmpq.costs.figures import FigureLog
from hwbmpq.costs.geometry import as_window, divide_up, positions, repeats
from hwbmpq.costs.model import CyclesLatency, LayerCost
from hwbmpq.costs.registry import register
from hwbmpq.costs.table import Number
from hwbmpq.hardware.formats import WidthPair
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.values import Layer


@register("gap8")
class Gap8(CyclesLatency):
    """Milliseconds of PULP-NN's 8-bit kernels on GAP8's eight cores. Fewer bits save memory, not time."""

    formula: ClassVar[str] = (
        "conv: ceil(Wo/2) * ceil(Ho/8) * (2*Kh*Kw*Cin + ceil(Cout/4) * (15 + 14*ceil(Kh*Kw*Cin/4))); "
        "depthwise: 4 * ceil(C/4) * Ho * Wo * Kh * Kw; linear: ceil(Cin/2) * ceil(Cout/4); / clock"
    )

    def cycles(self, figures: FigureLog) -> LayerCost:
        known: dict[str, Number] = {}  # the same at every width

        def cost(layer: Layer, pair: WidthPair) -> Number:
            if layer.name not in known:
                known[layer.name] = gap8_cycles(layer)
            return known[layer.name]

        return cost

    def notes(self, profile: HardwareProfile) -> tuple[str, ...]:
        return (
            "PLiNIO's formula does not depend on the widths and is about 10 % optimistic: "
            "17.5 MAC/cycle on a 64-channel 3x3 layer against a published peak of 15.5 to 16",
        )


def gap8_cycles(layer: Layer) -> Number:
    """Cycles by PLiNIO's gap8_latency.py (Apache-2.0, github.com/eml-eda/plinio, 3d6b5e0)."""
    if layer.kind == "linear":
        return (
            divide_up(layer.in_channels, 2)
            * divide_up(layer.out_channels, 4)
            * positions(layer)
            * repeats(layer)
        )
    window = as_window(layer, "gap8")
    if layer.is_depthwise:
        return 4 * divide_up(layer.out_channels, 4) * window.pixels * window.kernel_positions * repeats(layer)
    depth = window.kernel_positions * layer.in_channels // layer.groups
    outputs = divide_up(layer.out_channels // layer.groups, 4)
    tile = 2 * depth + outputs * (15 + 14 * divide_up(depth, 4))
    tiles = window.images * divide_up(window.width, 2) * divide_up(window.height, 8)
    return layer.groups * tiles * tile * repeats(layer)
