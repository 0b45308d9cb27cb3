"""Running graphs with Quant nodes by the ``qonnx`` package, where it is installed."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import numpy as np
import onnx
from numpy.typing import NDArray

from hwbmpq.errors import HwbmpqError

_READABLE_IR = 10


class QonnxNetwork:
    """A QONNX graph that runs node by node, one input at a time: slow, and somebody else's reading of the file."""

    def __init__(self, content: bytes) -> None:
        try:
            from qonnx.core.modelwrapper import ModelWrapper
            from qonnx.core.onnx_exec import execute_onnx
            from qonnx.transformation.infer_shapes import InferShapes
        except ImportError as error:
            raise HwbmpqError(
                "QONNX files are compared by the qonnx package, which is not installed",
                hint="pip install 'hwbmpq[qonnx]'",
            ) from error
        self._execute = execute_onnx
        with redirect_stdout(io.StringIO()):
            self.model = ModelWrapper(onnx.load_from_string(content)).transform(InferShapes())

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        given, made = self.model.graph.input[0].name, self.model.graph.output[0].name
        with redirect_stdout(io.StringIO()), _readable_graphs():
            found = [self._execute(self.model, {given: images[i : i + 1]})[made] for i in range(len(images))]
        return np.concatenate(found)


@contextmanager
def _readable_graphs() -> Iterator[None]:
    """Inside, qonnx hands single nodes to ONNX Runtime in a format that it reads; onnx's newest may be too new."""
    newest = onnx.IR_VERSION
    setattr(onnx, "IR_VERSION", min(newest, _READABLE_IR))  # noqa: B010
    try:
        yield
    finally:
        setattr(onnx, "IR_VERSION", newest)  # noqa: B010
