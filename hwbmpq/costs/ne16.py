"""Latency on NE16, the accelerator of GAP9."""

from typing import ClassVar, Literal

from hwbmpq.costs.figures import FigureLog
from hwbmpq.costs.gap8 import gap8_cycles
from hwbmpq.costs.geometry import Window, as_window, divide_up, repeats
from hwbmpq.costs.model import CyclesLatency, LayerCost
from hwbmpq.costs.registry import register
from hwbmpq.costs.table import Number
from hwbmpq.errors import UnsupportedLayerError, UnsupportedPrecisionError
from hwbmpq.hardware.formats import WidthPair
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.values import Layer

# PLiNIO's ne16_latency.py (Apache-2.0, github.com/eml-eda/plinio, 3d6b5e0), checked against its integers.
_LOAD_3X3, _LOAD_1X1 = 31, 19
_TILE = 3  # output pixels per side
_INPUTS, _OUTPUTS = 16, 32  # channels at a time


@register("ne16")
class Ne16(CyclesLatency):
    """Milliseconds on NE16: weight bits cost time in 3x3 and depthwise filters, not in 1x1.

    NE16 has 1x1, 3x3 and depthwise 3x3 filters, linear layers as 1x1, and 8-bit activations here.
    """

    formula: ClassVar[str] = (
        "ceil(Ho/3) * ceil(Wo/3) * sum over blocks of k <= 32 outputs of "
        "[ceil(Cin/16) * (load + 6 + mv(k) + 2) + (9 + k) + 13] / clock; "
        "3x3: load 31, mv = 6 + k*w; 1x1: load 19, mv = 6 + k"
    )
    other_kernels: Literal["error", "gap8"] = "error"
    """Layers that NE16 has no filter for: refuse, or time them on the cluster by GAP8's formula."""

    def cycles(self, figures: FigureLog) -> LayerCost:
        return self.count

    def count(self, layer: Layer, pair: WidthPair) -> Number:
        """Cycles of one layer."""
        if pair.activation.is_float or pair.activation.bits != 8 or pair.weight.bits > 8:
            raise UnsupportedPrecisionError(
                f"layer {layer.name!r}: the cost model 'ne16' knows 2 to 8-bit weights with 8-bit activations, not {pair}"
            )
        if not self._has_filter(layer):
            if self.other_kernels == "gap8":
                return gap8_cycles(layer)
            raise UnsupportedLayerError(
                f"layer {layer.name!r}: NE16 has 1x1, 3x3 and depthwise 3x3 filters, not "
                f"{layer.kind} {'x'.join(map(str, layer.kernel_size))} with {layer.groups} groups",
                hint="set `other_kernels: gap8` in the profile's cost_models.latency to time it on the cluster",
            )
        window = as_window(layer, "ne16")
        tiles = window.images * divide_up(window.height, _TILE) * divide_up(window.width, _TILE)
        return tiles * _tile_cycles(layer, window, pair.weight.bits) * repeats(layer)

    def origin(self, layer: Layer, pair: WidthPair) -> str:
        return "" if self._has_filter(layer) else "no NE16 filter: cluster, GAP8 formula (estimate)"

    def notes(self, profile: HardwareProfile) -> tuple[str, ...]:
        return ("an analytic model of the accelerator alone: moving tensors to and fro is not in it",)

    @staticmethod
    def _has_filter(layer: Layer) -> bool:
        if layer.kind == "linear":
            return True
        is_plain = layer.groups == 1 and layer.kernel_size in ((1, 1), (3, 3))
        return layer.kind == "conv2d" and (is_plain or (layer.is_depthwise and layer.kernel_size == (3, 3)))


def _tile_cycles(layer: Layer, window: Window, weight_bits: int) -> int:
    if layer.is_depthwise:
        blocks, rest = divmod(layer.out_channels, _INPUTS)
        return blocks * _depthwise(_INPUTS, weight_bits) + (_depthwise(rest, weight_bits) if rest else 0)
    inputs = divide_up(layer.in_channels, _INPUTS)

    def block(outputs: int) -> int:
        if window.kernel_positions == 9:
            load, multiply = _LOAD_3X3, 6 + outputs * weight_bits
        else:
            load, multiply = _LOAD_1X1, 6 + outputs
        return inputs * (load + 6 + multiply + 2) + (9 + outputs) + 13

    blocks, rest = divmod(layer.out_channels, _OUTPUTS)
    return blocks * block(_OUTPUTS) + (block(rest) if rest else 0)


def _depthwise(channels: int, weight_bits: int) -> int:
    return _LOAD_3X3 + (6 + channels) + (6 + channels * weight_bits) + 2 + (9 + channels) + 13
