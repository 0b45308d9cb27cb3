"""The form that ONNX Runtime runs by integer kernels: fused, exact, and honest about what it adds."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.errors import HwbmpqError
from hwbmpq.export import OnnxNetwork, compare, onnx_graph, stored_weights
from hwbmpq.measure import accumulates_int32_here
from hwbmpq.quant import QuantizedLayer, quantized_layers
from hwbmpq.quant.functional import largest_code

Exported = Any  # of conftest.py
Calibrated = Callable[..., nn.Module]


def some_images(*, batch: int = 8, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, 8, 8, generator=torch.Generator().manual_seed(1))


def kernels(content: bytes, folder: Path) -> Counter[str]:
    """What ONNX Runtime makes of a graph."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    graph = onnx.load(options.optimized_model_filepath).graph
    return Counter(node.op_type for node in graph.node)


class Residual(nn.Module):
    """As in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.first = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(x + self.second(self.first(x)))
        return self.head(x.mean((2, 3)))


class Inverted(nn.Module):
    """As in a MobileNetV2."""

    def __init__(self) -> None:
        super().__init__()

        def step(*sizes: int, groups: int = 1) -> nn.Sequential:
            padding = sizes[2] // 2
            layer = nn.Conv2d(*sizes, padding=padding, groups=groups, bias=False)
            return nn.Sequential(layer, nn.BatchNorm2d(sizes[1]), nn.ReLU6())

        self.stem = step(3, 8, 3)
        self.expand = step(8, 16, 1)
        self.depthwise = step(16, 16, 3, groups=16)
        self.project = nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.last = step(8, 16, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.project(self.depthwise(self.expand(x)))
        return self.head(self.last(x).mean((2, 3)))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "residual": (Residual, 3, 2),
    "inverted": (Inverted, 5, 3),
}
"""With the number of convolutions, and of tensors that the network keeps in float and integer kernels round."""


@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_runtime_runs_integer_kernels(name: str, calibrated: Calibrated, tmp_path: Path) -> None:
    build, convolutions, roundings = NETWORKS[name]
    images = some_images(batch=32)
    network = calibrated(build, images, precision=8, per_channel=True)
    graph = onnx_graph(network, images[:1], form="int8", calibration=[images.numpy()])
    found = kernels(graph.content, tmp_path)
    assert found["QLinearConv"] == convolutions
    assert found["Conv"] == found["FusedConv"] == found["Gemm"] == found["BatchNormalization"] == 0
    assert found["QGemm"] == 1
    assert found["Relu"] == 0 or name == "residual"  # which has one behind its addition
    assert graph.integer_layers == tuple(name for name, _ in quantized_layers(network))
    assert graph.added_roundings == roundings
    assert f"what {roundings} layers give is rounded to 8 bits" in " ".join(graph.remarks)
    agreement = compare(network, OnnxNetwork(graph.content), [images])
    assert agreement.largest_difference < 0.05


def test_layers_at_16_bits_stay_in_float(calibrated: Calibrated, tmp_path: Path) -> None:
    images = some_images()
    network = calibrated(Residual, images, precision=(4, 8), first_last_precision=16)
    graph = onnx_graph(network, images[:1], form="int8")
    found = kernels(graph.content, tmp_path)
    assert found["QLinearConv"] == 2
    assert found["Conv"] + found["FusedConv"] == 1
    assert found["Gemm"] == 1
    assert graph.integer_layers == ("first.0", "second.0")
    assert graph.remarks[0].startswith("2 layers run as 8-bit integer kernels")


class Wide(nn.Module):
    """At each of these widths a convolution that has no integer kernel."""

    widths = ((4, 16), (16, 8), (8, 32), (32, 8), (5, 9))

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 4, 3) for _ in self.widths])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(conv(x) for conv in self.convs)


def test_a_network_without_bytes_stays_in_float_and_says_so(exported: Callable[..., Exported]) -> None:
    widths = {f"convs.{place}": width for place, width in enumerate(Wide.widths)}
    wide = exported(Wide, some_images(), widths=widths, form="int8")
    assert wide.graph.integer_layers == ()
    assert wide.graph.added_roundings == 0
    assert "no layer has weights and activations of 8 bits or fewer" in wide.graph.remarks[0]
    for expected, found in zip(*wide.outputs(some_images()), strict=True):
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    "width", [(32, 32), (32, 8), (8, 32), (16, 16), (4, 12)], ids=lambda pair: "W{}A{}".format(*pair)
)
def test_a_float_layer_between_integer_ones_keeps_its_weights(
    calibrated: Calibrated, width: tuple[int, int]
) -> None:
    """ONNX Runtime would round them to bytes, all channels with one step."""

    def build() -> nn.Module:
        network = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=4)
        )
        network[2].weight.data[0] *= 300  # the others would become zero
        return network

    def cut_off(network: nn.Module) -> None:
        network[4].input_quantizer.alpha.fill_(1.0)

    images = some_images(batch=32)
    network = calibrated(build, images, widths={"2": width}, change=cut_off, per_channel=True)
    graph = onnx_graph(network, images[:1], form="int8", calibration=[images.numpy()])
    assert graph.integer_layers == ("0", "4")
    with torch.no_grad():
        expected = network(images).numpy()[:, 1:]
    found = OnnxNetwork(graph.content)(images.numpy())[:, 1:]
    assert np.abs(found - expected).max() < 0.03 * np.ptp(expected)


# Sums of extreme codes: x86 without VNNI adds two products in 16 bits.

BITS = (2, 3, 7, 8)
"""Of activations. Signed ones of 2 bits just fit."""
INPUTS = 64


class Extremes(nn.Module):
    """Layers of 8-bit weights, reading each a part of the input: at each width, signed and not."""

    def __init__(self) -> None:
        super().__init__()
        kinds: dict[str, Callable[[], nn.Module]] = {
            "vectors": lambda: nn.Linear(INPUTS, 4, bias=False),
            "tokens": lambda: nn.Linear(INPUTS, 4, bias=False),
            "conv": lambda: nn.Conv2d(INPUTS, 4, 2, bias=False),
        }
        self.layers = nn.ModuleDict(
            {f"{kind}_{sign}_{bits}": kinds[kind]() for bits in BITS for sign in "su" for kind in kinds}
        )
        for layer in self.layers.values():  # all codes 127, all -127, and halves of each
            weight = torch.ones_like(layer.weight)
            weight[1] = -1
            weight[2, ::2], weight[3, 1::2] = -1, -1
            layer.weight.data = weight

    def forward(self, parts: Tensor) -> tuple[Tensor, ...]:  # (B, 8, inputs, 2, 2)
        return tuple(layer(self.input_of(name, parts)) for name, layer in self.layers.items())

    def input_of(self, name: str, parts: Tensor) -> Tensor:
        kind, sign, bits = name.split("_")
        x = parts[:, 2 * BITS.index(int(bits)) + (sign == "u")]
        x = F.relu(x) if sign == "u" else x
        return {"vectors": x[:, :, 0, 0], "tokens": x.flatten(2).transpose(1, 2), "conv": x}[kind]


@pytest.fixture(scope="module")
def extreme_inputs() -> Tensor:
    """All at the upper end, all at the lower end, and mixed."""
    mixed = torch.randn(2, 8, INPUTS, 2, 2, generator=torch.Generator().manual_seed(1)).sign() * 1e3
    return torch.cat([mixed.abs()[:1], -mixed.abs()[:1], mixed])


def make_extremes(exported: Callable[..., Exported], inputs: Tensor, *, accumulates_int32: bool) -> Exported:
    widths = {
        f"layers.{kind}_{sign}_{bits}": (8, bits)
        for bits in BITS
        for sign in "su"
        for kind in ("vectors", "tokens", "conv")
    }

    def narrow(network: nn.Module) -> None:
        for layer in network.layers.values():
            layer.input_quantizer.alpha.fill_(2.0)

    return exported(
        Extremes,
        inputs,
        widths=widths,
        change=narrow,
        form="int8",
        calibration=[inputs.numpy()],
        accumulates_int32=accumulates_int32,
    )


@pytest.fixture(scope="module")
def extremes(exported: Callable[..., Exported], extreme_inputs: Tensor) -> Exported:
    return make_extremes(exported, extreme_inputs, accumulates_int32=False)


def test_sums_of_extreme_codes_are_exact(extremes: Exported, extreme_inputs: Tensor) -> None:
    check_extremes(extremes, extreme_inputs)


def test_signed_bytes_are_exact_where_sums_are_wide(
    exported: Callable[..., Exported], extreme_inputs: Tensor
) -> None:
    signed = make_extremes(exported, extreme_inputs, accumulates_int32=True)
    kinds = {tensor.name: tensor.data_type for tensor in signed.proto.graph.initializer}
    stored = {kinds[signed.stored(f"layers.{name}")[0]] for name in signed.network.layers}
    assert stored == {onnx.TensorProto.INT8}
    assert signed.graph.unsigned_layers == ()
    if not accumulates_int32_here():
        pytest.skip("this processor adds products of bytes in 16 bits: signed ones overflow on it")
    check_extremes(signed, extreme_inputs)


def check_extremes(extremes: Exported, extreme_inputs: Tensor) -> None:
    wrong = {}
    found = OnnxNetwork(extremes.graph.content, threads=1).outputs(extreme_inputs.numpy())
    weights = stored_weights(extremes.network, extreme_inputs)
    for (name, layer), output in zip(extremes.network.layers.items(), found, strict=True):
        kind, sign, bits = name.split("_")
        top = 2 ** (int(bits) - 1) - 1 if sign == "s" else 2 ** int(bits) - 1
        values = extremes.network.input_of(name, extreme_inputs).sign().double() * top
        codes = weights[f"layers.{name}"].codes.double()
        sums = F.conv2d(values, codes) if kind == "conv" else F.linear(values, codes)
        expected = (sums * weights[f"layers.{name}"].scale.double().flatten() * (2.0 / top)).numpy()
        # The output of a convolution is rounded to one of 255 steps.
        allowed = 0.501 * np.ptp(expected) / 255 if kind == "conv" else 1e-6 * np.abs(expected).max()
        if not np.abs(output - expected).max() <= allowed:
            wrong[name] = float(np.abs(output - expected).max() / np.abs(expected).max())
        assert layer.weight_bits == 8
    assert wrong == {}


def test_weights_are_bytes_with_their_zero_in_the_middle_where_sums_could_overflow(
    extremes: Exported,
) -> None:
    kinds = {tensor.name: tensor.data_type for tensor in extremes.proto.graph.initializer}
    for input_kind in ("s_3", "s_7", "s_8", "u_8"):
        codes, _, zeros = extremes.stored(f"layers.vectors_{input_kind}")
        assert kinds[codes] == kinds[zeros] == onnx.TensorProto.UINT8
        assert set(extremes.constants[codes].flatten()) == {1, 255}
        assert set(extremes.constants[zeros].flatten()) == {128}
    for input_kind in ("s_2", "u_2", "u_7"):
        assert kinds[extremes.stored(f"layers.vectors_{input_kind}")[0]] == onnx.TensorProto.INT8
    assert "layers.vectors_u_8" in extremes.graph.unsigned_layers
    assert "layers.vectors_u_7" not in extremes.graph.unsigned_layers
    assert any("--runtime-compat int8-vnni" in remark for remark in extremes.graph.remarks)


def test_all_layers_of_extreme_codes_are_integer_kernels(extremes: Exported, tmp_path: Path) -> None:
    found = kernels(extremes.graph.content, tmp_path)
    assert found["QLinearConv"] == found["QGemm"] == found["MatMulIntegerToFloat"] == 2 * len(BITS)


# Where the network itself rounds what a kernel rounds, nothing changes.

WIDTHS = ((8, 8), (4, 4), (2, 2), (3, 8))
CLIPS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.4, 0.3),
    "none": lambda x: x,  # the convolutions read signed inputs
    "pool": lambda x: F.max_pool2d(x, 3, stride=1, padding=1),
}


NEAR = 0.03
"""Steps from a boundary at which a code may differ: biases are whole multiples of the sum's unit."""
BIAS_ROUNDING = 1e-2


def chain_images() -> Tensor:
    return some_images(batch=64)[:, :, :5, :5]


class Chain(nn.Module):
    """Convolutions and a linear layer in a row, with something to clip in between."""

    def __init__(self, clip: str) -> None:
        super().__init__()
        self.clip = CLIPS[clip]
        self.layers = nn.ModuleList(
            [nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 2, groups=2), nn.Conv2d(6, 6, 2), nn.Linear(6, 5)]
        )
        if clip == "relu6":
            for layer in self.layers:
                layer.weight.data *= 8  # such that there is something to clip at 6

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.layers[:-1]:
            x = self.clip(conv(x))
        return self.layers[-1](x.flatten(1))


class Chains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.chains = nn.ModuleDict({f"{clip}_{w}_{a}": Chain(clip) for clip in CLIPS for w, a in WIDTHS})

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(chain(x) for chain in self.chains.values())


@pytest.fixture(scope="module")
def chains(exported: Callable[..., Exported]) -> Exported:
    def move_alpha(network: nn.Module) -> None:
        """Clipping points below and above 6, and at it."""
        for name, chain in network.chains.items():
            if name.startswith("relu6"):
                for layer, alpha in zip(chain.layers[1:], (4.0, 8.0, 6.0), strict=True):
                    layer.input_quantizer.alpha.fill_(alpha)

    return exported(
        Chains,
        chain_images(),
        widths={
            f"chains.{clip}_{w}_{a}.layers.{place}": (w, a)
            for clip in CLIPS
            for w, a in WIDTHS
            for place in range(4)
        },
        change=move_alpha,
        form="int8",
    )


@pytest.mark.parametrize("width", WIDTHS, ids=lambda pair: "W{}A{}".format(*pair))
@pytest.mark.parametrize("clip", CLIPS)
def test_a_chain_gives_the_codes_of_the_network(clip: str, width: tuple[int, int], chains: Exported) -> None:
    """From layer to layer, as long as all codes before were equal, except where a value lies at a boundary."""
    name = "{}_{}_{}".format(clip, *width)
    layers = chains.network.chains[name].layers
    images = chain_images()
    inside = chains.values(images, [chains.products(layer.layer_name)[0].input[0] for layer in layers])
    same = torch.ones(len(images), dtype=torch.bool)
    for layer, values, found in zip(layers, inputs_of(layers, chains.network, images), inside, strict=True):
        with torch.no_grad():
            expected = layer.input_quantizer(values, layer.activation_bits)
        agrees = (torch.from_numpy(found) == expected).flatten(1)[same]
        distance = from_boundary(values, layer).flatten(1)[same]
        assert torch.where(agrees, 0.0, distance).max() < NEAR, layer.layer_name
        same[same.clone()] = agrees.all(1)
    assert same.float().mean() > 0.3
    place = list(chains.network.chains).index(name)
    expected, found = (outputs[place][same.numpy()] for outputs in chains.outputs(images))
    assert np.abs(found - expected).max() <= BIAS_ROUNDING * np.abs(expected).max()


def inputs_of(layers: nn.ModuleList, network: nn.Module, images: Tensor) -> list[Tensor]:
    """What enters the layers, before it is rounded."""
    seen: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for layer in layers]
    with torch.no_grad():
        network(images)
    for hook in hooks:
        hook.remove()
    return seen


def from_boundary(values: Tensor, layer: QuantizedLayer) -> Tensor:
    """How far values are from where another code begins, in steps."""
    quantizer = layer.input_quantizer
    step = quantizer.alpha.item() / largest_code(layer.activation_bits, signed=quantizer.signed)
    exact = values.double() / step
    return (exact - exact.floor() - 0.5).abs()


def test_chains_are_rounded_nowhere_else(chains: Exported, tmp_path: Path) -> None:
    assert chains.graph.added_roundings == 0
    assert len(chains.graph.integer_layers) == 4 * len(chains.network.chains)
    assert [remark.split(":")[0] for remark in chains.graph.remarks] == [
        "80 layers run as 8-bit integer kernels",
        "20 of them take a slower kernel that is exact on any processor; for Arm, and x86 with VNNI",
        "ONNX Runtime loads it from version 1.18 on",
    ]
    found = kernels(chains.graph.content, tmp_path)
    assert (found["QLinearConv"], found["QGemm"]) == (60, 20)


# Roundings that kernels add.


def test_added_roundings_have_the_range_of_the_calibration_images(calibrated: Calibrated) -> None:
    images = some_images()
    network = calibrated(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 2, 3)), images)
    batches = [2 * images.numpy(), images.numpy()]
    graph = onnx_graph(network, images[:1], form="int8", calibration=batches)
    assert graph.added_roundings == 2
    with torch.no_grad():
        outputs = network(2 * images).numpy()
    steps = np.ptp(outputs) / 255
    found = OnnxNetwork(graph.content)(2 * images.numpy())
    assert len(np.unique((found / steps).round(3))) > 50  # the whole range is in use
    assert np.abs(found / steps - (found / steps).round()).max() < 0.02


@pytest.mark.parametrize("bias", [30.0, -30.0])
def test_added_roundings_hold_zero(bias: float, calibrated: Calibrated) -> None:
    """Although no value is near it: runtimes want a byte for it."""

    def build() -> nn.Module:
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanhshrink(), nn.Conv2d(4, 2, 3))
        network[0].bias.data.fill_(bias)
        return network

    images = some_images(batch=16)
    network = calibrated(build, images, per_channel=True)
    graph = onnx_graph(network, images[:1], form="int8", calibration=[images.numpy()])
    zeros = [
        int(numpy_helper.to_array(tensor))
        for tensor in onnx.load_from_string(graph.content).graph.initializer
        if ".output_zero" in tensor.name
    ]
    assert zeros
    assert all(zero in (0, 255) for zero in zeros[:1])
    assert compare(network, OnnxNetwork(graph.content), [images]).median_difference < 0.1


def test_a_bias_that_fits_no_sum_outweighs_the_weights_of_its_channel(calibrated: Calibrated) -> None:
    """The others keep theirs."""
    images = some_images()

    def move_bias(network: nn.Module) -> None:
        network[0].bias[1] = 1e8

    network = calibrated(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 2)),
        images,
        change=move_bias,
        per_channel=True,
    )
    graph = onnx_graph(network, images[:1], form="int8")
    assert graph.integer_layers == ("0", "3")
    biases = [
        numpy_helper.to_array(tensor)
        for tensor in onnx.load_from_string(graph.content).graph.initializer
        if ".bias_codes" in tensor.name
    ]
    assert max(int(np.abs(codes).max()) for codes in biases) <= 2**30
    assert biases[0][1] >= 2**29


@pytest.mark.parametrize("kind", ["zero weights", "zero norm", "tiny norm"])
def test_channels_that_only_have_a_bias_keep_it(kind: str, calibrated: Calibrated) -> None:
    """In the unit of the sum it would be rounded away, or have no room."""

    def build() -> nn.Module:
        network = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 2, 3),
        )
        network[0].weight.data *= 100  # a coarse step
        network[3].running_var.fill_(300.0)
        network[3].bias.data.fill_(0.3)
        if kind == "zero weights":
            network[2].weight.data[1] = 0
        else:
            network[3].weight.data[1] = 0.0 if kind == "zero norm" else 1e-12
        return network

    images = some_images(batch=16)
    network = calibrated(build, images, per_channel=True)
    graph = onnx_graph(network, images[:1], form="int8", calibration=[images.numpy()])
    assert graph.integer_layers == ("0", "2", "5")
    assert compare(network, OnnxNetwork(graph.content), [images]).largest_difference < 0.03


@pytest.mark.parametrize("ends", [(0.0, float("inf")), (-2.0, -1.0), (0.1, 0.2), (-0.3, 9.0)], ids=str)
def test_clips_at_other_places_than_the_quantizers_ends(
    ends: tuple[float, float], exported: Callable[..., Exported]
) -> None:
    class Clipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)])

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[1](torch.clamp(self.layers[0](x), *ends))

    def set_alpha(network: nn.Module) -> None:
        network.layers[1].input_quantizer.alpha.fill_(0.5)

    clipped = exported(
        Clipped, some_images(), change=set_alpha, form="int8", calibration=[some_images().numpy()]
    )
    (expected,), (found,) = clipped.outputs(some_images())
    assert np.abs(found - expected).max() < 0.03 * max(np.ptp(expected), np.abs(expected).max())


def test_calibration_without_images_is_refused(calibrated: Calibrated) -> None:
    network = calibrated(lambda: nn.Conv2d(3, 4, 3), some_images())
    with pytest.raises(HwbmpqError, match="no images to calibrate with"):
        onnx_graph(network, some_images()[:1], form="int8", calibration=[])


@pytest.mark.parametrize("kind", [torch.float16, torch.float64, torch.bfloat16], ids=str)
def test_other_precisions_are_refused(kind: torch.dtype, calibrated: Calibrated) -> None:
    network = calibrated(lambda: nn.Conv2d(3, 4, 3), some_images()).to(kind)
    with pytest.raises(HwbmpqError, match=f"parameters of {str(kind).removeprefix('torch.')}"):
        onnx_graph(network, some_images()[:1].to(kind))


# Linear layers whose inputs stay wide.


class WideInputs(nn.Module):
    """Linear layers of all widths up to a byte on inputs of more, with sizes that fill blocks and that do not."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((20, 7, False), (144, 33, True), (15, 4, True))
        self.layers = nn.ModuleDict(
            {f"{bits}_{size[0]}": nn.Linear(*size) for bits in range(2, 9) for size in sizes}
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(layer(x[:, : layer.in_features]) for layer in self.layers.values())


def test_linear_layers_on_wide_inputs_run_by_blocks(exported: Callable[..., Exported]) -> None:
    vectors = torch.randn(6, 144, generator=torch.Generator().manual_seed(1))
    names = list(WideInputs().layers)
    widths = {
        f"layers.{name}": (int(name.split("_")[0]), (16, 32, 12)[place % 3])
        for place, name in enumerate(names)
    }
    wide = exported(WideInputs, vectors, widths=widths, form="int8")
    assert wide.graph.integer_layers == ()
    assert any("14 linear layers" in remark for remark in wide.graph.remarks)
    assert wide.operators().count("MatMulNBits") == 14
    for name, expected, found in zip(names, *wide.outputs(vectors), strict=True):
        allowed = 0.02 if not name.endswith("_15") else 1e-5  # too small for a block: in float
        assert np.abs(found - expected).max() <= allowed * np.abs(expected).max(), name
