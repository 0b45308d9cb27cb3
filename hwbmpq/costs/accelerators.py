"""Latency on accelerators, counted in cycles: GAP8, NE16, bit-serial overlays and Bit Fusion."""

from typing import ClassVar, Literal

from hwbmpq.costs.geometry import Window, as_gemm, as_window, divide_up, positions, repeats
from hwbmpq.costs.model import CyclesLatency, FigureLog, LayerCost, register
from hwbmpq.costs.table import Number
from hwbmpq.errors import UnsupportedLayerError, UnsupportedPrecisionError
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import WidthPair
from hwbmpq.values import Layer


@register("gap8")
class Gap8(CyclesLatency):
    """Milliseconds of PULP-NN's 8-bit kernels on GAP8's eight cores. Fewer bits save memory, not time."""

    formula: ClassVar[str] = (
        "conv: ceil(Wo/2) * ceil(Ho/8) * (2*Kh*Kw*Cin + ceil(Cout/4) * (15 + 14*ceil(Kh*Kw*Cin/4))); "
        "depthwise: 4 * ceil(C/4) * Ho * Wo * Kh * Kw; linear: ceil(Cin/2) * ceil(Cout/4); / clock"
    )

    def cycles(self, figures: FigureLog) -> LayerCost:
        def cost(layer: Layer, pair: WidthPair) -> Number:
            _integers_only(layer, pair, "gap8", widest=8)
            return gap8_cycles(layer)  # the same at every width

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
        return ("an analytic model of the accelerator alone: moving tensors in and out is not in it",)

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
