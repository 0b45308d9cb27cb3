"""The products of a traced graph: each layer's node with its integer weights, norms folded in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from hwbmpq.export.onnx.edits import GraphEditor, bypass, constant_of, only_reader
from hwbmpq.export.onnx.trace import WEIGHT, TracedGraph
from hwbmpq.export.stored_weights import StoredWeight

_FOLDABLE = ("Conv", "ConvTranspose", "Gemm")


@dataclass(kw_only=True, eq=False)
class Product:
    """One node that multiplies with a layer's weight. A layer that runs twice has two."""

    layer: str
    node: ir.Node
    codes: NDArray[np.integer]
    scale: NDArray[np.float64]
    """A scalar, or one number for each index of ``axis``."""
    axis: int
    bits: int

    @property
    def aligned_scale(self) -> NDArray[np.float64]:
        """The scale with as many axes as the weight."""
        if self.scale.ndim == 0:
            return self.scale
        shape = [1] * self.codes.ndim
        shape[self.axis] = -1
        return self.scale.reshape(shape)

    @property
    def output_axis(self) -> int:
        """The axis of the weight that the output's channels lie on."""
        if self.node.op_type == "ConvTranspose":
            return 1
        is_transposed = self.node.op_type == "Gemm" and not self.node.attributes.get_int("transB", 0)
        return 1 if is_transposed or self.node.op_type == "MatMul" else 0


def find_products(graph: TracedGraph, weights: Mapping[str, StoredWeight]) -> list[Product]:
    """Every product with a quantized weight, in order."""
    return [
        product
        for node in graph.placeholders(WEIGHT)
        for product in _products(node, node.attributes["layer"].as_string(), weights)
    ]


def _products(placeholder: ir.Node, layer: str, weights: Mapping[str, StoredWeight]) -> Iterator[Product]:
    stored = weights[layer]
    codes = stored.codes.numpy()
    scale = stored.scale.double().numpy()
    for use in list(placeholder.outputs[0].uses()):
        axis = stored.channel_axis or 0
        node, order = use.node, None
        if node.op_type == "Transpose":  # a linear layer on tokens: the integers are stored transposed
            order = node.attributes.get_ints("perm")
            readers = [reader.node for reader in node.outputs[0].uses()]
        else:
            readers = [node]
        for reader in readers:
            yield Product(
                layer=layer,
                node=reader,
                codes=codes if order is None else codes.transpose(order),
                scale=scale.reshape(-1) if scale.size > 1 else scale.reshape(()),
                axis=axis if order is None else list(order).index(axis),
                bits=stored.bits,
            )


def fold_batchnorm(products: list[Product], editor: GraphEditor) -> list[str]:
    """Move every norm that directly follows a product into its scales and bias; the layers where one was.

    The integers stay the trained ones: a norm multiplies channels, and so do scales. Where it multiplies by a
    negative number the channel's integers change their sign, since runtimes want positive scales.
    """
    folded = []
    for product in products:
        norm = only_reader(product.node.outputs[0])
        if norm is None or norm.op_type != "BatchNormalization" or not _can_fold(product, norm):
            continue
        factor, shift = _affine(norm)
        _multiply(product, factor)
        bias = constant_of(product.node.inputs[2]) if len(product.node.inputs) > 2 else None
        moved = shift if bias is None else shift + factor * bias.astype(np.float64)
        _set_bias(product.node, editor.constant(f"{product.layer}.bias_with_norm", moved))
        bypass(norm, product.node.outputs[0])
        folded.append(product.layer)
    return folded


def _can_fold(product: Product, norm: ir.Node) -> bool:
    node = product.node
    if node.op_type not in _FOLDABLE or (
        node.op_type == "ConvTranspose" and node.attributes.get_int("group", 1) > 1
    ):
        return False  # grouped and transposed: channels of several groups share one place of the weight
    has_own_scales = product.scale.ndim == 1 and product.axis != product.output_axis
    bias_is_known = len(node.inputs) < 3 or node.inputs[2] is None or constant_of(node.inputs[2]) is not None
    return (
        bias_is_known
        and not has_own_scales
        and all(constant_of(value) is not None for value in norm.inputs[1:])
    )


def _affine(norm: ir.Node) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A norm as ``factor * x + shift``, in double precision: rounded once, when it is stored."""
    gamma, beta, mean, variance = (constant_of(value).astype(np.float64) for value in norm.inputs[1:])  # type: ignore[union-attr]
    factor = gamma / np.sqrt(variance + norm.attributes.get_float("epsilon", 1e-5))
    return factor, beta - mean * factor


def _multiply(product: Product, factor: NDArray[np.float64]) -> None:
    shape = [1] * product.codes.ndim
    shape[product.output_axis] = -1
    # The sign is zero where the norm cuts a channel off.
    product.codes = product.codes * np.sign(factor).astype(product.codes.dtype).reshape(shape)
    product.scale = np.where(factor == 0, 1.0, product.scale * np.abs(factor))
    product.axis = product.output_axis


def _set_bias(node: ir.Node, bias: ir.Value) -> None:
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, bias)
