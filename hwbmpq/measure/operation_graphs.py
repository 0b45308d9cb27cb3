"""ONNX models of operations without weights, at a few sizes, and of what only calling the runtime costs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from hwbmpq.measure.onnx_graphs import MICROSOFT, GraphBuilder

IMAGES = ((1, 64, 14, 14), (1, 64, 56, 56), (1, 32, 112, 112))
TOKENS = ((1, 50, 192), (1, 197, 192), (1, 197, 768))
HEADS = ((1, 3, 50, 64), (1, 3, 197, 64), (1, 12, 197, 64))
CHAINS = (16, 64)
"""Lengths of the chains of operations on one number, from which the cost of a node is told."""
REFERENCE_SHAPE = (1, 64, 28, 28)
REFERENCE_MACS = 64 * 64 * 9 * 28 * 28

WARM_UPS = ("Abs", "Neg")
"""What writes the input just before, as in a network: one for each copy, of which the last is timed."""

Made = tuple[str, Sequence[int]]
Build = Callable[[GraphBuilder, Sequence[str], Sequence[int]], Made]
"""Adds an operation on some tensors of a shape; its output, and the shape of that."""


@dataclass(frozen=True, kw_only=True)
class OperationGraph:
    """One operation at one size."""

    name: str
    elements: int
    content: bytes


def count_between_layers() -> int:
    """How many kernels are not layers: operations at each size, and chains with and without the profiler."""
    return sum(len(sizes) for _, sizes in _OPERATIONS.values()) + 2 * len(CHAINS)


def operation_graphs() -> Iterator[OperationGraph]:
    """Every operation that a table has times for; ``quantize`` has the way back in it."""
    for name, (build_on, sizes) in _OPERATIONS.items():
        for shape in sizes:
            inputs = {"x": shape, "y": _other(name, shape)} if name in _WITH_TWO_INPUTS else {"x": shape}
            build = GraphBuilder()
            outputs = {}
            for warm_up in WARM_UPS:
                made, made_shape = build_on(build, [build.node(warm_up, [given]) for given in inputs], shape)
                outputs[made] = made_shape
            elements = max(prod(shape), prod(made_shape))
            if name == "product":
                elements = prod(made_shape) * shape[-1]  # its multiply-accumulates
            yield OperationGraph(name=name, elements=elements, content=build.model(inputs, outputs))


def chain_graph(length: int) -> bytes:
    """Operations on a single number, one after the other."""
    build = GraphBuilder()
    made = "x"
    for _ in range(length):
        made = build.node("Neg", [made])
    return build.model({"x": (1,)}, {made: (1,)})


def reference_graph() -> bytes:
    """The kernel that tells how fast the clock is just now."""
    build = GraphBuilder()
    channels = REFERENCE_SHAPE[1]
    weight = np.random.default_rng(0).standard_normal((channels, channels, 3, 3), dtype=np.float32)
    made = build.node("Conv", ["x", build.constant(weight)], pads=[1, 1, 1, 1])
    return build.model({"x": REFERENCE_SHAPE}, {made: REFERENCE_SHAPE})


def _elementwise(kind: str, **options: Any) -> Build:
    return lambda build, given, shape: (build.node(kind, given, **options), shape)


def _quantize(build: GraphBuilder, given: Sequence[str], shape: Sequence[int]) -> Made:
    return build.quantized(given[0], 8, is_signed=False), shape


def _silu(build: GraphBuilder, given: Sequence[str], shape: Sequence[int]) -> Made:
    return build.node("Mul", [*given, build.node("Sigmoid", given)]), shape


def _layernorm(build: GraphBuilder, given: Sequence[str], shape: Sequence[int]) -> Made:
    ones = build.constant(np.ones(shape[-1], np.float32))
    return build.node("LayerNormalization", [*given, ones, ones]), shape


def _batchnorm(build: GraphBuilder, given: Sequence[str], shape: Sequence[int]) -> Made:
    ones = build.constant(np.ones(shape[1], np.float32))
    return build.node("BatchNormalization", [*given, ones, ones, ones, ones]), shape


def _pool(kind: str, size: int, padding: int) -> Build:
    def build_on(build: GraphBuilder, given: Sequence[str], shape: Sequence[int]) -> Made:
        options: dict[str, Any] = {"kernel_shape": [size] * 2, "strides": [2, 2], "pads": [padding] * 4}
        return build.node(kind, given, **options), (*shape[:2], shape[2] // 2, shape[3] // 2)

    return build_on


def _global_pool(build: GraphBuilder, given: Sequence[str], shape: Sequence[int]) -> Made:
    return build.node("ReduceMean", given, axes=[-1, -2], keepdims=1), (*shape[:2], 1, 1)


def _concatenation(build: GraphBuilder, given: Sequence[str], shape: Sequence[int]) -> Made:
    return build.node("Concat", given, axis=1), (shape[0], 2 * shape[1], *shape[2:])


def _product(build: GraphBuilder, given: Sequence[str], shape: Sequence[int]) -> Made:
    return build.node("MatMul", given), (*shape[:-1], shape[-2])


def _other(name: str, shape: Sequence[int]) -> Sequence[int]:
    return (*shape[:-2], shape[-1], shape[-2]) if name == "product" else shape


_WITH_TWO_INPUTS = frozenset({"add", "multiply", "copy", "product"})
_OPERATIONS: Mapping[str, tuple[Build, Sequence[Sequence[int]]]] = MappingProxyType(
    {
        "quantize": (_quantize, IMAGES),
        "add": (_elementwise("Add"), IMAGES),
        "multiply": (_elementwise("Mul"), IMAGES),
        "clip": (_elementwise("Relu"), IMAGES),
        "sigmoid": (_elementwise("Sigmoid"), IMAGES),
        "silu": (_silu, IMAGES),
        "hardswish": (_elementwise("HardSwish"), IMAGES),
        "gelu": (_elementwise("Gelu", domain=MICROSOFT), TOKENS),
        "softmax": (_elementwise("Softmax", axis=-1), TOKENS),
        "layernorm": (_layernorm, TOKENS),
        "batchnorm": (_batchnorm, IMAGES),
        "max_pool": (_pool("MaxPool", 3, 1), IMAGES),
        "average_pool": (_pool("AveragePool", 2, 0), IMAGES),
        "global_pool": (_global_pool, IMAGES),
        "copy": (_concatenation, IMAGES),
        "product": (_product, HEADS),
    }
)
