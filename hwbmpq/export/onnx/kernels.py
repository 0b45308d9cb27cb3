"""Products in the form that ONNX Runtime's integer kernels take.

8-bit kernels take bytes, and biases of 32-bit integers. MatMulNBits takes narrow weights and float inputs, for one input
at a time: it reads the weights at their width, which dominates the time, and was 3 to 8 times as fast as float on x86
with AVX2. It rounds its input to bytes, block by block, each with its own range.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from hwbmpq.export.onnx.graph import GraphEditor, Product, along, bypass, constant_of
from hwbmpq.export.onnx.lowering import ActivationQuant, stored_width
from hwbmpq.quant.functional import largest_code

BYTE = 8
MIDDLE = 128
"""The byte that stands for zero where values have a sign."""
_LARGEST_PAIR = 2**15 - 1
"""x86 without VNNI adds two products of an unsigned and a signed byte in 16 bits; others add in 32."""
_LARGEST_BIAS = 2**30
"""Leaves headroom for the sum that it is added to."""
_FINE_BIAS = 2**20
"""The bias of a channel without weights is this many steps."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Int8Weight:
    """The weight and bias of a kernel."""

    codes: NDArray[np.int64]
    zero: int
    scale: NDArray[np.float64]
    """One number for each output channel."""
    bias: NDArray[np.int64] | None
    """In units of ``scale`` times the input's step."""

    @property
    def kind(self) -> ir.DataType:
        return ir.DataType.UINT8 if self.zero else ir.DataType.INT8


def byte_zero(quant: ActivationQuant) -> int:
    """The byte that stands for zero in an input's codes."""
    return MIDDLE if quant.signed and not quant.is_lopsided else quant.zero


def int8_weight(product: Product, quant: ActivationQuant, *, accumulates_int32: bool) -> Int8Weight:
    """The bytes of a product's weight, and its bias.

    Signed bytes, or, where those could overflow, unsigned ones, whose kernel is exact and slower; with ``accumulates_int32``
    the processor adds in 32 bits and nothing overflows. Narrow integers are multiplied by the largest power of two that fits,
    and scales divided by it: a bias is rounded to the unit of the sum, which would be coarse otherwise.
    """
    top = largest_code(product.bits, signed=True)
    largest_input = quant.range[1] + byte_zero(quant)
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
    return Int8Weight(
        codes=np.round(codes / along(factor, product.axis, codes.ndim)).astype(np.int64) + zero,
        zero=zero,
        scale=scale,
        bias=np.round(bias.astype(np.float64) / (scale * quant.scale)).astype(np.int64),
    )


def _unit_factor(product: Product, bias: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much the unit of each channel's sum must grow, given its bias in that unit.

    A bias too large for the sum dominates it by far: then weights may be rounded. A channel without weights takes the
    unit that suits its bias.
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


MATMUL_NBITS_DOMAIN = "com.microsoft"
_WIDEST = 8
_BLOCKS = (128, 64, 32, 16)
"""Weights that share a scale; powers of two."""
_BYTES_INSIDE = 4
"""The accuracy level at which the kernel computes with bytes; with floats it is slower than a plain float product."""


def fits_matmul_nbits(product: Product) -> bool:
    """Whether a product is a plain linear layer on single vectors, with weights that the kernel takes."""
    node = product.node
    if node.op_type != "Gemm" or product.bits > _WIDEST or product.codes.shape[1] < _BLOCKS[-1]:
        return False
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    return factors == [1.0, 1.0] and node.attributes.get_int("transB", 0) == 1


def to_matmul_nbits(product: Product, editor: GraphEditor) -> None:
    """Change the graph: the kernel replaces the product, and an addition its bias."""
    node = product.node
    outputs, inputs = product.codes.shape
    block = next(size for size in _BLOCKS if size <= inputs)
    width = stored_width(product.bits)
    blocks = -(-inputs // block)
    scale = np.repeat(np.broadcast_to(product.scale, outputs), blocks)
    weights = editor.constant(
        f"{product.layer}.weight_codes", _blocked(product.codes, width, block), ir.DataType.UINT8
    )
    scales = editor.constant(f"{product.layer}.weight_scale", scale)
    value = editor.before(
        node,
        "MatMulNBits",
        [node.inputs[0], weights, scales],
        f"{product.layer}.product",
        {"K": inputs, "N": outputs, "bits": width, "block_size": block, "accuracy_level": _BYTES_INSIDE},
        domain=MATMUL_NBITS_DOMAIN,
    )
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        value = editor.before(node, "Add", [value, node.inputs[2]], f"{product.layer}.sum")
    bypass(node, value)


def _blocked(codes: NDArray[np.integer], width: int, block: int) -> NDArray[np.uint8]:
    """Unsigned codes padded to whole blocks, several per byte, the first in the lowest bits: (outputs, blocks, bytes)."""
    outputs, inputs = codes.shape
    blocks = -(-inputs // block)
    padded = np.zeros((outputs, blocks * block), np.uint8)
    padded[:, :inputs] = codes
    padded += np.uint8(1 << (width - 1))
    per_byte = 8 // width
    parts = padded.reshape(outputs, blocks, -1, per_byte).astype(np.uint16)
    shifts = np.arange(per_byte, dtype=np.uint16) * width
    packed: NDArray[np.uint8] = (parts << shifts).sum(axis=-1).astype(np.uint8)
    return packed
