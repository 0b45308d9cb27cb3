"""ONNX models of a few nodes, built without a network around them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
_OPSET, _IR_VERSION = 17, 8
"""Old enough for the runtimes of small devices."""
_OPSET_16_BIT, _IR_VERSION_16_BIT = 21, 10
"""The first with 16-bit quantizers."""
SCALE = 0.02
PERIOD = 3989
"""Random weights repeat after so many, so that kits pack small; a prime, so that no two rows are alike."""


Shape = Sequence[int | str]
"""A word stands for a side of any length."""


def repeated(values: Any, shape: Sequence[int]) -> Any:
    """An array of a shape, filled with the values again and again."""
    return np.resize(values, tuple(shape))


class GraphBuilder:
    """Collects nodes and constants; ``model`` puts them together. Inputs and outputs are float32."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._needs_16_bit = False

    def constant(self, value: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], *, domain: str = "", **attributes: Any) -> str:
        name = f"n{len(self._nodes)}"
        self._nodes.append(
            helper.make_node(kind, list(inputs), [name], name=name, domain=domain, **attributes)
        )
        return name

    def quantized(self, tensor: str, bits: int, *, is_signed: bool) -> str:
        """A tensor rounded to unsigned integers and brought back to float, as the exporter does it.

        Where values have a sign, zero lies in the middle, and the lowest code is clipped off, so that both sides are
        equally long. At 16 bits there is a clip in any case, without which ONNX Runtime would round weights to bytes.
        """
        self._needs_16_bit |= bits > 8
        kind = np.uint8 if bits <= 8 else np.uint16
        zero = 1 << (bits - 1) if is_signed else 0
        constants = (self.constant(np.float32(SCALE)), self.constant(np.array(zero, kind)))
        codes = self.node("QuantizeLinear", [tensor, *constants])
        if is_signed and bits <= 8:
            codes = self.node("Clip", [codes, self.constant(kind(1)), self.constant(kind(2**bits - 1))])
        made = self.node("DequantizeLinear", [codes, *constants])
        if bits > 8:
            ends = [self.constant(np.float32(end * SCALE * 2**bits)) for end in (-1, 1)]
            made = self.node("Clip", [made, *ends])
        return made

    def stored_weight(
        self, shape: Sequence[int], *, is_signed: bool, axis: int, random: np.random.Generator
    ) -> str:
        """Random weights as bytes, dequantized by channel."""
        kind, zero = (np.int8, 0) if is_signed else (np.uint8, 128)
        integers = repeated(random.integers(zero - 63, zero + 64, PERIOD, dtype=kind), shape)
        channels = shape[axis]
        inputs = [
            self.constant(integers),
            self.constant(np.full(channels, SCALE / 100, np.float32)),
            self.constant(np.full(channels, zero, kind)),
        ]
        return self.node("DequantizeLinear", inputs, axis=axis)

    def stored_bias(self, channels: int) -> str:
        """A bias as 32-bit integers in units of the product of the scales of input and weight."""
        inputs = [
            self.constant(np.ones(channels, np.int32)),
            self.constant(np.full(channels, SCALE * SCALE / 100, np.float32)),
            self.constant(np.zeros(channels, np.int32)),
        ]
        return self.node("DequantizeLinear", inputs, axis=0)

    def model(self, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape]) -> bytes:
        """The file's content, with the shapes of what it takes and gives."""
        graph = helper.make_graph(
            self._nodes,
            "kernel",
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, list(size))
                for name, size in inputs.items()
            ],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, list(size))
                for name, size in outputs.items()
            ],
            self._constants,
        )
        opset, version = (_OPSET_16_BIT, _IR_VERSION_16_BIT) if self._needs_16_bit else (_OPSET, _IR_VERSION)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        content: bytes = helper.make_model(
            graph, opset_imports=imports, ir_version=version
        ).SerializeToString()
        return content
