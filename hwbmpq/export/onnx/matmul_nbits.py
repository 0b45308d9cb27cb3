"""Linear layers by ONNX Runtime's MatMulNBits: narrow weights beside float inputs, for one input at a time.

The kernel reads the weights at their width, which is what takes the time then: 3 to 8 times as fast as float, measured on
x86 with AVX2. It rounds its input to bytes, block by block, at whatever range the block has.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from hwbmpq.export.onnx.edits import GraphEditor, bypass
from hwbmpq.export.onnx.products import Product
from hwbmpq.export.onnx.qdq import stored_width

DOMAIN = "com.microsoft"
_WIDEST = 8
_BLOCKS = (128, 64, 32, 16)
"""Weights that share a scale; powers of two."""
_BYTES_INSIDE = 4
"""The accuracy level at which the kernel computes with bytes; with floats it is slower than float itself."""


def fits_matmul_nbits(product: Product) -> bool:
    """Whether a product is a plain linear layer on single vectors, with weights that the kernel takes."""
    node = product.node
    if node.op_type != "Gemm" or product.bits > _WIDEST or product.codes.shape[1] < _BLOCKS[-1]:
        return False
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    return factors == [1.0, 1.0] and node.attributes.get_int("transB", 0) == 1


def to_matmul_nbits(product: Product, editor: GraphEditor) -> None:
    """Change the graph: the kernel takes the place of the product, and an addition that of its bias."""
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
        domain=DOMAIN,
    )
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        value = editor.before(node, "Add", [value, node.inputs[2]], f"{product.layer}.sum")
    bypass(node, value)


def _blocked(codes: NDArray[np.integer], width: int, block: int) -> NDArray[np.uint8]:
    """Codes from zero up, filled up to whole blocks, several to a byte, the first lowest: (outputs, blocks, bytes)."""
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
