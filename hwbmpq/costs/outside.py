"""What a network computes outside of its layers, in float: products of activations, and weights that are no layer's."""

from collections.abc import Iterator
from math import prod
from typing import Any

from hwbmpq.costs.table import Uncosted
from hwbmpq.values import FLOAT_BITS, Layer, Precision, Uncovered

IN_FLOAT = Precision(weight_bits=FLOAT_BITS, activation_bits=FLOAT_BITS)
PRODUCTS = frozenset("matmul bmm baddbmm einsum scaleddotproductattention multiheadattention".split())
"""Operations that multiply activations."""
_WEIGHTED = frozenset(
    "linear conv1d conv2d conv3d convtranspose1d convtranspose2d convtranspose3d gru lstm rnn bilinear".split()
)


def outside(network: Any) -> tuple[Uncovered, ...]:
    """What has MACs and is not a layer; nothing if only the layers are known."""
    return tuple(entry for entry in getattr(network, "uncovered", ()) if entry.macs)


def float_work(network: Any) -> Layer | None:
    """All of it as one layer: its MACs, and the elements that it reads and makes."""
    found = outside(network)
    if not found:
        return None
    traffic = list(_traffic(network.operations))
    return Layer(
        name="outside of layers",
        kind="linear",
        weight_shape=(sum(entry.parameters for entry in found),),
        parameters=0,
        bias_parameters=0,
        macs=sum(entry.macs for entry in found),
        input_shape=(sum(reads for reads, _ in traffic),),
        output_shape=(sum(makes for _, makes in traffic),),
        in_channels=1,
        out_channels=1,
    )


def _traffic(operations: Any) -> Iterator[tuple[int, int]]:
    """Elements that each such operation reads and makes."""
    for name, node in operations.nodes(data=True):
        if not node["layer"] and node["kind"] in PRODUCTS | _WEIGHTED:
            shapes = [operations.nodes[before]["shape"] for before in operations.predecessors(name)]
            yield sum(prod(shape) for shape in shapes if shape), prod(node["shape"] or (0,))


def uncosted_outside(network: Any, why: str, macs: int) -> tuple[Uncosted, ...]:
    """All of it, as what has no figure."""
    return tuple(
        Uncosted(name=entry.name, why=why, macs=entry.macs, share=entry.macs / macs)
        for entry in outside(network)
    )
