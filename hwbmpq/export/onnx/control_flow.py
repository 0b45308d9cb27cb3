"""Graphs inside graphs, which let a small ONNX file run without end."""

from collections.abc import Iterable
from itertools import chain

import onnx

from hwbmpq.errors import HwbmpqError, cut


def check_straight(content: bytes, what: str) -> None:
    """An error if an ONNX file has loops, branches or functions.

    A loop may take 2**62 turns, and functions that call each other twice are as long when they are written out.
    """
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception as error:  # of the protocol buffers, which are not ours to import
        raise HwbmpqError(f"ONNX Runtime cannot load {what}: it is not an ONNX file") from error
    found = [function.name for function in model.functions] or _with_graphs(model.graph.node)
    if found:
        raise HwbmpqError(
            f"{what} has loops, branches or functions ({cut(found[0], 80)}), which may run without end; it was not run",
            hint="if you trust it, add --trust (in Python, OnnxNetwork(..., trust=True))",
        )


def _with_graphs(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    """The operators that have graphs of their own."""
    attributes = chain.from_iterable(((node.op_type, entry) for entry in node.attribute) for node in nodes)
    return [kind for kind, entry in attributes if entry.HasField("g") or entry.graphs]
