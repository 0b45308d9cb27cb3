"""Weights and biases as ONNX Runtime's 8-bit kernels take them."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from hwbmpq.export.onnx.edits import GraphEditor, constant_of
from hwbmpq.export.onnx.products import Product
from hwbmpq.export.onnx.qdq import ActivationQuant
from hwbmpq.quant.functional import largest_code

BYTE = 8
MIDDLE = 128
"""The byte that stands for zero where values have a sign."""
_LARGEST_PAIR = 2**15 - 1
"""x86 without VNNI adds two products of an unsigned and a signed byte in 16 bits; others add in 32."""
_LARGEST_BIAS = 2**30
"""Leaves room for the sum that it is added to."""
_FINE_BIAS = 2**20
"""Steps that the bias of a channel without weights is counted in."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Int8Weight:
    """What a kernel multiplies with, and what it adds."""

    codes: NDArray[np.int64]
    zero: int
    scale: NDArray[np.float64]
    """One number for each output channel."""
    bias: NDArray[np.int64] | None
    """In units of ``scale`` times the input's step."""

    @property
    def kind(self) -> ir.DataType:
        return ir.DataType.UINT8 if self.zero else ir.DataType.INT8


def int8_weight(product: Product, quant: ActivationQuant, *, accumulates_int32: bool) -> Int8Weight:
    """The bytes of a product's weight, and its bias.

    Signed bytes, or, where those could overflow, unsigned ones, whose kernel is exact and slower; with ``accumulates_int32``
    the processor adds in 32 bits and nothing overflows. Narrow integers are multiplied by the largest power of two that fits,
    and scales divided by it: a bias is rounded to the unit of the sum, which would be coarse otherwise.
    """
    top = largest_code(product.bits, signed=True)
    largest_input = quant.top + (MIDDLE if quant.signed else 0)
    room = largest_code(BYTE, signed=True)
    if not accumulates_int32:
        room = min(_LARGEST_PAIR // (2 * largest_input), room)
    zero = MIDDLE if top > room else 0
    shift = 0 if zero else (room // top).bit_length() - 1
    codes = product.codes.astype(np.float64) * 2**shift
    scale = np.broadcast_to(product.scale, codes.shape[product.axis]) / 2**shift
    bias = constant_of(product.node.inputs[2]) if len(product.node.inputs) > 2 else None
    if bias is None:
        return Int8Weight(codes=codes.astype(np.int64) + zero, zero=zero, scale=scale, bias=None)
    factor = _unit_factor(product, bias.astype(np.float64) / (scale * quant.scale))
    scale = scale * factor
    shape = [1] * codes.ndim
    shape[product.axis] = -1
    return Int8Weight(
        codes=np.round(codes / factor.reshape(shape)).astype(np.int64) + zero,
        zero=zero,
        scale=scale,
        bias=np.round(bias.astype(np.float64) / (scale * quant.scale)).astype(np.int64),
    )


def _unit_factor(product: Product, bias: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much the unit of each channel's sum has to grow, given its bias in that unit.

    A bias that the sum has no room for outweighs by far what is summed up: then weights may be rounded. A channel without
    weights takes the unit that suits its bias.
    """
    others = tuple(axis for axis in range(product.codes.ndim) if axis != product.axis)
    is_empty = ~product.codes.any(axis=others)
    size = np.abs(bias)
    needed = 2.0 ** np.ceil(np.log2(np.maximum(size / _LARGEST_BIAS, 1.0)))
    return np.where(is_empty & (size > 0), size / _FINE_BIAS, needed)


def has_known_bias(product: Product) -> bool:
    """Whether a product has no bias, or one that is a constant by output channel."""
    inputs = product.node.inputs
    if len(inputs) < 3 or inputs[2] is None:
        return True
    return constant_of(inputs[2]) is not None and product.axis == product.output_axis


def insert_int8_weight(
    product: Product, weight: Int8Weight, quant: ActivationQuant, editor: GraphEditor
) -> None:
    """Change the graph: the product reads bytes, and a bias of 32-bit integers."""
    name, node = f"{product.layer}.weight", product.node
    parts = [
        editor.constant(f"{name}_codes", weight.codes, weight.kind),
        editor.constant(f"{name}_scale", weight.scale),
        editor.constant(f"{name}_zero", np.full(len(weight.scale), weight.zero, np.int64), weight.kind),
    ]
    axis = {"axis": product.axis}
    node.replace_input_with(1, editor.before(node, "DequantizeLinear", parts, f"{name}_values", axis))
    if weight.bias is not None:
        name = f"{product.layer}.bias"
        parts = [
            editor.constant(f"{name}_codes", weight.bias, ir.DataType.INT32),
            editor.constant(f"{name}_scale", weight.scale * quant.scale),
        ]
        bias = editor.before(node, "DequantizeLinear", parts, f"{name}_values", {"axis": 0})
        node.replace_input_with(2, bias)
