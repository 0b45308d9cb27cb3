"""The form of a graph that ONNX Runtime fuses into its 8-bit integer kernels.

Integers of up to 8 bits are widened to bytes, so widths below 8 save no time by themselves. A convolution's integer kernel
also rounds its output to a byte. Where the network does that itself, nothing changes; where it continues in float (additions,
functions), a rounding is added, with the range seen on calibration images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from hwbmpq.export.onnx.graph import GraphEditor, Product, bypass, constant_of, only_reader, take_type
from hwbmpq.export.onnx.kernels import (
    BYTE,
    Int8Weight,
    byte_zero,
    fits_matmul_nbits,
    has_known_bias,
    insert_int8_weight,
    int8_weight,
    to_matmul_nbits,
)
from hwbmpq.export.onnx.lowering import ActivationQuant, qdq_activation

_INTEGER_KERNELS = ("Conv", "Gemm", "MatMul")
_MADE_INTEGER = ("Conv", "ConvTranspose", "Gemm")
"""Float products between quantizers whose weights ONNX Runtime 1.31 would round to bytes."""
_ORDER_KEEPING = frozenset({"Flatten", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operations that pick or move values: rounding before them is the same as after."""


@dataclass(kw_only=True)
class Int8Plan:
    """Which products become integer kernels, and where their outputs must be rounded for that."""

    products: list[Product]
    quants: Mapping[ir.Node, ActivationQuant]
    accumulates_int32: bool = False
    """Whether the processor adds products of bytes in 32 bits: Arm's do, and x86 with VNNI."""
    integer: dict[Product, Int8Weight] = field(default_factory=dict)
    matmul_nbits: list[Product] = field(default_factory=list)
    """Linear layers whose inputs stay wide: MatMulNBits runs them."""
    rounded: dict[str, ir.Value] = field(default_factory=dict)
    """By name: the values that get a rounding of their own."""
    moved: dict[ir.Node, ir.Value] = field(default_factory=dict)
    """Quantizers that move up, to right behind a kernel, and the value that they then round."""

    def __post_init__(self) -> None:
        for product in self.products:
            weight = self._int8_weight(product)
            if weight is not None:
                self.integer[product] = weight
            elif fits_matmul_nbits(product):
                self.matmul_nbits.append(product)
        for product in self.integer:
            if product.node.op_type == "Conv":
                self._find_rounding(_tail(product.node))

    def input_quant(self, product: Product) -> ActivationQuant | None:
        value = product.node.inputs[0]
        producer = None if value is None else value.producer()
        return None if producer is None else self.quants.get(producer)

    def _int8_weight(self, product: Product) -> Int8Weight | None:
        quant = self.input_quant(product)
        if quant is None or quant.bits > BYTE or product.bits > BYTE:
            return None
        if product.node.op_type not in _INTEGER_KERNELS or not has_known_bias(product):
            return None
        return int8_weight(product, quant, accumulates_int32=self.accumulates_int32)

    def _find_rounding(self, tail: ir.Value) -> None:
        """Where a kernel's output is rounded: by its only reader, behind operations that keep order, or not at all."""
        reader = only_reader(tail)
        while reader is not None and reader.op_type in _ORDER_KEEPING:
            reader = only_reader(reader.outputs[0])
        if reader is not None and reader in self.quants and self.quants[reader].bits <= BYTE:
            self.moved[reader] = tail
        else:
            self.rounded[tail.name or ""] = tail


def lower_for_int8(plan: Int8Plan, ranges: Mapping[str, tuple[float, float]], editor: GraphEditor) -> None:
    """Turn all quantizers that fit into bytes; wider ones stay in float."""
    for product in plan.products:
        quant = plan.input_quant(product)
        if product in plan.integer and quant is not None:
            insert_int8_weight(product, plan.integer[product], quant, editor)
        elif product in plan.matmul_nbits:
            to_matmul_nbits(product, editor)
        else:
            weight = product.codes * product.aligned_scale
            product.node.replace_input_with(1, editor.constant(f"{product.layer}.weight_float", weight))
    for name, value in plan.rounded.items():
        _add_rounding(value, name, ranges[name], editor)
    for node, quant in plan.quants.items():
        if quant.bits <= BYTE:
            _int8_activation(quant, plan.moved.get(node), editor)
        else:
            qdq_activation(quant, editor)
    for node in list(editor.graph):
        _keep_in_float(node, editor)


def _keep_in_float(node: ir.Node, editor: GraphEditor) -> None:
    """Put a node without effect between a quantizer and a product with float weights, which would be rounded otherwise."""
    if node.op_type not in _MADE_INTEGER or _is_dequantized(node.inputs[1]):
        return
    value = node.inputs[0]
    if _is_dequantized(value):
        largest = float(np.finfo(np.float32).max)
        bounds = editor.bounds("float", -largest, largest)
        kept = editor.before(node, "Clip", [value, *bounds], f"{node.outputs[0].name}.input_kept")
        node.replace_input_with(0, kept)


def _is_dequantized(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def _tail(node: ir.Node) -> ir.Value:
    """The output of a convolution, or of the clip behind it that its kernel can include."""
    reader = only_reader(node.outputs[0])
    is_clip = reader is not None and (reader.op_type == "Relu" or _clip_bounds(reader) is not None)
    return reader.outputs[0] if is_clip and reader is not None else node.outputs[0]


def _clip_bounds(node: ir.Node | None) -> tuple[float, float] | None:
    if node is None or node.op_type != "Clip":
        return None
    bounds = [constant_of(value) for value in node.inputs[1:]]
    if len(bounds) != 2 or any(bound is None for bound in bounds):
        return None
    low, high = (float(bound) for bound in bounds if bound is not None)
    return low, high


def _int8_activation(quant: ActivationQuant, tail: ir.Value | None, editor: GraphEditor) -> None:
    """Round to bytes. With a ``tail``, right behind the kernel that it comes from: operations in between work on bytes."""
    last = quant.node.inputs[0]
    assert last is not None
    if tail is None:
        codes = _int8_codes(quant, _behind_pool(quant, last, editor), _ends(quant), quant.node, editor)
    else:
        reader = next(use.node for use in tail.uses())
        codes = _int8_codes(quant, *_without_clip(quant, tail), reader, editor)
        if reader is not quant.node:
            _run_on_codes(reader, quant.node, tail, codes)
            codes = last
    name = f"{quant.name}.input"
    step = editor.step(name, quant.scale, byte_zero(quant), ir.DataType.UINT8)
    bypass(quant.node, editor.before(quant.node, "DequantizeLinear", [codes, *step], f"{name}_values"))


def _ends(quant: ActivationQuant) -> tuple[int, int]:
    """The bytes that the values are clipped at."""
    low, high = quant.range
    return byte_zero(quant) + low, byte_zero(quant) + high


def _without_clip(quant: ActivationQuant, tail: ir.Value) -> tuple[ir.Value, tuple[int, int]]:
    """The input of a clip, and the bytes to clip at instead, so that the kernel before does not need it.

    Rounding keeps the order: clipping codes is the same as clipping values.
    """
    clip, (low, high) = tail.producer(), _ends(quant)
    bounds = _clip_bounds(clip)
    if clip is None or bounds is None or clip.inputs[0] is None:
        return tail, (low, high)
    steps = (
        float(np.clip(bound / quant.scale, low - byte_zero(quant), high - byte_zero(quant)))
        for bound in bounds
    )
    lowest, highest = (byte_zero(quant) + round(step) for step in steps)
    return clip.inputs[0], (lowest, highest)


def _behind_pool(quant: ActivationQuant, value: ir.Value, editor: GraphEditor) -> ir.Value:
    """Keep a quantizer behind a pool of floats.

    ONNX Runtime would round first, and pool bytes with a kernel many times slower than the one for floats.
    """
    producer = value.producer()
    if producer is None or producer.op_type != "MaxPool":
        return value
    floor = editor.constant(f"{quant.name}.input_low", quant.range[0] * np.float32(quant.scale))
    return editor.before(quant.node, "Max", [value, floor], f"{quant.name}.input_above")


def _int8_codes(
    quant: ActivationQuant, value: ir.Value, ends: tuple[int, int], reader: ir.Node, editor: GraphEditor
) -> ir.Value:
    """Quantize a value in front of its reader, and clip the codes if bytes have a larger range."""
    name = f"{quant.name}.input"
    step = editor.step(name, quant.scale, byte_zero(quant), ir.DataType.UINT8)
    codes = editor.before(reader, "QuantizeLinear", [value, *step], f"{name}_codes")
    if ends == (0, 2**BYTE - 1):
        return codes
    bounds = editor.bounds(name, *ends, ir.DataType.UINT8)
    return editor.before(reader, "Clip", [codes, *bounds], f"{name}_clipped")


def _run_on_codes(start: ir.Node, end: ir.Node, value: ir.Value, codes: ir.Value) -> None:
    """Let the operations from ``start`` up to ``end`` work on codes."""
    for use in list(value.uses()):
        if use.node is start:
            start.replace_input_with(use.idx, codes)
    node: ir.Node | None = start
    while node is not None and node is not end:
        node.outputs[0].type = ir.TensorType(ir.DataType.UINT8)
        node = only_reader(node.outputs[0])


def _add_rounding(value: ir.Value, name: str, seen: tuple[float, float], editor: GraphEditor) -> None:
    low, high = min(seen[0], 0.0), max(seen[1], 0.0)
    scale = max((high - low) / (2**BYTE - 1), np.finfo(np.float32).tiny)
    step = editor.step(f"{name}.output", scale, round(-low / scale), ir.DataType.UINT8)
    uses = list(value.uses())
    codes = editor.after(value, "QuantizeLinear", [value, *step], f"{name}.output_codes")
    rounded = editor.after(codes, "DequantizeLinear", [codes, *step], f"{name}.output_values")
    take_type(rounded, value)
    for use in uses:
        use.node.replace_input_with(use.idx, rounded)
    if value.is_graph_output():
        assert value.graph is not None
        value.graph.outputs[value.graph.outputs.index(value)] = rounded
