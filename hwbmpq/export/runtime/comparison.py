"""Whether a file gives a network's answers; QONNX files are run by the ``qonnx`` package, where it is installed."""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from hwbmpq.data.inputs import Inputs, ModelInputs, tensors
from hwbmpq.errors import HwbmpqError
from hwbmpq.export.runtime.onnxruntime import Arrays, as_input, part_of

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

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.model.graph.input)

    def __call__(self, images: Arrays) -> NDArray[np.float32]:
        return self.outputs(images)[0]

    def outputs(self, images: Arrays) -> list[NDArray[np.float32]]:
        """All outputs for a batch."""
        arrays = dict(images) if isinstance(images, Mapping) else {self.input_names[0]: images}
        count = len(next(iter(arrays.values())))
        with redirect_stdout(io.StringIO()), _readable_graphs():
            found = [self._execute(self.model, part_of(arrays, i, 1, count)) for i in range(count)]
        return [np.concatenate([one[made.name] for one in found]) for made in self.model.graph.output]


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
    network: nn.Module, file: Callable[[Any], Any], batches: Iterable[Inputs], *, has_classes: bool = True
) -> Agreement:
    """Run both on the same inputs. The network runs in the mode that it is in.

    Of several outputs, the one that differs most counts. Without ``has_classes`` no answers are compared.
    """
    expected: list[list[NDArray[np.float32]]] = []
    found: list[list[NDArray[np.float32]]] = []
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    run_all = getattr(file, "outputs", None) or (lambda arrays: [file(arrays)])
    with torch.no_grad():
        for inputs in batches:
            given = ModelInputs.of(inputs)
            outputs = list(tensors(given.on(device).call(network)))
            expected.append([tensor.float().cpu().numpy() for tensor in outputs])
            found.append(run_all(as_input(given, getattr(file, "input_names", ()))))
    if not expected:
        raise HwbmpqError("there are no inputs to compare on")
    if len(found[0]) != len(expected[0]):
        raise HwbmpqError(f"the file has {len(found[0])} outputs, the network {len(expected[0])}")
    pairs = zip(zip(*expected, strict=True), zip(*found, strict=True), strict=True)
    each = [agreement(np.concatenate(e), np.concatenate(f), has_classes=has_classes) for e, f in pairs]
    return replace(
        each[0],
        median_difference=max(one.median_difference for one in each),
        largest_difference=float(np.max([one.largest_difference for one in each])),  # keeps NaN
    )


def agreement(
    expected: NDArray[np.float32], found: NDArray[np.float32], *, has_classes: bool = True
) -> Agreement:
    if expected.shape != found.shape:
        raise HwbmpqError(f"the file's outputs are of shape {found.shape}, the network's of {expected.shape}")
    extent = float(np.ptp(expected)) or 1.0
    # max keeps NaN, which must not pass for a small difference.
    differences = np.abs(found - expected).reshape(len(expected), -1).max(axis=1) / extent
    are_scores = has_classes and expected.ndim == 2 and expected.shape[1] > 1
    return Agreement(
        inputs=len(expected),
        median_difference=float(np.median(differences)),
        largest_difference=float(differences.max()),
        top1_agreement=float((expected.argmax(axis=1) == found.argmax(axis=1)).mean())
        if are_scores
        else None,
    )
