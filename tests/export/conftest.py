"""Quantized networks exported to ONNX, and what runs inside the files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn

import hwbmpq
from hwbmpq.export import Form, OnnxGraph, OnnxNetwork, onnx_graph
from hwbmpq.quant import QuantizedLayer, assign, prepare, quantized_layers
from hwbmpq.quant.prepare import Width

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A quantized network and its graph."""

    network: nn.Module
    graph: OnnxGraph

    @property
    def layers(self) -> dict[str, QuantizedLayer]:
        return dict(quantized_layers(self.network))

    @cached_property
    def proto(self) -> onnx.ModelProto:
        return onnx.load_from_string(self.graph.content)

    @cached_property
    def constants(self) -> dict[str, NDArray[Any]]:
        """By name; integers of any width as int64."""
        arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in self.proto.graph.initializer}
        return {
            name: array if array.dtype == np.float32 else array.astype(np.int64)
            for name, array in arrays.items()
        }

    def operators(self) -> list[str]:
        return [node.op_type for node in self.proto.graph.node]

    def products(self, layer: str) -> list[onnx.NodeProto]:
        """The nodes that multiply with a layer's weight."""
        return [
            node
            for node in self.proto.graph.node
            if node.op_type in PRODUCTS and node.input[1].startswith(f"{layer}.weight_")
        ]

    def stored(self, layer: str) -> list[str]:
        """The constants that a layer's weight is made of: codes, scales, and zeros if there are any."""
        return next(
            list(node.input)
            for node in self.proto.graph.node
            if node.op_type in ("DequantizeLinear", "Quant") and node.output[0].startswith(f"{layer}.weight_")
        )

    def values(self, images: Tensor, names: Sequence[str]) -> list[NDArray[np.float32]]:
        """Values from within the graph."""
        proto = onnx.ModelProto.FromString(self.graph.content)
        proto.graph.ClearField("output")
        proto.ClearField("metadata_props")  # the checksum is that of the whole file
        kind = onnx.TensorProto.FLOAT
        proto.graph.output.extend(onnx.helper.make_tensor_value_info(name, kind, None) for name in names)
        return OnnxNetwork(proto.SerializeToString(), threads=1).outputs(images.numpy())

    def outputs(self, images: Tensor) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
        """Of the network, and of the file."""
        with torch.no_grad():
            expected = self.network(images)
        expected = [expected] if isinstance(expected, Tensor) else expected
        found = OnnxNetwork(self.graph.content, threads=1).outputs(images.numpy())
        return [tensor.numpy() for tensor in expected], found


def make_calibrated(
    build: Callable[[], nn.Module],
    images: Tensor,
    *,
    widths: Mapping[str, Width] | None = None,
    change: Callable[[nn.Module], object] = lambda network: None,
    **options: Any,
) -> nn.Module:
    """Built by the same seed every time, quantized at ``widths``, calibrated by ``images``; ``change`` comes last."""
    torch.manual_seed(0)
    network = build().eval()
    options = {"precision": 8, "first_last_precision": None} | options
    prepare(network, hwbmpq.describe(network, images[:1]), **options)
    assign(network, widths or {})
    with torch.no_grad():
        network(images)
        change(network)
    return network


def make_exported(
    build: Callable[[], nn.Module],
    images: Tensor,
    *,
    form: Form = "qdq",
    calibration: Iterable[NDArray[np.float32]] | None = None,
    accumulates_int32: bool = False,
    **options: Any,
) -> Exported:
    network = make_calibrated(build, images, **options)
    graph = onnx_graph(
        network, images[:1], form=form, calibration=calibration, accumulates_int32=accumulates_int32
    )
    return Exported(network=network, graph=graph)


@pytest.fixture(scope="session")
def calibrated() -> Callable[..., nn.Module]:
    """Build, quantize and calibrate a network."""
    return make_calibrated


@pytest.fixture(scope="session")
def exported() -> Callable[..., Exported]:
    """Build, quantize, calibrate and export a network."""
    return make_exported


@pytest.fixture(scope="session")
def relative() -> Callable[[NDArray[np.float32], NDArray[np.float32]], float]:
    """The largest difference in units of the largest expected magnitude."""

    def difference(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
        assert found.shape == expected.shape
        return float(np.abs(found - expected).max() / np.abs(expected).max())

    return difference
