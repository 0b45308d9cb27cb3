"""The ONNX model of one layer for one program, built as the exporter writes it into a network."""

from typing import Any

import numpy as np

from hwbmpq.errors import UnsupportedLayerError
from hwbmpq.measure.onnx_graphs import MICROSOFT, PERIOD, SCALE, GraphBuilder, repeated
from hwbmpq.measure.programs import INT8, INTEGER_PROGRAMS, NBITS, QDQ16, WEIGHT_ONLY, Program
from hwbmpq.values import Layer

BLOCK = 32
"""Weights per scale in ``MatMulNBits``."""
MOST_COPIED = 4 << 20
"""Layers with more weights than this are there once: their time is that of fetching them, whatever ran before."""


def layer_graph(layer: Layer, program: Program) -> tuple[bytes, int]:
    """A file with this layer, its inputs and outputs in float; and how many copies of the layer are in it.

    The first copy brings the code into the caches, the last one is to be timed: in a network, too, the code
    has just run for another layer, the input has just been written, and the weights have to be fetched.
    """
    copies = 1 if layer.weight_elements > MOST_COPIED else 2
    build = GraphBuilder()
    random = np.random.default_rng(0)
    given = "x"
    if program is QDQ16 or program in INTEGER_PROGRAMS:
        given = build.quantized("x", 16 if program is QDQ16 else 8, is_signed=layer.input_signed)
    made = [_copy(build, layer, program, given, random) for _ in range(copies)]
    outputs = dict.fromkeys(made, _with_any_batch(layer.output_shape))
    return build.model({"x": _with_any_batch(layer.input_shape)}, outputs), copies


def _with_any_batch(shape: tuple[int, ...]) -> tuple[int | str, ...]:
    """As exported networks have it; ONNX Runtime chooses other kernels for a fixed one."""
    return ("batch", *shape[1:]) if shape[0] == 1 and len(shape) > 1 else shape


def _copy(
    build: GraphBuilder, layer: Layer, program: Program, given: str, random: np.random.Generator
) -> str:
    if program in WEIGHT_ONLY.values():
        return _weight_only(
            build, layer, next(bits for bits in NBITS if WEIGHT_ONLY[bits] == program), random
        )
    made = _product(build, layer, program, given, random)
    if _has_tokens(layer):
        return made
    made = build.node("Relu", [made])
    if program in INTEGER_PROGRAMS:  # the next layer's: integer convolutions round their output
        made = build.quantized(made, 8, is_signed=False)
    return made


def _product(
    build: GraphBuilder, layer: Layer, program: Program, given: str, random: np.random.Generator
) -> str:
    if layer.kind == "linear":
        return _linear(build, layer, program, given, random)
    weight = _weight(build, layer.weight_shape, program, random, axis=1 if layer.is_transposed else 0)
    inputs = [given, weight, _bias(build, layer, program)]
    attributes: dict[str, Any] = {
        "kernel_shape": layer.kernel_size,
        "strides": layer.stride,
        "dilations": layer.dilation,
        "group": layer.groups,
        "pads": _pads(layer),
    }
    if layer.is_transposed:
        attributes["output_shape"] = layer.output_shape[2:]
        return build.node("ConvTranspose", inputs, **attributes)
    return build.node("Conv", inputs, **attributes)


def _has_tokens(layer: Layer) -> bool:
    """A linear layer on more than a vector is exported as a product and an addition, in float at its output."""
    return layer.kind == "linear" and len(layer.input_shape) > 2


def _linear(
    build: GraphBuilder, layer: Layer, program: Program, given: str, random: np.random.Generator
) -> str:
    outputs, inputs = layer.weight_shape
    if not _has_tokens(layer):
        weight = _weight(build, (outputs, inputs), program, random, axis=0)
        return build.node("Gemm", [given, weight, _bias(build, layer, program)], transB=1)
    product = build.node("MatMul", [given, _weight(build, (inputs, outputs), program, random, axis=1)])
    return build.node("Add", [product, build.constant(np.zeros(outputs, np.float32))])


def _weight(
    build: GraphBuilder, shape: tuple[int, ...], program: Program, random: np.random.Generator, *, axis: int
) -> str:
    if program in INTEGER_PROGRAMS:
        return build.stored_weight(shape, is_signed=program is INT8, axis=axis, random=random)
    return build.constant(repeated(random.standard_normal(PERIOD, dtype=np.float32) / 20, shape))


def _bias(build: GraphBuilder, layer: Layer, program: Program) -> str:
    """Norms are folded into the layer before them: every layer gets a bias."""
    if program in INTEGER_PROGRAMS:
        return build.stored_bias(layer.out_channels)
    return build.constant(np.zeros(layer.out_channels, np.float32))


def _pads(layer: Layer) -> list[int]:
    if not isinstance(layer.padding, str):
        return [*layer.padding, *layer.padding]
    if layer.padding == "valid":
        return [0] * (2 * len(layer.kernel_size))
    totals = [dilation * (size - 1) for size, dilation in zip(layer.kernel_size, layer.dilation, strict=True)]
    return [*(total // 2 for total in totals), *(total - total // 2 for total in totals)]


def _weight_only(build: GraphBuilder, layer: Layer, bits: int, random: np.random.Generator) -> str:
    if layer.kind != "linear":
        raise UnsupportedLayerError(f"layer {layer.name!r}: MatMulNBits is for linear layers")
    outputs, inputs = layer.weight_shape
    blocks = -(-inputs // BLOCK)
    constants = [
        build.constant(
            repeated(random.integers(0, 256, PERIOD, dtype=np.uint8), (outputs, blocks, BLOCK * bits // 8))
        ),
        build.constant(np.full(outputs * blocks, SCALE, np.float32)),
    ]
    sizes = {"K": inputs, "N": outputs, "bits": bits, "block_size": BLOCK, "accuracy_level": 4}
    return build.node("MatMulNBits", ["x", *constants], domain=MICROSOFT, **sizes)
