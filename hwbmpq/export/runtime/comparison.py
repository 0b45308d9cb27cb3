"""Whether a file gives a network's answers; QONNX files are run by the ``qonnx`` package, where it is installed."""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from math import isfinite

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.export.runtime.onnxruntime import as_input

_READABLE_IR = 10


class QonnxNetwork:
    """A QONNX graph that runs node by node, one input at a time: slow, but independent of our own code."""

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


_HALF = 0.5
_FAR_OFF = 0.1
"""Of the outputs' range: what another network would show."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far the outputs of a file are from those of the network, over some inputs."""

    inputs: int
    median_difference: float
    """Of the inputs' largest differences; as a share of the range of the network's outputs, as all differences."""
    largest_difference: float
    top1_agreement: float | None
    """Share of inputs with the same highest score; None if the outputs are not scores, one per class."""

    @property
    def is_plausible(self) -> bool:
        """Whether these can be the same network but for rounding, which at 2 bits a single flip can make visible."""
        if not isfinite(self.largest_difference):
            return False
        agrees = self.top1_agreement is not None and self.top1_agreement >= _HALF
        return agrees or self.median_difference <= _FAR_OFF


def compare(
    network: nn.Module, file: Callable[[NDArray[np.float32]], NDArray[np.float32]], batches: Iterable[Tensor]
) -> Agreement:
    """Run both on the same inputs. The network runs in the mode that it is in."""
    expected, found = [], []
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    with torch.no_grad():
        for images in batches:
            output = network(images.to(device))
            if not isinstance(output, Tensor):
                raise HwbmpqError("only networks with a single output tensor can be compared")
            expected.append(output.float().cpu().numpy())
            found.append(file(as_input(images)))
    if not expected:
        raise HwbmpqError("there are no inputs to compare on")
    return agreement(np.concatenate(expected), np.concatenate(found))


def agreement(expected: NDArray[np.float32], found: NDArray[np.float32]) -> Agreement:
    if expected.shape != found.shape:
        raise HwbmpqError(f"the file's outputs are of shape {found.shape}, the network's of {expected.shape}")
    extent = float(np.ptp(expected)) or 1.0
    # max keeps NaN, which must not pass for a small difference.
    differences = np.abs(found - expected).reshape(len(expected), -1).max(axis=1) / extent
    are_scores = expected.ndim == 2 and expected.shape[1] > 1
    return Agreement(
        inputs=len(expected),
        median_difference=float(np.median(differences)),
        largest_difference=float(differences.max()),
        top1_agreement=float((expected.argmax(axis=1) == found.argmax(axis=1)).mean())
        if are_scores
        else None,
    )
