"""The form of a graph that QONNX, FINN and hls4ml read: one Quant node of any width in the place of each quantizer."""

import numpy as np
import onnx_ir as ir

from hwbmpq.export.onnx.edits import GraphEditor, bypass
from hwbmpq.export.onnx.products import Product
from hwbmpq.export.onnx.qdq import ActivationQuant

QUANT_DOMAIN = "qonnx.custom_op.general"


def lower_activation(quant: ActivationQuant, editor: GraphEditor) -> None:
    value = quant.node.inputs[0]
    assert value is not None
    name = f"{quant.name}.input"
    scale = editor.constant(f"{name}_scale", quant.scale)
    bypass(quant.node, _quant(editor, quant.node, value, scale, quant.bits, name, signed=quant.signed))


def lower_weight(product: Product, editor: GraphEditor) -> None:
    """Weights in float whose Quant node gives back the integers: QONNX stores them so."""
    name = f"{product.layer}.weight"
    values = editor.constant(f"{name}_float", product.codes * product.aligned_scale)
    scale = editor.constant(f"{name}_scale", product.aligned_scale)
    quantized = _quant(editor, product.node, values, scale, product.bits, name, signed=True)
    product.node.replace_input_with(1, quantized)


def _quant(
    editor: GraphEditor,
    node: ir.Node,
    value: ir.Value,
    scale: ir.Value,
    bits: int,
    name: str,
    *,
    signed: bool,
) -> ir.Value:
    """Signed ranges are symmetric, which QONNX calls narrow."""
    settings = [scale, editor.constant("no_zero_point", 0.0), editor.constant("width", np.float32(bits))]
    return editor.before(
        node,
        "Quant",
        [value, *settings],
        f"{name}_quantized",
        {"signed": int(signed), "narrow": int(signed), "rounding_mode": "ROUND"},
        domain=QUANT_DOMAIN,
    )
