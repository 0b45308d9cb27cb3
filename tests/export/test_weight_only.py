"""Files of networks with recurrent layers, attention, embeddings and functional weights."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F
from weight_only_networks import NETWORKS, Gru

import hwbmpq
from hwbmpq.errors import HwbmpqError
from hwbmpq.export import Form, OnnxNetwork, PackedFileError, onnx_graph, read_packed, save_packed
from hwbmpq.export.packed.container import read_container, write_container
from hwbmpq.export.packed.contents import predicted_size
from hwbmpq.quant import prepare, quantized_layers

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


def quantized(name: str, **settings: object) -> tuple[nn.Module, Tensor, Tensor]:
    """A network that has seen data, an input, and its answers."""
    make, example = NETWORKS[name]
    model, inputs = make(), example()
    prepare(model, hwbmpq.describe(model, inputs), **settings)  # type: ignore[arg-type]
    model(inputs)
    with torch.no_grad():
        return model.eval(), inputs, model(inputs)


@pytest.mark.parametrize("per_channel", [False, True], ids=["per layer", "per channel"])
@pytest.mark.parametrize("bits", [2, 3, 8])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_packed_file_gives_the_same_answers(
    name: str, bits: int, per_channel: bool, tmp_path: Path
) -> None:
    model, inputs, expected = quantized(name, precision=bits, per_channel=per_channel)
    account = save_packed(model, tmp_path / "model.safetensors", example_input=inputs)
    loaded = hwbmpq.load(tmp_path / "model.safetensors", model=NETWORKS[name][0]())
    with torch.no_grad():
        assert torch.equal(loaded(inputs), expected)
    assert {n: layer.precision for n, layer in quantized_layers(loaded)} == {
        n: layer.precision for n, layer in quantized_layers(model)
    }
    assert account.actual_bytes == (tmp_path / "model.safetensors").stat().st_size
    save_packed(loaded, tmp_path / "again.safetensors", example_input=inputs)
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_stored_once_at_their_bits(name: str, tmp_path: Path) -> None:
    make, example = NETWORKS[name]
    model, inputs = make(), example()
    graph = hwbmpq.describe(model, inputs)
    prepare(model, graph, precision=4, first_last_precision=4)
    account = save_packed(model, tmp_path / "model.safetensors", example_input=inputs)
    lines = {line.label: line for line in account.lines}
    packed = sum(-(-layer.parameters * 4 // 8) for layer in graph)
    assert lines["packed weights"].actual_bytes == lines["packed weights"].predicted_bytes == packed
    rest = sum(entry.bits for entry in graph.stored) // 8
    stored = ("biases", "norms", "other tensors in float", "clipping points")
    assert sum(lines[label].actual_bytes or 0 for label in stored) == rest
    predicted = predicted_size(make(), graph, {layer.name: 4 for layer in graph})
    assert predicted.predicted_bytes == account.predicted_bytes


def test_names_in_a_file_are_those_of_layers(tmp_path: Path) -> None:
    model, inputs, _ = quantized("gru")
    save_packed(model, tmp_path / "model.safetensors", example_input=inputs)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert {"gru.weight_ih_l0", "gru.weight_hh_l1", "embed.weight", "gru.bias_ih_l0"} <= names
    layers = {layer.name: layer for layer in read_packed(tmp_path / "model.safetensors").metadata.layers}
    assert layers["gru.weight_ih_l0"].is_parameter
    assert layers["gru.weight_ih_l0"].quantizer is None
    assert not layers["embed"].is_parameter


def test_a_network_with_only_such_weights_can_be_stored(tmp_path: Path) -> None:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0][:, -1]

    model, inputs = Alone(), torch.randn(2, 6, 4)
    prepare(model, hwbmpq.describe(model, inputs))
    save_packed(model, tmp_path / "model.safetensors", example_input=inputs)
    loaded = hwbmpq.load(tmp_path / "model.safetensors", model=Alone())
    with torch.no_grad():
        assert torch.equal(loaded(inputs), model.eval()(inputs))


class Other(Gru):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.LSTM(8, 12, num_layers=2, batch_first=True)


class Pooled(Gru):
    def __init__(self) -> None:
        super().__init__()
        del self.gru

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.pad(self.embed(x), (0, 4))[:, -1])


@pytest.mark.parametrize(
    ("network", "message"),
    [(Other, "has a weight of shape"), (Pooled, "has no such layer")],
    ids=["other shapes", "no such module"],
)
def test_another_network_is_refused(network: type[nn.Module], message: str, tmp_path: Path) -> None:
    model, inputs, _ = quantized("gru")
    save_packed(model, tmp_path / "model.safetensors", example_input=inputs)
    with pytest.raises(PackedFileError, match=message):
        hwbmpq.load(tmp_path / "model.safetensors", model=network())


@pytest.mark.parametrize(
    "change",
    [
        {"name": "head.nothing"},
        {"name": "gru"},
        {"activation_bits": 8},
        {"quantizer": 0},
        {"name": "gru.bias_ih_l0"},
    ],
    ids=str,
)
def test_files_that_contradict_themselves_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    model, inputs, _ = quantized("gru")
    path = tmp_path / "model.safetensors"
    save_packed(model, path, example_input=inputs)
    container = read_container(path)
    metadata = json.loads(container.metadata)
    layer = next(layer for layer in metadata["layers"] if layer["name"] == "gru.weight_ih_l0")
    layer.update(change)
    write_container(path, container.tensors, json.dumps(metadata))
    with pytest.raises(PackedFileError):
        hwbmpq.load(path, model=Gru())


IN_ONNX = [name for name in NETWORKS if name != "projected lstm"]


def onnx_answers(content: bytes, inputs: Tensor) -> np.ndarray:
    return OnnxNetwork(content, threads=1).outputs(inputs.numpy())[0]


@pytest.mark.parametrize(("bits", "per_channel"), [(2, False), (3, True), (8, True)], ids=str)
@pytest.mark.parametrize("name", IN_ONNX)
def test_onnx_runtime_gives_the_same_answers(name: str, bits: int, per_channel: bool) -> None:
    model, inputs, expected = quantized(name, precision=bits, first_last_precision=8, per_channel=per_channel)
    graph = onnx_graph(model, inputs)
    np.testing.assert_allclose(onnx_answers(graph.content, inputs), expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", IN_ONNX)
def test_the_integer_form_gives_about_the_same(name: str) -> None:
    model, inputs, expected = quantized(name, precision=8, first_last_precision=8)
    graph = onnx_graph(model, inputs, form="int8", calibration=[inputs.numpy()])
    difference = np.abs(onnx_answers(graph.content, inputs) - expected.numpy()).max()
    assert difference < 0.01 * float(expected.abs().max())


@pytest.mark.parametrize("name", IN_ONNX)
def test_onnx_files_hold_integers_once(name: str) -> None:
    make, example = NETWORKS[name]
    model, inputs = make(), example()
    graph = hwbmpq.describe(model, inputs)
    prepare(model, graph, precision=4, first_last_precision=4)
    model(inputs)
    proto = onnx.load_from_string(onnx_graph(model, inputs).content)
    codes = [tensor for tensor in proto.graph.initializer if tensor.name.endswith(".weight_codes")]
    assert {tensor.data_type for tensor in codes} == {onnx.TensorProto.INT4}
    assert sum(int(np.prod(tensor.dims)) for tensor in codes) == graph.weights
    others = [int(np.prod(tensor.dims)) for tensor in proto.graph.initializer if tensor not in codes]
    left = {entry.parameters for entry in graph.uncovered}
    smallest = min(layer.weight_elements for layer in graph if layer.weight_only)
    assert all(size in left or size < smallest for size in others)


def test_a_quant_node_stands_for_such_a_weight_in_qonnx() -> None:
    model, inputs, _ = quantized("functional")
    proto = onnx.load_from_string(onnx_graph(model, inputs, form="qonnx").content)
    quantizers = {node.output[0] for node in proto.graph.node if node.op_type == "Quant"}
    assert {"kernel.weight_quantized", "experts.weight_quantized", "values.weight_quantized"} <= quantizers


def test_what_onnx_does_not_have_is_said() -> None:
    model, inputs, _ = quantized("projected lstm")
    forms: tuple[Form, ...] = ("qdq", "int8", "qonnx")
    for form in forms:
        with pytest.raises(HwbmpqError, match="lstm is an LSTM with projections"):
            onnx_graph(model, inputs, form=form)
