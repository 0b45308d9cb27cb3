"""An ONNX graph while it is edited, and its products: each layer's node with its integer weights, norms folded in."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from hwbmpq.export.onnx.trace import HELD_WEIGHT, WEIGHT, TracedGraph
from hwbmpq.export.stored_weights import StoredWeight


class GraphEditor:
    """Adds constants and nodes to one graph; names are made unique."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._names = set(graph.initializers) | {
            value.name for node in graph for value in node.outputs if value.name
        }
        self._shared: dict[tuple[object, ...], ir.Value] = {}

    def constant(
        self,
        name: str,
        values: NDArray[np.generic] | np.generic | float,
        kind: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        """A new constant; equal scalars of one name share one."""
        array = np.ascontiguousarray(values) if np.ndim(values) else np.asarray(values)
        key = (name, kind, array.item() if array.ndim == 0 else None)
        if array.ndim == 0 and key in self._shared:
            return self._shared[key]
        # Integers narrower than a byte are packed in the file.
        tensor = ir.Tensor(array.astype(kind.numpy()), dtype=kind, name=self.fresh(name))
        value = ir.Value(
            name=tensor.name, shape=ir.Shape(array.shape), type=ir.TensorType(kind), const_value=tensor
        )
        self.graph.register_initializer(value)
        self._shared[key] = value
        return value

    def step(self, name: str, scale: float, zero: int, kind: ir.DataType) -> list[ir.Value]:
        """The scale and zero point of a quantizer."""
        return [
            self.constant(f"{name}_scale", scale),
            self.constant(f"{name}_zero", np.int64(zero), kind),
        ]

    def bounds(
        self, name: str, low: float, high: float, kind: ir.DataType = ir.DataType.FLOAT
    ) -> list[ir.Value]:
        """The bounds that values, or codes, are clipped to."""
        end = "" if kind == ir.DataType.FLOAT else "_code"
        return [
            self.constant(f"{name}_low{end}", np.asarray(low), kind),
            self.constant(f"{name}_high{end}", np.asarray(high), kind),
        ]

    def fresh(self, name: str) -> str:
        """The name, with a number appended if it is taken."""
        found, number = name, 1
        while found in self._names:
            number += 1
            found = f"{name}_{number}"
        self._names.add(found)
        return found

    def before(
        self,
        node: ir.Node,
        op: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Mapping[str, int | str] | None = None,
        *,
        domain: str = "",
    ) -> ir.Value:
        """Insert a node in front of another; returns its output, which has that name."""
        new = self._node(op, inputs, name, domain, attributes or {})
        self.graph.insert_before(node, new)
        return new.outputs[0]

    def after(self, value: ir.Value, op: str, inputs: Sequence[ir.Value | None], name: str) -> ir.Value:
        """Insert a node behind the one that produces ``value``; returns its output, which has that name."""
        new = self._node(op, inputs, name, "", {})
        node = value.producer()
        assert node is not None, "no node produces the value"
        self.graph.insert_after(node, new)
        return new.outputs[0]

    def _node(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        domain: str,
        attributes: Mapping[str, int | str],
    ) -> ir.Node:
        name = self.fresh(name)
        new = ir.node(op, inputs, attributes, domain=domain, name=name)
        new.outputs[0].name = name
        return new


def constant_of(value: ir.Value | None) -> NDArray[np.generic] | None:
    """The numbers of a constant, or None if it is not one."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def only_reader(value: ir.Value) -> ir.Node | None:
    """The only node that reads a value, once; None if there are others or it is an output of the graph."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def bypass(node: ir.Node, value: ir.Value) -> None:
    """Let the readers of a node's output read ``value`` instead, and drop the node."""
    take_type(value, node.outputs[0])
    node.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def take_type(value: ir.Value, like: ir.Value) -> None:
    """Give a new value the type and shape of the one whose place it takes: an output of the graph must have them."""
    value.type = value.type or like.type
    value.shape = value.shape or like.shape


_FOLDABLE = ("Conv", "ConvTranspose", "Gemm")


def along(values: NDArray[np.float64], axis: int, axes: int) -> NDArray[np.float64]:
    """One number for each index of ``axis``, shaped to broadcast against an array with so many ``axes``."""
    return values.reshape([-1 if position == axis else 1 for position in range(axes)])


@dataclass(kw_only=True, eq=False)
class IntegerWeight:
    """A layer's weight in integers, and a node of the graph that has to do with it."""

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
        return along(self.scale, self.axis, self.codes.ndim) if self.scale.ndim else self.scale


@dataclass(kw_only=True, eq=False)
class HeldWeight(IntegerWeight):
    """The weight of a weight-only layer. Its node is the placeholder, whose output any other nodes read."""


@dataclass(kw_only=True, eq=False)
class Product(IntegerWeight):
    """One node that multiplies with a layer's weight. A layer that runs twice has two."""

    @property
    def output_axis(self) -> int:
        """The axis of the weight that the output's channels lie on."""
        if self.node.op_type == "ConvTranspose":
            return 1
        is_transposed = self.node.op_type == "Gemm" and not self.node.attributes.get_int("transB", 0)
        return 1 if is_transposed or self.node.op_type == "MatMul" else 0


def find_held_weights(graph: TracedGraph, weights: Mapping[str, StoredWeight]) -> list[HeldWeight]:
    """The weights of weight-only layers, in order."""
    found = []
    for node in graph.placeholders(HELD_WEIGHT):
        layer = node.attributes["layer"].as_string()
        stored = weights[layer]
        found.append(
            HeldWeight(
                layer=layer,
                node=node,
                codes=stored.codes.numpy(),
                scale=_flat(stored.scale.double().numpy()),
                axis=stored.channel_axis or 0,
                bits=stored.bits,
            )
        )
    return found


def _flat(scale: NDArray[np.float64]) -> NDArray[np.float64]:
    return scale.reshape(-1) if scale.size > 1 else scale.reshape(())


def find_products(graph: TracedGraph, weights: Mapping[str, StoredWeight]) -> list[Product]:
    """Every product with a quantized weight, in order."""
    return [product for node in graph.placeholders(WEIGHT) for product in _products(node, weights)]


def _products(placeholder: ir.Node, weights: Mapping[str, StoredWeight]) -> Iterator[Product]:
    layer = placeholder.attributes["layer"].as_string()
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
                scale=_flat(scale),
                axis=axis if order is None else list(order).index(axis),
                bits=stored.bits,
            )


def fold_batchnorm(products: list[Product], editor: GraphEditor) -> list[str]:
    """Move every norm that directly follows a product into its scales and bias; returns the layers that had one.

    The integers stay the trained ones: a norm multiplies channels, and so do scales. Where it multiplies by a
    negative number the channel's integers change their sign, since runtimes require positive scales.
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
        if len(product.node.inputs) < 3:
            product.node.resize_inputs(3)
        product.node.replace_input_with(2, editor.constant(f"{product.layer}.bias_with_norm", moved))
        bypass(norm, product.node.outputs[0])
        folded.append(product.layer)
    return folded


def _can_fold(product: Product, norm: ir.Node) -> bool:
    node = product.node
    if node.op_type not in _FOLDABLE or (
        node.op_type == "ConvTranspose" and node.attributes.get_int("group", 1) > 1
    ):
        return False  # grouped and transposed: channels of several groups share an index of the weight
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
    # The sign is zero where the norm switches a channel off.
    sign = along(np.sign(factor), product.output_axis, product.codes.ndim)
    product.codes = product.codes * sign.astype(product.codes.dtype)
    product.scale = np.where(factor == 0, 1.0, product.scale * np.abs(factor))
    product.axis = product.output_axis
