"""Small edits of an ONNX graph."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray


class GraphEditor:
    """Adds constants and nodes to one graph; equal names are made different."""

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
        """A new constant; one and the same for equal scalars of one name."""
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
        """What values, or codes, are clipped at."""
        end = "" if kind == ir.DataType.FLOAT else "_code"
        return [
            self.constant(f"{name}_low{end}", np.asarray(low), kind),
            self.constant(f"{name}_high{end}", np.asarray(high), kind),
        ]

    def fresh(self, name: str) -> str:
        """The name, with a number behind it if it is taken."""
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
        """Insert a node in front of another one; its output, of that name."""
        new = self._node(op, inputs, name, domain, attributes or {})
        self.graph.insert_before(node, new)
        return new.outputs[0]

    def after(self, value: ir.Value, op: str, inputs: Sequence[ir.Value | None], name: str) -> ir.Value:
        """Insert a node behind the one that makes ``value``; its output, of that name."""
        new = self._node(op, inputs, name, "", {})
        node = value.producer()
        assert node is not None, "a value that no node makes"
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
    """The node that alone reads a value, once, unless it is an output of the graph."""
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
