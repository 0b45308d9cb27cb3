"""A layer as the loops that hardware runs."""

from collections import Counter
from dataclasses import dataclass, replace
from math import prod

from hwbmpq.costs.table import Number
from hwbmpq.errors import UnsupportedLayerError
from hwbmpq.values import Layer


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm:
    """A layer as ``groups`` matrix products of (rows x depth) by (depth x columns)."""

    groups: int
    rows: int
    columns: int
    depth: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A layer as a 2-D convolution; a linear layer is 1x1 over its tokens, 1-D has height 1."""

    images: int
    height: int
    width: int
    kernel_height: int
    kernel_width: int

    @property
    def pixels(self) -> int:
        return self.images * self.height * self.width

    @property
    def kernel_positions(self) -> int:
        return self.kernel_height * self.kernel_width


def calls_of(layer: Layer) -> tuple[tuple[Layer, int], ...]:
    """The layer as calls of one size each, and how often each size is called.

    Formulas take several calls of one size as they are; only a layer that is called at several sizes is taken apart.
    """
    if not layer.call_shapes:
        return ((layer, 1),)
    sizes = Counter(layer.call_shapes)
    single = [
        (replace(layer, input_shape=reads, output_shape=makes, calls=1, call_shapes=()), count)
        for (reads, makes), count in sizes.items()
    ]
    per_position = layer.macs // sum(positions(call) * count for call, count in single)
    return tuple((replace(call, macs=per_position * positions(call)), count) for call, count in single)


def positions(layer: Layer) -> int:
    """Places where the weights are applied: output pixels or tokens; input pixels if it scatters."""
    if layer.kind == "linear":
        return prod(layer.output_shape) // layer.out_channels
    shape = layer.input_shape if layer.is_transposed else layer.output_shape
    return prod(shape[:1]) * prod(shape[2:])


def as_gemm(layer: Layer) -> Gemm:
    """The matrix product that computes one call of the layer (im2col)."""
    kernel = prod(layer.kernel_size)
    depth, columns = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    if layer.is_transposed:
        return Gemm(groups=layer.groups, rows=positions(layer), columns=columns * kernel, depth=depth)
    return Gemm(groups=layer.groups, rows=positions(layer), columns=columns, depth=depth * kernel)


def as_window(layer: Layer, cost_model: str) -> Window:
    """The 2-D convolution that the layer is, for models that know nothing else."""
    images = layer.output_shape[0]  # more than one if the network folds something into the batch
    if layer.kind == "linear":
        return Window(images=1, height=positions(layer), width=1, kernel_height=1, kernel_width=1)
    if layer.kind in ("conv1d", "conv2d"):
        height, width = (1, *layer.output_shape[2:])[-2:]
        tall, wide = (1, *layer.kernel_size)[-2:]
        return Window(images=images, height=height, width=width, kernel_height=tall, kernel_width=wide)
    raise UnsupportedLayerError(
        f"layer {layer.name!r}: the cost model {cost_model!r} has no formula for {layer.kind}"
    )


def repeats(layer: Layer) -> Number:
    """How often the first call's work is done: the number of calls, if all have the same shape."""
    outputs = layer.in_channels if layer.is_transposed else layer.out_channels  # of one position
    once = positions(layer) * prod(layer.weight_shape[1:]) * outputs
    return layer.macs // once if layer.macs % once == 0 else layer.macs / once


def traffic_bits(layer: Layer, weight_bits: int, activation_bits: int) -> tuple[int, int]:
    """Bits of weights and of activations (input and output) that move, over all calls, which are of one size."""
    activations = (prod(layer.input_shape) + prod(layer.output_shape)) * activation_bits
    return layer.weight_elements * weight_bits * layer.calls, activations * layer.calls


def divide_up(value: int, by: int) -> int:
    return -(-value // by)
