"""What is in an ONNX file, and what exporting leaves behind: nothing."""

import copy
import json
from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.errors import HwbmpqError
from hwbmpq.export import OnnxNetwork, compare, onnx_graph, save_packed, stored_weights, write_onnx
from hwbmpq.quant import assign, prepare, quantized_layers

Exported = Any  # of conftest.py
Calibrated = Callable[..., nn.Module]
Relative = Callable[[Any, Any], float]


def norm(kind: Callable[..., nn.Module], channels: int, **options: Any) -> nn.Module:
    """As after training: everything moved, a third of γ negative, one γ zero and one tiny."""
    made = kind(channels, **options)
    with torch.no_grad():
        made.running_mean.normal_()
        made.running_var.uniform_(0.2, 3.0)
        if made.affine:
            made.weight.uniform_(0.3, 2.0)
            made.weight[::3] *= -1
            made.weight[1], made.weight[2] = 0.0, 1e-7
            made.bias.normal_()
    return made


class Norms(nn.Module):
    """Layers of all kinds with norms behind them, all reading the network's input."""

    def __init__(self) -> None:
        super().__init__()
        two = nn.BatchNorm2d
        self.branches = nn.ModuleDict(
            {
                "plain": nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), norm(two, 6)),
                "biased": nn.Sequential(nn.Conv2d(4, 6, 3), norm(two, 6, eps=1e-2)),
                "grouped": nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), norm(two, 8)),
                "depthwise": nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), norm(two, 4)),
                "unscaled": nn.Sequential(nn.Conv2d(4, 6, 1), norm(two, 6, affine=False)),
                "transposed": nn.Sequential(nn.ConvTranspose2d(4, 6, 2), norm(two, 6)),
                "vectors": nn.Sequential(nn.Flatten(), nn.Linear(144, 6), norm(nn.BatchNorm1d, 6)),
                "line": nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 6, 3), norm(nn.BatchNorm1d, 6)),
                # Where a norm cannot go into scales.
                "transposed_groups": nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=2), norm(two, 6)),
                "seen_before": SeenBefore(),
                "after_relu": nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), norm(two, 6)),
            }
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(branch(x) for branch in self.branches.values())


class SeenBefore(nn.Module):
    """Somebody reads what comes before the norm; and a layer has a norm for each of its two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 6, 3)
        self.twice = nn.Conv2d(4, 6, 3, bias=False)
        self.norms = nn.ModuleList([norm(nn.BatchNorm2d, 6) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y + self.norms[0](y) + self.norms[1](self.twice(x)) + self.norms[2](self.twice(0.75 * x))


FOLDED = {
    "plain": 0,
    "biased": 0,
    "grouped": 0,
    "depthwise": 0,
    "unscaled": 0,
    "transposed": 0,
    "vectors": 1,
    "line": 1,
}
"""Branches whose norm goes into scales, with the layer's place in them."""


def some_images(*, batch: int = 3) -> Tensor:
    return torch.randn(batch, 4, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", params=[False, True], ids=["per_tensor", "per_channel"])
def norms(request: pytest.FixtureRequest, exported: Callable[..., Exported]) -> Exported:
    widths = {
        f"branches.{name}.{place}": (bits, 8)
        for (name, place), bits in zip(FOLDED.items(), (2, 3, 4, 5, 8, 16, 4, 2), strict=True)
    }
    return exported(Norms, some_images(), widths=widths, per_channel=request.param)


def test_folding_norms_does_not_change_what_is_computed(norms: Exported, relative: Relative) -> None:
    for name, expected, found in zip(norms.network.branches, *norms.outputs(some_images()), strict=True):
        assert relative(expected, found) <= 1e-5, name


def test_norms_are_folded_wherever_they_follow_a_product_alone(norms: Exported) -> None:
    assert norms.graph.folded_norms == len(FOLDED) + 2  # the layer with two calls has two
    assert norms.operators().count("BatchNormalization") == 3


@pytest.mark.parametrize("branch", FOLDED)
def test_a_folded_norm_leaves_the_trained_integers_up_to_the_sign(norms: Exported, branch: str) -> None:
    place = FOLDED[branch]
    layer, batch_norm = norms.network.branches[branch][place : place + 2]
    stored = stored_weights(norms.network, some_images())[layer.layer_name]
    names = norms.stored(layer.layer_name)
    codes, found, scales = stored.codes.numpy(), *(norms.constants[name] for name in names[:2])
    gamma = np.ones(batch_norm.num_features) if not batch_norm.affine else batch_norm.weight.detach().numpy()
    on_channels = [1] * codes.ndim
    on_channels[1 if branch == "transposed" else 0] = -1
    sign = np.sign(gamma).reshape(on_channels)
    assert np.array_equal(found, codes * sign)
    variance = batch_norm.running_var.double().numpy() + batch_norm.eps
    factor = gamma.astype(np.float64) / np.sqrt(variance)
    trained = stored.scale.double().numpy().reshape(-1)
    expected = np.where(factor == 0, 1.0, trained * np.abs(factor))
    np.testing.assert_allclose(scales, expected, rtol=2**-23)
    bias = 0.0 if layer.bias is None else layer.bias.detach().double().numpy()
    beta = batch_norm.bias.detach().double().numpy() if batch_norm.affine else 0.0
    shift = beta + (bias - batch_norm.running_mean.double().numpy()) * factor
    np.testing.assert_allclose(
        norms.constants[f"{layer.layer_name}.bias_with_norm"], shift, rtol=2**-22, atol=1e-12
    )


@pytest.mark.parametrize("form", ["qdq", "int8"])
@pytest.mark.parametrize("bits", [16, 12, 8])
def test_layers_in_a_row_keep_their_weights_and_biases(
    exported: Callable[..., Exported], bits: int, form: str
) -> None:
    """Between quantizers, ONNX Runtime would round float weights to bytes, and biases to units that overflow."""

    def build() -> nn.Module:
        layers = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(4)]
        for layer in layers:
            layer.weight.data *= 0.01
            layer.weight.data[0] *= 300
            layer.bias.data[1:] += 20
        return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))

    images = some_images(batch=16)
    widths = {str(place): (16, bits) for place in (0, 2, 4, 6)}
    row = exported(build, images, widths=widths, form=form, per_channel=True)
    (expected,), (found,) = row.outputs(images)
    quiet = slice(1, None)  # the first channel is loud
    assert np.abs(found - expected)[:, quiet].max() <= 1e-3 * np.abs(expected[:, quiet]).max()


# Opsets, metadata, batches: on the tiny network.


@pytest.mark.parametrize(
    ("width", "opset"),
    [((2, 4), 25), ((4, 2), 25), ((3, 16), 21)],
    ids=["2-bit weights", "2-bit activations", "neither"],
)
def test_the_opset_is_new_exactly_where_something_has_2_bits(
    calibrated: Calibrated, width: tuple[int, int], opset: int
) -> None:
    images = some_images()
    network = calibrated(
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), images, widths={"2": width}
    )
    graph = onnx_graph(network, images[:1])
    proto = onnx.load_from_string(graph.content)
    assert graph.opset == opset
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", opset)]
    onnx.checker.check_model(proto, full_check=True)
    assert compare(network, OnnxNetwork(graph.content), [images]).largest_difference < 1e-5


@pytest.fixture
def fresh(tiny_cnn: nn.Module) -> nn.Module:
    """The tiny network with other weights, before it was quantized."""
    network = copy.deepcopy(tiny_cnn)
    for parameter in network.parameters():
        nn.init.constant_(parameter, 0.5)
    return network


@pytest.fixture
def tiny(fresh: nn.Module, tiny_cnn: nn.Module, images: Tensor) -> nn.Module:
    """The tiny network with several widths, calibrated."""
    prepare(tiny_cnn, hwbmpq.describe(tiny_cnn, images[:1]), precision=(4, 8), per_channel=True)
    assign(tiny_cnn, {"3": (3, 5)})
    tiny_cnn.train()(images)
    return tiny_cnn.eval()


def test_a_network_is_left_exactly_as_it_was(tiny: nn.Module, images: Tensor) -> None:
    tiny.train()
    tiny[1].eval()
    before = copy.deepcopy(tiny.state_dict())
    modes = [module.training for module in tiny.modules()]
    attributes = [sorted(vars(module)) for module in tiny.modules()]
    trains = [parameter.requires_grad for parameter in tiny.parameters()]
    random = torch.get_rng_state()
    onnx_graph(tiny, images[:1], form="int8", calibration=[images.numpy()])
    assert [module.training for module in tiny.modules()] == modes
    assert [sorted(vars(module)) for module in tiny.modules()] == attributes
    assert [parameter.requires_grad for parameter in tiny.parameters()] == trains
    assert torch.equal(torch.get_rng_state(), random)
    assert tiny.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in tiny.state_dict().items())
    tiny(images).sum().backward()
    assert all(parameter.grad is not None for parameter in tiny.parameters() if parameter.requires_grad)


def test_a_file_takes_any_batch_and_keeps_facts(tiny: nn.Module, images: Tensor, tmp_path: Path) -> None:
    facts = {"classes": ["a", "ü"], "accuracy": 0.5, "nothing": None}
    graph = onnx_graph(tiny, images[:1], facts=facts)
    path = write_onnx(graph, tmp_path / "model.onnx")
    assert path.read_bytes() == graph.content
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    network = OnnxNetwork(path)
    assert graph.has_dynamic_batch
    assert network.batch is None
    many = torch.cat([images] * 8)
    with torch.no_grad():
        expected = tiny(many).numpy()
    for size in (1, 3, 32):
        found = np.concatenate([network(part.numpy()) for part in many.split(size)])
        np.testing.assert_allclose(found, expected, atol=1e-6)
    proto = onnx.load(path)
    *entries, checksum = proto.metadata_props
    assert checksum.key == "hwbmpq.checksum"
    stored = {entry.key: json.loads(entry.value) for entry in entries}
    assert stored == {f"hwbmpq.{name}": value for name, value in facts.items()}
    assert network.has_checksum
    assert (proto.producer_name, proto.producer_version) == ("hwbmpq", hwbmpq.__version__)
    text = graph.content.decode("latin-1")
    assert str(Path(__file__).parent) not in text  # where a node came from is nobody's business
    assert "site-packages" not in text


def test_a_packed_network_exports_to_the_same_file(
    tiny: nn.Module, fresh: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    save_packed(tiny, tmp_path / "model.safetensors", example_input=images[:1], origin={})
    loaded = hwbmpq.load(tmp_path / "model.safetensors", fresh)
    assert onnx_graph(loaded, images[:1]).content == onnx_graph(tiny, images[:1]).content


def test_the_account_adds_up_to_the_file(tiny: nn.Module, images: Tensor, tmp_path: Path) -> None:
    graph = onnx_graph(tiny, images[:1])
    lines = {line.label: line for line in graph.account.lines}
    assert sum(line.actual_bytes for line in graph.account.lines) == len(graph.content)
    sizes = {name: layer.weight.numel() for name, layer in quantized_layers(tiny)}  # at 16, 3, 4 and 16 bits
    bits = {"0": 16, "3": 3, "6": 4, "8": 16}
    assert lines["weights"].predicted_bytes == sum(ceil(bits[name] * sizes[name] / 8) for name in bits)
    packed = save_packed(tiny, tmp_path / "packed", example_input=images[:1])
    assert graph.account.on_device.predicted_bytes == packed.on_device.actual_bytes
    assert lines["weights"].actual_bytes == (
        2 * sizes["0"] + ceil(sizes["3"] / 2) + ceil(sizes["6"] / 2) + 2 * sizes["8"]
    )
    assert lines["biases and norms"].actual_bytes == 4 * (4 + 12 + 5)  # the second convolution has none


class OneAtATime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if len(x) == 1 else torch.cat([self(image[None]) for image in x])


def test_a_network_with_a_batch_size_of_its_own_takes_one_input_at_a_time(
    calibrated: Calibrated, images: Tensor
) -> None:
    network = calibrated(OneAtATime, images)
    graph = onnx_graph(network, images[:1])
    file = OnnxNetwork(graph.content)
    assert not graph.has_dynamic_batch
    assert "the graph takes one input at a time" in graph.remarks
    assert file.batch == 1
    assert compare(network, file, [images[:3]]).largest_difference < 1e-5


class LooksAtValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def test_a_network_that_cannot_be_followed_is_refused_and_left_as_it_was(images: Tensor) -> None:
    network = LooksAtValues().eval()
    layers = hwbmpq.describe(nn.Sequential(OrderedDict(layer=network.layer)), images[:1])
    prepare(network, layers)
    expected = network(images)
    with pytest.raises(HwbmpqError, match="torch's ONNX exporter cannot follow the network") as error:
        onnx_graph(network, images[:1])
    assert "hwbmpq.load" in (error.value.hint or "")
    assert torch.equal(network(images), expected)
    quantizers = network.layer.input_quantizer, network.layer.weight_quantizer
    assert not any([*quantizer._forward_hooks, *quantizer._forward_pre_hooks] for quantizer in quantizers)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_network_without_ranges_is_refused(tiny_cnn: nn.Module, images: Tensor, bits: int) -> None:
    """It would find some in its next run, and then compute something else than the file."""
    other = 24 - bits
    prepare(tiny_cnn, hwbmpq.describe(tiny_cnn, images[:1]), precision=other, first_last_precision=None)
    tiny_cnn.train()(images)
    assign(tiny_cnn, {"6": bits})
    tiny_cnn[6].input_quantizer.calibration.has_range = False  # known at 8 bits, too
    with pytest.raises(HwbmpqError, match=f"the input of layer '6' has no range at {bits} bits yet") as error:
        onnx_graph(tiny_cnn, images[:1])
    assert "run the network once" in (error.value.hint or "")


def test_a_layer_whose_input_is_always_zero(calibrated: Calibrated, images: Tensor) -> None:
    def dead() -> nn.Module:
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
        nn.init.constant_(network[0].bias, -100.0)
        return network

    network = calibrated(dead, images)
    graph = onnx_graph(network, images[:1])
    assert compare(network, OnnxNetwork(graph.content), [images]).largest_difference < 1e-6


def test_an_unknown_form_is_refused(tiny: nn.Module, images: Tensor) -> None:
    with pytest.raises(HwbmpqError, match="no form of ONNX graphs is called 'tflite'") as error:
        onnx_graph(tiny, images[:1], form="tflite")  # type: ignore[arg-type]
    assert error.value.hint == "use qdq, qdq8, int8, qonnx"


def test_a_file_that_cannot_be_written_leaves_nothing(
    tiny: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    graph = onnx_graph(tiny, images[:1])
    with pytest.raises(HwbmpqError, match=r"missing.model\.onnx cannot be written: No such file"):
        write_onnx(graph, tmp_path / "missing" / "model.onnx")
    (tmp_path / "model.onnx").mkdir()
    with pytest.raises(HwbmpqError, match=r"model\.onnx cannot be written"):
        write_onnx(graph, tmp_path / "model.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_what_is_no_onnx_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no graph")
    with pytest.raises(HwbmpqError, match=r"ONNX Runtime cannot load .*model\.onnx"):
        OnnxNetwork(path)
    with pytest.raises(HwbmpqError, match="ONNX Runtime cannot load the graph"):
        OnnxNetwork(b"no graph")
