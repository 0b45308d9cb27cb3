"""The form of a graph that ONNX Runtime fuses into its 8-bit integer kernels.

Integers of up to 8 bits are widened to bytes, so widths below 8 save no time by themselves. A convolution's integer kernel
also rounds its output to a byte. Where the network does that itself, nothing changes; where it goes on in float (additions,
functions), a rounding is added, with the range seen on calibration images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from hwbmpq.export.block_linear import can_be_block_linear, to_block_linear
from hwbmpq.export.onnx_edits import GraphEditor, bypass, constant_of, only_reader, take_type
from hwbmpq.export.products import Product
from hwbmpq.export.qdq import ActivationMark, lower_activation
from hwbmpq.quant.ranges import largest_code

BYTE = 8
_MIDDLE = 128
"""The byte that stands for zero where values have a sign."""
_LARGEST_BIAS = 2**31 - 1
_LARGEST_PAIR = 2**15 - 1
_INTEGER_KERNELS = ("Conv", "Gemm", "MatMul")


@dataclass(kw_only=True)
class Int8Plan:
    """Which products become integer kernels, and where their outputs have to be rounded for it."""

    products: list[Product]
    marks: Mapping[ir.Node, ActivationMark]
    integer: list[Product] = field(init=False)
    block_linear: list[Product] = field(init=False)
    """Linear layers whose inputs stay wide: MatMulNBits runs them."""
    rounded: dict[str, ir.Value] = field(init=False)
    """By name: the values that get a rounding of their own."""

    def __post_init__(self) -> None:
        self.integer = [product for product in self.products if self._is_integer(product)]
        self.block_linear = [
            product
            for product in self.products
            if product not in self.integer and can_be_block_linear(product)
        ]
        tails = [_tail(product.node) for product in self.integer if product.node.op_type == "Conv"]
        self.rounded = {tail.name or "": tail for tail in tails if not self._is_rounded(tail)}

    def input_mark(self, product: Product) -> ActivationMark | None:
        value = product.node.inputs[0]
        producer = None if value is None else value.producer()
        return None if producer is None else self.marks.get(producer)

    def _is_integer(self, product: Product) -> bool:
        mark = self.input_mark(product)
        if mark is None or mark.bits > BYTE or product.bits > BYTE:
            return False
        return product.node.op_type in _INTEGER_KERNELS and _bias_codes(product, mark) is not None

    def _is_rounded(self, tail: ir.Value) -> bool:
        """Whether the only reader rounds it to at most a byte."""
        reader = only_reader(tail)
        return reader is not None and reader in self.marks and self.marks[reader].bits <= BYTE


def lower_for_int8(plan: Int8Plan, ranges: Mapping[str, tuple[float, float]], editor: GraphEditor) -> None:
    """Turn all marks into bytes where they fit; what is wider stays in float."""
    for product in plan.products:
        mark = plan.input_mark(product)
        if product in plan.integer and mark is not None:
            _integer_weight(product, mark, editor)
        elif product in plan.block_linear:
            to_block_linear(product, editor)
        else:
            weight = product.codes * product.aligned_scale
            product.node.replace_input_with(1, editor.constant(f"{product.layer}.weight_float", weight))
    for name, value in plan.rounded.items():
        _add_rounding(value, name, ranges[name], editor)
    for mark in plan.marks.values():
        (_byte_activation if mark.bits <= BYTE else lower_activation)(mark, editor)


def _tail(node: ir.Node) -> ir.Value:
    """What leaves a convolution and the clip that its kernel can do on the way."""
    reader = only_reader(node.outputs[0])
    is_clip = reader is not None and (reader.op_type == "Relu" or _clip_bounds(reader) is not None)
    return reader.outputs[0] if is_clip and reader is not None else node.outputs[0]


def _clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    if node.op_type != "Clip":
        return None
    bounds = [constant_of(value) for value in node.inputs[1:]]
    if len(bounds) != 2 or any(bound is None for bound in bounds):
        return None
    low, high = (float(bound) for bound in bounds if bound is not None)
    return low, high


def _byte_activation(mark: ActivationMark, editor: GraphEditor) -> None:
    zero = _MIDDLE if mark.signed else 0
    low, high = (zero + code for code in mark.ends.values())
    value = mark.node.inputs[0]
    assert value is not None
    clip = value.producer()
    bounds = _clip_bounds(clip) if clip is not None and only_reader(value) is mark.node else None
    if bounds is not None and clip is not None:
        # Rounding keeps the order, so that clipping codes is the same, and the kernel before can do without.
        codes = [zero + round(bound / mark.scale) for bound in bounds]
        low, high = max(low, codes[0]), min(high, codes[1])
        assert clip.inputs[0] is not None
        bypass(clip, clip.inputs[0])
        value = mark.node.inputs[0]
    name = f"{mark.name}.input"
    step = _step(name, mark.scale, zero, editor)
    value = editor.before(mark.node, "QuantizeLinear", [value, *step], f"{name}_codes")
    if (low, high) != (0, 2**BYTE - 1):
        ends = [
            editor.constant(f"{name}_{end}_code", np.int64(code), ir.DataType.UINT8)
            for end, code in (("low", low), ("high", high))
        ]
        value = editor.before(mark.node, "Clip", [value, *ends], f"{name}_clipped")
    bypass(mark.node, editor.before(mark.node, "DequantizeLinear", [value, *step], f"{name}_values"))


def _add_rounding(value: ir.Value, name: str, seen: tuple[float, float], editor: GraphEditor) -> None:
    low, high = min(seen[0], 0.0), max(seen[1], 0.0)
    scale = max((high - low) / (2**BYTE - 1), np.finfo(np.float32).tiny)
    step = _step(f"{name}.output", scale, round(-low / scale), editor)
    uses = list(value.uses())
    codes = editor.after(value, "QuantizeLinear", [value, *step], f"{name}.output_codes")
    rounded = editor.after(codes, "DequantizeLinear", [codes, *step], f"{name}.output_values")
    take_type(rounded, value)
    for use in uses:
        use.node.replace_input_with(use.idx, rounded)
    if value.is_graph_output():
        assert value.graph is not None
        value.graph.outputs[value.graph.outputs.index(value)] = rounded


def _step(name: str, scale: float, zero: int, editor: GraphEditor) -> list[ir.Value]:
    return [
        editor.constant(f"{name}_scale", scale),
        editor.constant(f"{name}_zero", np.int64(zero), ir.DataType.UINT8),
    ]


def _integer_weight(product: Product, mark: ActivationMark, editor: GraphEditor) -> None:
    """Signed bytes, or unsigned ones where those would overflow.

    x86 without VNNI adds two products of an unsigned and a signed byte in 16 bits. Its kernel for two unsigned bytes is
    exact, and slower.
    """
    name = f"{product.layer}.weight"
    largest_byte = mark.top + (_MIDDLE if mark.signed else 0)
    overflows = 2 * largest_byte * largest_code(product.bits, signed=True) > _LARGEST_PAIR
    kind, zero = (ir.DataType.UINT8, _MIDDLE) if overflows else (ir.DataType.INT8, 0)
    scale = np.broadcast_to(product.scale, product.codes.shape[product.axis])
    codes = editor.constant(f"{name}_codes", product.codes.astype(np.int64) + zero, kind)
    step = [
        editor.constant(f"{name}_scale", scale),
        editor.constant(f"{name}_zero", np.full(len(scale), zero, np.int64), kind),
    ]
    node = product.node
    weight = editor.before(node, "DequantizeLinear", [codes, *step], f"{name}_values", {"axis": product.axis})
    node.replace_input_with(1, weight)
    bias = _bias_codes(product, mark)
    if bias is not None and bias.size:
        bias_step = editor.constant(f"{product.layer}.bias_scale", scale * mark.scale)
        kept = editor.constant(f"{product.layer}.bias_codes", bias, ir.DataType.INT32)
        node.replace_input_with(
            2,
            editor.before(
                node, "DequantizeLinear", [kept, bias_step], f"{product.layer}.bias_values", {"axis": 0}
            ),
        )


def _bias_codes(product: Product, mark: ActivationMark) -> NDArray[np.int64] | None:
    """The bias in units of the sum, empty if there is none; None if it does not fit, so that the layer stays in float."""
    if len(product.node.inputs) < 3 or product.node.inputs[2] is None:
        return np.zeros(0, np.int64)
    bias = constant_of(product.node.inputs[2])
    if bias is None or product.axis != product.output_axis:
        return None
    codes = np.round(bias.astype(np.float64) / (product.scale * mark.scale))
    return codes.astype(np.int64) if np.all(np.abs(codes) <= _LARGEST_BIAS) else None
