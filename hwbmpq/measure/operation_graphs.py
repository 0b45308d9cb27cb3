"""ONNX models of operations without weights, at a few sizes, and of what a call of the runtime costs by itself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from hwbmpq.measure.onnx_graphs import MICROSOFT, GraphBuilder

IMAGES = ((1, 64, 14, 14), (1, 64, 56, 56), (1, 32, 112, 112))
TOKENS = ((1, 50, 192), (1, 197, 192), (1, 197, 768))
HEADS = ((1, 3, 50, 64), (1, 3, 197, 64), (1, 12, 197, 64))
CHAINS = (16, 64)
"""Lengths of the chains of operations on one number, from which the cost of a node follows."""
REFERENCE_SHAPE = (1, 64, 28, 28)
REFERENCE_MACS = 64 * 64 * 9 * 28 * 28

WARM_UPS = ("Abs", "Neg")
"""What writes the input just before, as in a network: one for each copy, of which the last is timed."""

Build = Callable[[GraphBuilder, Sequence[str], Sequence[int]], str]
"""Adds an operation on some tensors of a shape; its output."""


def count_between_layers() -> int:
    """How many kernels are not layers: operations at each size, and chains with and without the profiler."""
    return sum(len(sizes) for _, sizes in _OPERATIONS.values()) + 2 * len(CHAINS)


def operation_graphs() -> Iterator[tuple[str, int, bytes]]:
    """Every operation that a table has times for: name, elements and file. ``quantize`` includes dequantizing."""
    for name, (build_on, sizes) in _OPERATIONS.items():
        for shape in sizes:
            second, output = _other_shapes(name, shape)
            inputs = {"x": shape, "y": second} if name in _WITH_TWO_INPUTS else {"x": shape}
            build = GraphBuilder()
            outputs = {}
            for warm_up in WARM_UPS:
                given = [build.node(warm_up, [tensor]) for tensor in inputs]
                outputs[build_on(build, given, shape)] = output
            elements = max(prod(shape), prod(output))
            if name == "product":
                elements = prod(output) * shape[-1]  # its multiply-accumulates
            yield name, elements, build.model(inputs, outputs)


def chain_graph(length: int) -> bytes:
    """Operations on a single number, one after the other."""
    build = GraphBuilder()
    made = "x"
    for _ in range(length):
        made = build.node("Neg", [made])
    return build.model({"x": (1,)}, {made: (1,)})


def reference_graph() -> bytes:
    """The kernel whose time shows how fast the clock is at the moment."""
    build = GraphBuilder()
    channels = REFERENCE_SHAPE[1]
    weight = np.random.default_rng(0).standard_normal((channels, channels, 3, 3), dtype=np.float32)
    made = build.node("Conv", ["x", build.constant(weight)], pads=[1, 1, 1, 1])
    return build.model({"x": REFERENCE_SHAPE}, {made: REFERENCE_SHAPE})


def _other_shapes(name: str, shape: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Of an operation's second input, if it has one, and of its output."""
    outer, inner = shape[:-2], shape[-2:]
    if name == "product":
        return (*outer, *reversed(inner)), (*outer, inner[0], inner[0])
    if name in ("max_pool", "average_pool"):
        return shape, (*outer, inner[0] // 2, inner[1] // 2)
    if name == "global_pool":
        return shape, (*outer, 1, 1)
    if name == "copy":
        return shape, (shape[0], 2 * shape[1], *shape[2:])
    return shape, shape


def _node(kind: str, **options: Any) -> Build:
    return lambda build, given, shape: build.node(kind, given, **options)


def _pool(kind: str, size: int, padding: int) -> Build:
    return _node(kind, kernel_shape=[size] * 2, strides=[2, 2], pads=[padding] * 4)


def _norm(kind: str, *, axis: int, constants: int) -> Build:
    def build_on(build: GraphBuilder, given: Sequence[str], shape: Sequence[int]) -> str:
        ones = build.constant(np.ones(shape[axis], np.float32))
        return build.node(kind, [*given, *[ones] * constants])

    return build_on


def _silu(build: GraphBuilder, given: Sequence[str], shape: Sequence[int]) -> str:
    return build.node("Mul", [*given, build.node("Sigmoid", given)])


def _quantize(build: GraphBuilder, given: Sequence[str], shape: Sequence[int]) -> str:
    return build.quantized(given[0], 8, is_signed=False)


_WITH_TWO_INPUTS = frozenset({"add", "multiply", "copy", "product"})
_OPERATIONS: Mapping[str, tuple[Build, Sequence[Sequence[int]]]] = MappingProxyType(
    {
        "quantize": (_quantize, IMAGES),
        "add": (_node("Add"), IMAGES),
        "multiply": (_node("Mul"), IMAGES),
        "clip": (_node("Relu"), IMAGES),
        "sigmoid": (_node("Sigmoid"), IMAGES),
        "silu": (_silu, IMAGES),
        "hardswish": (_node("HardSwish"), IMAGES),
        "gelu": (_node("Gelu", domain=MICROSOFT), TOKENS),
        "softmax": (_node("Softmax", axis=-1), TOKENS),
        "layernorm": (_norm("LayerNormalization", axis=-1, constants=2), TOKENS),
        "batchnorm": (_norm("BatchNormalization", axis=1, constants=4), IMAGES),
        "max_pool": (_pool("MaxPool", 3, 1), IMAGES),
        "average_pool": (_pool("AveragePool", 2, 0), IMAGES),
        "global_pool": (_node("ReduceMean", axes=[-1, -2], keepdims=1), IMAGES),
        "copy": (_node("Concat", axis=1), IMAGES),
        "product": (_node("MatMul"), HEADS),
    }
)
