"""Which releases of ONNX Runtime load a graph.

Measured by loading and running files of each kind with onnxruntime 1.17.3, 1.18.1, 1.19.2, 1.20.1, 1.21.1, 1.22.1, 1.23.2
and 1.24.1 on CPU: a release that is named here ran them, the one before it did not.
"""

import onnx_ir as ir

OLDEST = "1.18"
"""Opset 21 and IR version 10, which all our graphs have at least."""
_BY_WIDTH = {2: "1.24", 4: "1.19"}
"""Of the integers in which weights or activations are stored."""
_BY_BLOCK_WIDTH = {2: "1.24", 4: "1.18", 8: "1.22"}
"""Of the weights of MatMulNBits."""
_WIDTHS = {
    ir.DataType.INT2: 2,
    ir.DataType.UINT2: 2,
    ir.DataType.INT4: 4,
    ir.DataType.UINT4: 4,
}


def least_runtime(graph: ir.Graph) -> str:
    """The first release of ONNX Runtime that loads the graph."""
    kinds = {value.dtype for value in graph.initializers.values()}
    found = [OLDEST, *(_BY_WIDTH[_WIDTHS[kind]] for kind in kinds if kind in _WIDTHS)]
    for node in graph:
        if node.op_type == "MatMulNBits":
            found.append(_BY_BLOCK_WIDTH[node.attributes["bits"].as_int()])
    return max(found, key=lambda version: [int(part) for part in version.split(".")])
