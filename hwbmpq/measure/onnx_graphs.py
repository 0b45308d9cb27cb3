"""ONNX models of a few nodes, and of one layer for one program, as the exporter writes it into a network."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hwbmpq.errors import UnsupportedLayerError
from hwbmpq.measure.programs import INT8, INTEGER_PROGRAMS, QDQ16, WEIGHT_ONLY, Program
from hwbmpq.values import Layer

MICROSOFT = "com.microsoft"
_OPSET, _IR_VERSION = 17, 8
"""Old enough for the runtimes of small devices."""
_OPSET_16_BIT, _IR_VERSION_16_BIT = 21, 10
"""The first with 16-bit quantizers."""
SCALE = 0.02
_PERIOD = 3989
"""Random weights repeat after so many, so that kits pack small; a prime, so that no two rows are alike."""
_BLOCK = 32
"""Weights per scale in ``MatMulNBits``."""
_MOST_COPIED = 4 << 20
"""A layer with more weights than this is there once: fetching them takes most of its time, whatever ran before."""

Shape = Sequence[int | str]
"""A word stands for a dimension of any length."""


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
        """A tensor quantized to unsigned integers and dequantized again, as the exporter does it.

        Signed values have their zero in the middle, and the lowest code is clipped off to make the range symmetric. At
        16 bits there is always a clip: without it, ONNX Runtime would round weights to bytes.
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

    def model(self, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape]) -> bytes:
        """The file's content; inputs and outputs by name, with their shapes."""
        inputs_info, outputs_info = (
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, list(size))
                for name, size in sizes.items()
            ]
            for sizes in (inputs, outputs)
        )
        graph = helper.make_graph(self._nodes, "kernel", inputs_info, outputs_info, self._constants)
        opset, version = (_OPSET_16_BIT, _IR_VERSION_16_BIT) if self._needs_16_bit else (_OPSET, _IR_VERSION)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=version)
        content: bytes = model.SerializeToString()
        return content


def layer_graph(layer: Layer, program: Program) -> tuple[bytes, int]:
    """A file with this layer, its inputs and outputs in float; and how many copies of the layer are in it.

    The first copy brings the code into the caches, the last one is timed: in a network, too, the code has just run
    for another layer, the input has just been written, and the weights have to be fetched.
    """
    copies = 1 if layer.weight_elements > _MOST_COPIED else 2
    build = _LayerBuilder(layer, program)
    given = "x"
    if program is QDQ16 or program in INTEGER_PROGRAMS:
        given = build.quantized("x", 16 if program is QDQ16 else 8, is_signed=layer.input_signed)
    made = [build.copy(given) for _ in range(copies)]
    outputs = dict.fromkeys(made, _with_any_batch(layer.output_shape))
    return build.model({"x": _with_any_batch(layer.input_shape)}, outputs), copies


def _with_any_batch(shape: tuple[int, ...]) -> Shape:
    """As in exported networks; ONNX Runtime chooses other kernels for a fixed batch."""
    return ("batch", *shape[1:]) if shape[0] == 1 and len(shape) > 1 else shape


class _LayerBuilder(GraphBuilder):
    """Adds copies of one layer, with random weights."""

    def __init__(self, layer: Layer, program: Program) -> None:
        super().__init__()
        self._layer, self._program = layer, program
        self._is_integer = program in INTEGER_PROGRAMS
        # A linear layer on more than a vector is exported as a product and an addition, in float at its output.
        self._has_tokens = layer.kind == "linear" and len(layer.input_shape) > 2
        self._random = np.random.default_rng(0)

    def copy(self, given: str) -> str:
        """Add the layer, reading the tensor ``given``; its output."""
        for bits, program in WEIGHT_ONLY.items():
            if program == self._program:
                return self._weight_only(bits)
        made = self._linear(given) if self._layer.kind == "linear" else self._convolution(given)
        if self._has_tokens:
            return made
        made = self.node("Relu", [made])
        if self._is_integer:  # the next layer's: integer convolutions round their output
            made = self.quantized(made, 8, is_signed=False)
        return made

    def _convolution(self, given: str) -> str:
        layer = self._layer
        inputs = [given, self._weight(layer.weight_shape, axis=1 if layer.is_transposed else 0), self._bias()]
        attributes: dict[str, Any] = {
            "kernel_shape": layer.kernel_size,
            "strides": layer.stride,
            "dilations": layer.dilation,
            "group": layer.groups,
            "pads": _pads(layer),
        }
        if layer.is_transposed:
            return self.node("ConvTranspose", inputs, **attributes, output_shape=layer.output_shape[2:])
        return self.node("Conv", inputs, **attributes)

    def _linear(self, given: str) -> str:
        outputs, inputs = self._layer.weight_shape
        if not self._has_tokens:
            return self.node("Gemm", [given, self._weight((outputs, inputs), axis=0), self._bias()], transB=1)
        product = self.node("MatMul", [given, self._weight((inputs, outputs), axis=1)])
        return self.node("Add", [product, self.constant(np.zeros(outputs, np.float32))])

    def _weight_only(self, bits: int) -> str:
        if self._layer.kind != "linear":
            raise UnsupportedLayerError(f"layer {self._layer.name!r}: MatMulNBits is for linear layers")
        outputs, inputs = self._layer.weight_shape
        blocks = -(-inputs // _BLOCK)
        packed = self._random.integers(0, 256, _PERIOD, dtype=np.uint8)
        weight = self.constant(np.resize(packed, (outputs, blocks, _BLOCK * bits // 8)))
        scales = self.constant(np.full(outputs * blocks, SCALE, np.float32))
        sizes = {"K": inputs, "N": outputs, "bits": bits, "block_size": _BLOCK, "accuracy_level": 4}
        return self.node("MatMulNBits", ["x", weight, scales], domain=MICROSOFT, **sizes)

    def _weight(self, shape: tuple[int, ...], *, axis: int) -> str:
        if not self._is_integer:
            values = self._random.standard_normal(_PERIOD, dtype=np.float32) / 20
            return self.constant(np.resize(values, shape))
        kind, zero = (np.int8, 0) if self._program is INT8 else (np.uint8, 128)
        integers = self._random.integers(zero - 63, zero + 64, _PERIOD, dtype=kind)
        return self._dequantized(np.resize(integers, shape), SCALE / 100, zero=zero, axis=axis)

    def _bias(self) -> str:
        """Norms are folded into the layer before them: every layer gets a bias."""
        channels = self._layer.out_channels
        if not self._is_integer:
            return self.constant(np.zeros(channels, np.float32))
        # 32-bit integers in units of the product of the scales of input and weight
        return self._dequantized(np.ones(channels, np.int32), SCALE * SCALE / 100, zero=0, axis=0)

    def _dequantized(self, integers: Any, scale: float, *, zero: int, axis: int) -> str:
        """Stored integers, dequantized by channel."""
        channels = integers.shape[axis]
        scales, zeros = np.full(channels, scale, np.float32), np.full(channels, zero, integers.dtype)
        return self.node("DequantizeLinear", [*map(self.constant, (integers, scales, zeros))], axis=axis)


def _pads(layer: Layer) -> list[int]:
    if not isinstance(layer.padding, str):
        return [*layer.padding, *layer.padding]
    sides = zip(layer.kernel_size, layer.dilation, strict=True)
    totals = [dilation * (size - 1) if layer.padding == "same" else 0 for size, dilation in sides]
    return [*(total // 2 for total in totals), *(total - total // 2 for total in totals)]
