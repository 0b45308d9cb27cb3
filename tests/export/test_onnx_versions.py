"""Which ONNX Runtime loads a file, and the form for older ones."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from hwbmpq.export import OnnxNetwork, onnx_graph
from hwbmpq.graph import describe
from hwbmpq.quant import prepare

NARROW = {onnx.TensorProto.INT2, onnx.TensorProto.UINT2, onnx.TensorProto.INT4, onnx.TensorProto.UINT4}


def quantized(bits: tuple[int, int], images: torch.Tensor, model: nn.Module) -> nn.Module:
    prepare(model, describe(model, images[:1]), precision=bits, first_last_precision=(16, 16))
    model.train()(images)
    return model.eval()


@pytest.mark.parametrize(
    ("bits", "form", "version"),
    [
        ((8, 8), "qdq", "1.18"),
        ((4, 8), "qdq", "1.19"),
        ((8, 4), "qdq", "1.19"),
        ((3, 8), "qdq", "1.19"),
        ((2, 8), "qdq", "1.24"),
        ((4, 2), "qdq", "1.24"),
        ((2, 2), "qdq8", "1.18"),
        ((4, 4), "qdq8", "1.18"),
        ((2, 2), "int8", "1.18"),
        ((2, 32), "int8", "1.24"),
        ((4, 32), "int8", "1.18"),
        ((8, 32), "int8", "1.22"),
        ((4, 4), "qonnx", ""),
    ],
)
def test_the_least_runtime_is_what_was_measured(
    bits: tuple[int, int], form: str, version: str, tiny_cnn: nn.Module, images: torch.Tensor
) -> None:
    graph = onnx_graph(quantized(bits, images, tiny_cnn), images[:1], form=form)  # type: ignore[arg-type]
    assert graph.least_runtime == version
    assert any("ONNX Runtime loads it from version" in remark for remark in graph.remarks) == bool(version)


@pytest.mark.parametrize("bits", [(2, 2), (3, 3), (4, 4), (2, 8), (5, 4), (8, 8)])
def test_the_older_form_has_whole_bytes_and_the_exact_forms_answers(
    bits: tuple[int, int], tiny_cnn: nn.Module, images: torch.Tensor
) -> None:
    network = quantized(bits, images, tiny_cnn)
    graph = onnx_graph(network, images[:1], form="qdq8")
    proto = onnx.load_from_string(graph.content)
    assert not {tensor.data_type for tensor in proto.graph.initializer} & NARROW
    assert (graph.opset, proto.ir_version) == (21, 10)
    exact = OnnxNetwork(onnx_graph(network, images[:1]).content)(images.numpy())
    np.testing.assert_array_equal(OnnxNetwork(graph.content)(images.numpy()), exact)


def test_the_older_form_is_offered_where_it_helps(tiny_cnn: nn.Module, images: torch.Tensor) -> None:
    graph = onnx_graph(quantized((2, 8), images, tiny_cnn), images[:1])
    assert "ONNX Runtime loads it from version 1.24 on; --runtime-compat older: from 1.18" in graph.remarks
    older = onnx_graph(tiny_cnn, images[:1], form="qdq8")
    assert "2-bit weights are stored as 8-bit integers" in older.remarks
    assert "ONNX Runtime loads it from version 1.18 on" in older.remarks
