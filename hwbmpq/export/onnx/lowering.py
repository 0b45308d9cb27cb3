"""Placeholders become quantization nodes of a standard.

``qdq_*`` insert QuantizeLinear and DequantizeLinear, which any ONNX runtime understands; ``qonnx_*`` insert one Quant
node of any width, which QONNX, FINN and hls4ml read.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from hwbmpq.errors import HwbmpqError
from hwbmpq.export.onnx.graph import GraphEditor, HeldWeight, IntegerWeight, Product, bypass
from hwbmpq.export.onnx.trace import ACTIVATION, TracedGraph
from hwbmpq.quant.functional import SMALLEST_ALPHA, CodeRange, largest_code
from hwbmpq.quant.quantizers import OBSERVED_BITS, InputQuantizer

_SIGNED = {2: ir.DataType.INT2, 4: ir.DataType.INT4, 8: ir.DataType.INT8, 16: ir.DataType.INT16}
_UNSIGNED = {2: ir.DataType.UINT2, 4: ir.DataType.UINT4, 8: ir.DataType.UINT8, 16: ir.DataType.UINT16}
TWO_BIT_OPSET = 25
"""The first with 2-bit integers."""


_BYTE, _NARROWEST = 8, 2


def stored_width(bits: int, narrowest: int = _NARROWEST) -> int:
    """The width of the ONNX integers that hold ``bits``: ONNX has 2, 4, 8 and 16, older runtimes only some of them.

    >>> [stored_width(bits) for bits in (2, 3, 5, 16)], stored_width(2, narrowest=8)
    ([2, 4, 8, 16], 8)
    """
    return next(width for width in _SIGNED if width >= max(bits, narrowest))


def storage_type(bits: int, *, signed: bool, narrowest: int = _NARROWEST) -> ir.DataType:
    return (_SIGNED if signed else _UNSIGNED)[stored_width(bits, narrowest)]


@dataclass(frozen=True, kw_only=True, eq=False)
class ActivationQuant:
    """A node that rounds a tensor for its readers."""

    node: ir.Node
    name: str
    bits: int
    signed: bool
    scale: float
    """The float32 number that the network multiplies codes with."""
    range: CodeRange
    """The codes that the values are clipped at."""

    @property
    def is_lopsided(self) -> bool:
        """Whether fewer codes are below zero than above; they are stored unsigned then, with a zero point."""
        low, top = self.range
        return self.signed and low != -top

    @property
    def zero(self) -> int:
        """The integer that stands for zero."""
        return -self.range[0] if self.is_lopsided else 0


def activation_quants(graph: TracedGraph) -> Iterator[ActivationQuant]:
    for node in graph.placeholders(ACTIVATION):
        quantizer = graph.quantizers[node.attributes["quantizer"].as_int()]
        bits = node.attributes["bits"].as_int()
        name = quantizer.name.removeprefix("layer ").strip("'")
        yield ActivationQuant(
            node=node,
            name=name,
            bits=bits,
            signed=quantizer.signed,
            scale=step_size(quantizer, bits),
            range=quantizer.codes_at(bits),
        )


def step_size(quantizer: InputQuantizer, bits: int) -> float:
    """The factor of a quantizer's codes at a width, as the network computes it."""
    if not _has_step(quantizer, bits):
        raise HwbmpqError(
            f"the input of {quantizer.name} has no range at {bits} bits yet: a file could not find one later",
            hint="run the network once on real inputs, model.eval()(images), then export it",
        )
    point = quantizer.observed if bits == OBSERVED_BITS else quantizer.alpha
    alpha = point.detach().float().cpu().clamp_min(SMALLEST_ALPHA)
    return (alpha / quantizer.codes_at(bits)[1]).item()


def _has_step(quantizer: InputQuantizer, bits: int) -> bool:
    known = quantizer.calibration
    if bits == OBSERVED_BITS:
        return known.has_range
    saw_only_zeros = known.has_range and not quantizer.observed.item()  # any step size will do
    return known.has_alpha or saw_only_zeros


def qdq_activation(quant: ActivationQuant, editor: GraphEditor, narrowest: int = _NARROWEST) -> None:
    value = quant.node.inputs[0]
    assert value is not None
    name = f"{quant.name}.input"
    width = stored_width(quant.bits, narrowest)
    kind = storage_type(quant.bits, signed=quant.signed and not quant.is_lopsided, narrowest=narrowest)
    step = editor.step(name, quant.scale, quant.zero, kind)
    lowest, highest = (float(code * np.float32(quant.scale)) for code in quant.range)
    low, high = editor.bounds(name, lowest, highest)
    if width < _BYTE:
        # ONNX Runtime 1.31 moves a quantizer in front of a reshape, which it has no kernel for at 2 bits.
        value = editor.before(quant.node, "Max", [value, low], f"{name}_above")
    if width == _NARROWEST:
        # Its 2-bit quantizer wraps around where a value is more than 2^31 steps.
        value = editor.before(quant.node, "Min", [value, high], f"{name}_within")
    value = editor.before(quant.node, "QuantizeLinear", [value, *step], f"{name}_codes")
    value = editor.before(quant.node, "DequantizeLinear", [value, *step], f"{name}_values")
    # Types hold codes that the quantizer never gives. Also, ONNX Runtime 1.31 fuses a product right behind a
    # DequantizeLinear: at 2 and 4 bits with kernels that do not fit, at 8 bits with ones that overflow on x86 without VNNI,
    # and at 16 bits it rounds float weights to bytes and biases to units so small that they overflow.
    bypass(quant.node, editor.before(quant.node, "Clip", [value, low, high], f"{name}_clipped"))


def qdq_weight(product: Product, editor: GraphEditor, narrowest: int = _NARROWEST) -> None:
    """The product reads integers; a width that ONNX does not have is stored in the next wider type."""
    product.node.replace_input_with(
        1, _dequantized(product, editor, narrowest, clipped=product.node.op_type == "MatMul")
    )


def qdq_held_weight(weight: HeldWeight, editor: GraphEditor, narrowest: int = _NARROWEST) -> None:
    """All that read the weight read integers."""
    bypass(weight.node, _dequantized(weight, editor, narrowest, clipped=True))


def _dequantized(weight: IntegerWeight, editor: GraphEditor, narrowest: int, *, clipped: bool) -> ir.Value:
    name = f"{weight.layer}.weight"
    kind = storage_type(weight.bits, signed=True, narrowest=narrowest)
    codes = editor.constant(f"{name}_codes", weight.codes, kind)
    scale = editor.constant(f"{name}_scale", weight.scale)
    axis = {"axis": weight.axis} if weight.scale.ndim else {}
    value = editor.before(weight.node, "DequantizeLinear", [codes, scale], f"{name}_quantized", axis)
    if not clipped:
        return value
    # Without it, ONNX Runtime 1.31 would use a kernel that rounds inputs to bytes and is wrong at 2 bits.
    largest = float(np.max(weight.scale)) * largest_code(weight.bits, signed=True)
    bounds = editor.bounds(name, -largest, largest)
    return editor.before(weight.node, "Clip", [value, *bounds], f"{name}_values")


QUANT_DOMAIN = "qonnx.custom_op.general"


def qonnx_activation(quant: ActivationQuant, editor: GraphEditor) -> None:
    value = quant.node.inputs[0]
    assert value is not None
    name = f"{quant.name}.input"
    scale = editor.constant(f"{name}_scale", quant.scale)
    node = _quant_node(
        editor,
        quant.node,
        value,
        scale,
        quant.bits,
        name,
        signed=quant.signed and not quant.is_lopsided,
        zero=quant.zero,
    )
    bypass(quant.node, node)


def qonnx_weight(product: Product, editor: GraphEditor) -> None:
    """Weights in float whose Quant node gives back the integers: QONNX stores them so."""
    product.node.replace_input_with(1, _quantized(product, editor))


def qonnx_held_weight(weight: HeldWeight, editor: GraphEditor) -> None:
    bypass(weight.node, _quantized(weight, editor))


def _quantized(weight: IntegerWeight, editor: GraphEditor) -> ir.Value:
    name = f"{weight.layer}.weight"
    values = editor.constant(f"{name}_float", weight.codes * weight.aligned_scale)
    scale = editor.constant(f"{name}_scale", weight.aligned_scale)
    return _quant_node(editor, weight.node, values, scale, weight.bits, name, signed=True)


def _quant_node(
    editor: GraphEditor,
    node: ir.Node,
    value: ir.Value,
    scale: ir.Value,
    bits: int,
    name: str,
    *,
    signed: bool,
    zero: int = 0,
) -> ir.Value:
    """Signed ranges are symmetric, which QONNX calls narrow."""
    zero_point = editor.constant(f"{name}_zero" if zero else "no_zero_point", np.float32(zero))
    settings = [scale, zero_point, editor.constant("width", np.float32(bits))]
    return editor.before(
        node,
        "Quant",
        [value, *settings],
        f"{name}_quantized",
        {"signed": int(signed), "narrow": int(signed), "rounding_mode": "ROUND"},
        domain=QUANT_DOMAIN,
    )
