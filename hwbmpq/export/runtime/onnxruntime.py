"""Running ONNX files in ONNX Runtime."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwbmpq.data.inputs import Inputs, ModelInputs, map_tensors, named_tensors, tensors
from hwbmpq.deprecated import warn
from hwbmpq.errors import HwbmpqError
from hwbmpq.export.onnx.checksum import verify_checksum
from hwbmpq.export.onnx.control_flow import check_straight
from hwbmpq.io import read_regular

Arrays: TypeAlias = "NDArray[Any] | Mapping[str, NDArray[Any]]"
"""A batch of inputs: an array, or several by name."""
_NO_LOG = 4
"""Errors are raised, so they need not be logged as well."""
LARGEST_FILE = 2**31 - 1
"""The limit of protocol buffers."""


UNPACKING = {"session.disable_quant_qdq": "1"}
"""Session options that make ONNX Runtime turn weights into floats once, when it loads a file, instead of at each run."""


class OnnxNetwork:
    """An ONNX file, or its bytes, ready to run on the CPU: images in, outputs out.

    ``unpacks`` turns weights into floats when the file is loaded: about as fast as float, and as large in memory.
    ``trust`` runs files with loops, too, which may never end.
    """

    def __init__(
        self,
        model: str | Path | bytes,
        *,
        threads: int = 0,
        unpacks: bool = False,
        optimizes: bool = True,
        trust: bool = False,
    ) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _NO_LOG
        options.intra_op_num_threads = threads  # 0: as many as there are cores
        if not optimizes:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        for name, value in UNPACKING.items() if unpacks else ():
            options.add_session_config_entry(name, value)
        what = "the graph" if isinstance(model, bytes) else str(model)
        # From memory: what a file says about other files is not followed.
        content = model if isinstance(model, bytes) else _read(Path(model))
        self.has_checksum = verify_checksum(content, what)
        """Whether the file has a checksum (a correct one); files from other tools have none."""
        if not trust and not isinstance(model, bytes):
            check_straight(content, what)
        try:
            self.session = onnxruntime.InferenceSession(
                content, options, ["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as error:  # ONNX Runtime's types have no common base but this one
            raise HwbmpqError(f"ONNX Runtime cannot load {what}: {str(error).splitlines()[0]}") from error
        self.input = self.session.get_inputs()[0]
        self.input_names = tuple(one.name for one in self.session.get_inputs())
        batch = self.input.shape[0]
        self.batch = batch if isinstance(batch, int) else None
        """The only batch size that it takes, or None for any."""

    @property
    def is_sealed(self) -> bool:
        """Deprecated: ``has_checksum``."""
        warn("OnnxNetwork.is_sealed", "OnnxNetwork.has_checksum")
        return self.has_checksum

    def __call__(self, images: Arrays) -> NDArray[np.float32]:
        return self.outputs(images)[0]

    def outputs(self, images: Arrays) -> list[NDArray[np.float32]]:
        """All outputs for a batch, whatever its size."""
        arrays = dict(images) if isinstance(images, Mapping) else {self.input.name: images}
        count = len(next(iter(arrays.values())))
        size = self.batch or count
        parts = [self._run(part_of(arrays, start, size, count)) for start in range(0, count, size)]
        return [np.concatenate(tensors) for tensors in zip(*parts, strict=True)]

    def as_module(self, like: Any = None) -> nn.Module:
        """The same as a module of torch: it returns the first output, or all of them in the nest of ``like``."""
        return _Module(self, like)

    def _run(self, arrays: Mapping[str, NDArray[Any]]) -> Sequence[NDArray[np.float32]]:
        try:
            return self.session.run(None, arrays)  # type: ignore[no-any-return]
        except Exception as error:
            raise HwbmpqError(f"ONNX Runtime failed: {str(error).splitlines()[0]}") from error


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, LARGEST_FILE)
    except OSError as error:
        raise HwbmpqError(f"{path} cannot be read: {error.strerror or error}") from error


def part_of(arrays: Mapping[str, NDArray[Any]], start: int, size: int, count: int) -> dict[str, NDArray[Any]]:
    """Some of the ``count`` samples; arrays of another length belong to all of them."""
    return {name: a[start : start + size] if a.ndim and len(a) == count else a for name, a in arrays.items()}


class _Module(nn.Module):
    def __init__(self, network: OnnxNetwork, like: Any) -> None:
        super().__init__()
        self._network, self._like = network, like

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = as_input(ModelInputs(args=args, kwargs=kwargs), self._network.input_names)
        found = map(torch.from_numpy, self._network.outputs(given))
        return next(found) if self._like is None else map_tensors(self._like, lambda _: next(found))


def as_input(inputs: Inputs, names: Sequence[str] = ()) -> Arrays:
    """A batch as ONNX Runtime takes it: an array, or several by the ``names`` of a graph's inputs."""
    given = ModelInputs.of(inputs)
    if len(given.tensors) == 1:
        return _array(given.tensors[0])
    named = dict(pair for name, value in given.kwargs.items() for pair in named_tensors(name, value))
    free = [name for name in names if name not in named]
    positional = list(tensors(given.args))
    if not named.keys() <= set(names) or len(free) != len(positional):
        raise HwbmpqError(
            f"{len(positional)} inputs{''.join(f' and {name}' for name in named)} do not fit a graph that takes "
            f"{', '.join(names) or 'nothing'}"
        )
    named |= dict(zip(free, positional, strict=True))
    return {name: _array(named[name]) for name in names}


def _array(tensor: Tensor) -> NDArray[Any]:
    values = tensor.detach().cpu()
    return np.ascontiguousarray((values.float() if values.is_floating_point() else values).numpy())


def output_ranges(model: bytes, batches: Iterable[Arrays]) -> dict[str, tuple[float, float]]:
    """The least and the largest value of every output over some batches."""
    # Optimized, ONNX Runtime 1.31 may lose an output that is also read inside the graph.
    network = OnnxNetwork(model, optimizes=False)
    names = [output.name for output in network.session.get_outputs()]
    found: dict[str, tuple[float, float]] = {}
    for outputs in (network.outputs(images) for images in batches):
        for name, values in zip(names, outputs, strict=True):
            low, high = found.get(name, (np.inf, -np.inf))
            found[name] = (min(low, float(values.min())), max(high, float(values.max())))
    return found
