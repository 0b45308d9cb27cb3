"""Multiplier arrays whose speed follows from their size: bit-serial overlays and Bit Fusion."""

from typing import ClassVar, Literal

from hwbmpq.costs.figures import FigureLog
from hwbmpq.costs.geometry import as_gemm, as_window, divide_up, repeats
from hwbmpq.costs.model import CyclesLatency, LayerCost
from hwbmpq.costs.registry import register
from hwbmpq.costs.table import Number
from hwbmpq.errors import UnsupportedPrecisionError
from hwbmpq.hardware.formats import WidthPair
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.values import Layer


class _ArrayLatency(CyclesLatency):
    needs: ClassVar[tuple[str, ...]] = (*CyclesLatency.needs, "compute.array")
    array_type: ClassVar[str] = ""

    def dims(self, figures: FigureLog) -> tuple[int, ...]:
        array = figures.profile.compute.array
        if array is None or array.type != self.array_type:
            raise figures.missing(f"compute.array of type {self.array_type}")
        return array.dims


@register("bit_serial")
class BitSerial(_ArrayLatency):
    """Milliseconds on a bit-serial matrix multiplier (BISMO): time grows with the product of the widths."""

    formula: ClassVar[str] = (
        "groups * ceil(M / Dm) * ceil(N / Dn) * ceil(K / Dk) * w * a / clock; M positions, N outputs, K inputs * kernel"
    )
    array_type: ClassVar[str] = "bit_serial"

    def cycles(self, figures: FigureLog) -> LayerCost:
        rows, depth, columns = self.dims(figures)

        def cost(layer: Layer, pair: WidthPair) -> Number:
            _integers_only(layer, pair, "bit_serial", widest=64)
            gemm = as_gemm(layer)
            tiles = (
                divide_up(gemm.rows, rows) * divide_up(gemm.columns, columns) * divide_up(gemm.depth, depth)
            )
            return gemm.groups * tiles * pair.weight.bits * pair.activation.bits * repeats(layer)

        return cost

    def notes(self, profile: HardwareProfile) -> tuple[str, ...]:
        return ("ideal bit-serial timing: fetching, computing and storing fully overlap",)


@register("bit_fusion")
class BitFusion(_ArrayLatency):
    """Milliseconds on an array of Bit Fusion units, which split into more multipliers at fewer bits."""

    formula: ClassVar[str] = (
        "pf = (8 // max(a, 2)) * (8 // max(w, 2)); direct: ceil(Cout / columns) * Ho * Wo * Kh * Kw * "
        "ceil(Cin / (rows * pf)); im2col: Ho * Wo * ceil(Cout / columns) * ceil(Kh * Kw * Cin / (rows * pf)); / clock"
    )
    array_type: ClassVar[str] = "bit_fusion"
    mapping: Literal["direct", "im2col"] = "direct"
    """How a convolution is laid on the array."""

    def cycles(self, figures: FigureLog) -> LayerCost:
        rows, columns = self.dims(figures)

        def cost(layer: Layer, pair: WidthPair) -> Number:
            lanes = rows * fusion_factor(layer, pair)
            window = as_window(layer, "bit_fusion")
            inputs = layer.in_channels // layer.groups
            if self.mapping == "direct":
                depth = window.kernel_positions * divide_up(inputs, lanes)
            else:
                depth = divide_up(window.kernel_positions * inputs, lanes)
            blocks = layer.groups * divide_up(layer.out_channels // layer.groups, columns)
            return blocks * window.pixels * depth * repeats(layer)

        return cost


def fusion_factor(layer: Layer, pair: WidthPair) -> int:
    """MACs per cycle of one fusion unit: 1 at W8A8, 4 at W4A4, 16 at W2A2."""
    _integers_only(layer, pair, "bit_fusion", widest=8)
    return (8 // max(pair.activation.bits, 2)) * (8 // max(pair.weight.bits, 2))


def _integers_only(layer: Layer, pair: WidthPair, cost_model: str, *, widest: int) -> None:
    formats = (pair.weight, pair.activation)
    if any(fmt.is_float or fmt.bits > widest for fmt in formats):
        limit = f" of at most {widest} bits" if widest < 64 else ""
        raise UnsupportedPrecisionError(
            f"layer {layer.name!r}: the cost model {cost_model!r} knows integers{limit}, not {pair}"
        )
