"""Layer by layer, ONNX Runtime computes from a file what the network computes."""

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

from hwbmpq.data.torchvision_import import import_timm
from hwbmpq.export import stored_weights
from hwbmpq.quant import QuantizedLayer
from hwbmpq.quant.functional import largest_code

Exported = Any  # of conftest.py
Relative = Callable[[Any, Any], float]

WIDTHS = (2, 3, 4, 5, 6, 7, 8, 16)
BETWEEN = tuple(range(9, 16))
STORED = (2, 4, 8, 16)
"""What ONNX has types for."""
CHANNELS, SIZE = 4, 6
ROUNDING = 1e-5
"""What float arithmetic in another order may change, relative to a layer's largest output."""

KINDS: dict[str, Callable[[], nn.Module]] = {
    "padded": lambda: nn.Conv2d(CHANNELS, 6, 3, padding=1),
    "strided": lambda: nn.Conv2d(CHANNELS, 6, 3, stride=2, padding=1, bias=False),
    "grouped": lambda: nn.Conv2d(CHANNELS, 8, 3, groups=2),
    "depthwise": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS, bias=False),
    "linear": lambda: nn.Linear(CHANNELS * SIZE * SIZE, 5),
    "tokens": lambda: nn.Linear(CHANNELS, 5),
}


class EveryWidth(nn.Module):
    """Each kind of layer at each width, all reading the network's input: each width a part of its own.

    Half of the layers read it signed, the other half rectified; ``turn`` decides which.
    """

    def __init__(self, turn: int) -> None:
        super().__init__()
        self.turn = turn
        self.layers = nn.ModuleDict(
            {f"{kind}_{bits}": KINDS[kind]() for bits in WIDTHS for kind in KINDS}
            | {f"padded_{bits}": KINDS["padded"]() for bits in BETWEEN}
        )

    def forward(self, parts: Tensor) -> tuple[Tensor, ...]:  # (B, widths, C, H, W)
        return tuple(layer(self.input_of(name, parts)) for name, layer in self.layers.items())

    def input_of(self, name: str, parts: Tensor) -> Tensor:
        kind, _ = name.split("_")
        x = parts[:, place_of(name)]
        x = x if self.is_signed(name) else F.relu(x)
        if kind == "linear":
            return x.flatten(1)
        return x.flatten(2).transpose(1, 2) if kind == "tokens" else x

    def is_signed(self, name: str) -> bool:
        kind, bits = name.split("_")
        return (list(KINDS).index(kind) + int(bits) + self.turn) % 2 == 0


def set_ranges(network: nn.Module) -> None:
    """α of one's own for each width: for layers of the second turn such that steps are powers of two."""
    for layer in network.layers.values():
        quantizer = layer.input_quantizer
        top = largest_code(layer.activation_bits, signed=quantizer.signed)
        alpha = 1.3 + 0.1 * layer.activation_bits
        quantizer.alpha.fill_(top * 2.0 ** -(layer.activation_bits - 2) if network.turn else alpha)
        quantizer.observed.fill_(3.7)


def parts(*, batch: int = 3) -> Tensor:
    shape = (batch, len(WIDTHS + BETWEEN), CHANNELS, SIZE, SIZE)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((False, 0), id="per_tensor"),
        pytest.param((True, 1), id="per_channel"),
        pytest.param((False, 1), id="per_tensor-other_signs", marks=pytest.mark.slow),
        pytest.param((True, 0), id="per_channel-other_signs", marks=pytest.mark.slow),
    ],
)
def every_width(request: pytest.FixtureRequest, exported: Callable[..., Exported]) -> Exported:
    per_channel, turn = request.param
    widths = {f"layers.{kind}_{bits}": bits for bits in WIDTHS for kind in KINDS}
    widths |= {f"layers.padded_{bits}": bits for bits in BETWEEN}
    return exported(
        lambda: EveryWidth(turn), parts(), widths=widths, per_channel=per_channel, change=set_ranges
    )


def test_every_kind_at_every_width(every_width: Exported, relative: Relative) -> None:
    assert largest_differences(every_width, away_from_boundaries(every_width), relative) == {}


def away_from_boundaries(exported: Exported) -> Tensor:
    """Inputs that no rounding error moves to another code: at 16 bits one code more is a difference of its own."""
    images, generator = parts(), torch.Generator().manual_seed(2)
    for _ in range(20):
        for name, layer in exported.network.layers.items():
            part = images[:, place_of(name)]
            close = from_boundary(part, layer) < 0.02
            part[close] = torch.randn(int(close.sum()), generator=generator)
    assert all(
        from_boundary(images[:, place_of(name)], layer).min() > 0.01
        for name, layer in exported.network.layers.items()
    )
    return images


def from_boundary(values: Tensor, layer: QuantizedLayer) -> Tensor:
    """How far values before rounding are from the nearest half, in steps."""
    step, top = step_of(layer)
    exact = values.double().clip(-step * top * layer.input_quantizer.signed, step * top) / step
    return (exact - exact.floor() - 0.5).abs()


def test_values_far_outside_the_clipping_range_saturate(every_width: Exported, relative: Relative) -> None:
    """Also those exactly at its end."""
    images = parts()
    for name, layer in every_width.network.layers.items():
        alpha = layer.input_quantizer.alpha.item()
        part = images[:, place_of(name)]
        part.copy_(torch.tensor([1e3, -1e3, 1e12, alpha, -alpha, 0.0])[torch.randint(6, part.shape)])
    assert largest_differences(every_width, images, relative) == {}


def largest_differences(exported: Exported, images: Tensor, relative: Relative) -> dict[str, float]:
    """Of the outputs by name, where they are larger than float arithmetic explains."""
    expected, found = exported.outputs(images)
    names = list(exported.network.layers)
    found = {name: relative(*pair) for name, *pair in zip(names, expected, found, strict=True)}
    return {name: difference for name, difference in found.items() if not difference <= ROUNDING}


def test_activations_get_the_codes_of_the_network(every_width: Exported) -> None:
    """Except where the value before rounding lies at a boundary: 1e-4 of a step, or the resolution of float32."""
    check_codes(every_width, torch.cat([parts(), boundaries(every_width)]))


def boundaries(exported: Exported) -> Tensor:
    """Halves of steps, their neighbours, both ends and far beyond: for each width its own."""
    images = parts()
    for name, layer in exported.network.layers.items():
        step, top = step_of(layer)
        codes = torch.linspace(-top, top, 25, dtype=torch.float64).round()
        halves = torch.cat([codes + shift for shift in (0.5, -0.5, 0.499, 0.501, 0.0)]) * step
        values = torch.cat([halves, torch.tensor([1e3, -1e3, 1e-30, -1e-30])]).float()
        images[:, place_of(name)] = values.repeat(4)[: CHANNELS * SIZE**2].view(CHANNELS, SIZE, SIZE)
    return images


def check_codes(exported: Exported, images: Tensor) -> None:
    names = {name: exported.products(f"layers.{name}")[0].input[0] for name in exported.network.layers}
    distinct = sorted(set(names.values()))
    inside = dict(zip(distinct, exported.values(images, distinct), strict=True))
    for name, layer in exported.network.layers.items():
        step, top = step_of(layer)
        values = exported.network.input_of(name, images)
        with torch.no_grad():
            expected = layer.input_quantizer(values, layer.activation_bits).numpy()
        found = inside[names[name]]
        near = (from_boundary(values, layer) < max(1e-4, top * 2.0**-22)).numpy()
        assert np.array_equal(found[~near], expected[~near]), name
        assert np.abs(found - expected).max() <= 1.01 * step, name
        assert near.mean() < 0.6, name
        if exported.network.turn and layer.activation_bits < 16:  # steps are powers of two: halves are exact
            assert np.array_equal(found, expected), name


def step_of(layer: QuantizedLayer) -> tuple[float, int]:
    """The difference of neighbouring values that a layer's input can take, and the largest code."""
    quantizer = layer.input_quantizer
    top = largest_code(layer.activation_bits, signed=quantizer.signed)
    point = quantizer.observed if layer.activation_bits == 16 else quantizer.alpha
    return point.item() / top, top


def place_of(name: str) -> int:
    return (WIDTHS + BETWEEN).index(int(name.split("_")[1]))


@pytest.mark.parametrize("bits", WIDTHS + BETWEEN)
def test_integers_are_stored_packed_at_their_width_or_the_next_one(every_width: Exported, bits: int) -> None:
    width = next(width for width in STORED if width >= bits)
    weights = [name for name in every_width.network.layers if name.endswith(f"_{bits}")]
    tensors = {tensor.name: tensor for tensor in every_width.proto.graph.initializer}
    stored = stored_weights(every_width.network, parts())
    for name in weights:
        tensor = tensors[every_width.stored(f"layers.{name}")[0]]
        codes = stored[f"layers.{name}"].codes.numpy()
        assert tensor.data_type == getattr(onnx.TensorProto, f"INT{width}")
        assert len(tensor.raw_data) == ceil(codes.size * width / 8)
        assert not tensor.int32_data
        found = every_width.constants[tensor.name].reshape(-1)
        is_transposed = name.startswith("tokens")
        assert np.array_equal(found, (codes.T if is_transposed else codes).reshape(-1))
        assert np.abs(found).max() <= largest_code(bits, signed=True)


def test_widths_that_onnx_does_not_have_are_said(every_width: Exported) -> None:
    stored, needs = every_width.graph.remarks[:-1], every_width.graph.remarks[-1]
    assert needs.startswith("ONNX Runtime loads it from version")
    assert stored == tuple(
        f"{bits}-bit weights are stored as {next(w for w in STORED if w >= bits)}-bit integers"
        for bits in (3, 5, 6, 7, *BETWEEN)
    )


def test_scales_are_those_of_the_network(every_width: Exported) -> None:
    stored = stored_weights(every_width.network, parts())
    for name, weight in stored.items():
        scale = every_width.constants[every_width.stored(name)[1]]
        assert np.array_equal(scale.reshape(-1), weight.scale.numpy().reshape(-1))


class Unusual(nn.Module):
    """What else there is, all reading the network's input."""

    def __init__(self) -> None:
        super().__init__()
        timm = import_timm().layers
        self.layers = nn.ModuleDict(
            {
                "dilated": nn.Conv2d(CHANNELS, 6, 3, dilation=2, padding=2),
                "even_kernel": nn.Conv2d(CHANNELS, 6, 2, padding="same"),
                "reflected": nn.Conv2d(CHANNELS, 6, 3, padding=1, padding_mode="reflect"),
                "line": nn.Conv1d(CHANNELS, 5, 3),
                "solid": nn.Conv3d(CHANNELS, 5, (1, 3, 3), bias=False),
                "transposed": nn.ConvTranspose2d(CHANNELS, 6, 3, stride=2, output_padding=1),
                "transposed_groups": nn.ConvTranspose2d(CHANNELS, 6, 2, groups=2, bias=False),
                "transposed_line": nn.ConvTranspose1d(CHANNELS, 6, 3),
                "same": timm.Conv2dSame(CHANNELS, 6, 3, stride=2),
                "standardised": timm.StdConv2d(CHANNELS, 6, 3),
                "scaled": timm.ScaledStdConv2d(CHANNELS, 6, 3),
                "pruned": nn.Linear(CHANNELS, 5),
                "vectors": nn.Linear(CHANNELS * SIZE * SIZE, 5, bias=False),
                "tokens": nn.Linear(CHANNELS, 5, bias=False),
                "last_channels": nn.Linear(CHANNELS, 3),
                "zero_channels": nn.Conv2d(CHANNELS, 6, 3),
                "zero": nn.Conv2d(CHANNELS, 6, 1),
                "weights_only": nn.Conv2d(CHANNELS, 6, 3),
                "weights_only_tokens": nn.Linear(CHANNELS, 5),
                "in_float": nn.Conv2d(CHANNELS, 6, 3),
                "float_weights": nn.Linear(CHANNELS, 5),
                "twice": nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
                "owner": nn.Linear(CHANNELS, 5),
                "sharer": nn.Linear(CHANNELS, 5),
            }
        )
        self.layers["sharer"].weight = self.layers["owner"].weight
        with torch.no_grad():
            self.layers["zero_channels"].weight[[1, 4]] = 0
            self.layers["zero"].weight.zero_()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.output_of(name, layer, F.relu(x)) for name, layer in self.layers.items())

    def output_of(self, name: str, layer: nn.Module, x: Tensor) -> Tensor:
        if name == "twice":
            return x + layer(x) + layer(0.75 * x)  # a residual
        if name == "last_channels":
            return layer(x.permute(0, 2, 3, 1))
        if name == "solid":
            return layer(x[:, :, None])
        if name == "vectors":
            return layer(x.flatten(1))
        if isinstance(layer, nn.Linear):
            return layer(x.flatten(2).transpose(1, 2))
        return layer(x.flatten(2) if name.endswith("line") else x)


UNUSUAL = (
    "dilated even_kernel reflected line solid transposed transposed_groups transposed_line same standardised "
    "scaled pruned vectors tokens last_channels zero_channels zero".split()
)
FIXED: dict[str, Any] = {
    "weights_only": (3, 32),
    "weights_only_tokens": (8, 32),
    "in_float": 32,
    "float_weights": (32, 4),
    "twice": (4, 5),
    "owner": (4, 6),
    "sharer": (4, 6),
}


@pytest.fixture(scope="module", params=[False, True], ids=["per_tensor", "per_channel"])
def unusual(request: pytest.FixtureRequest, exported: Callable[..., Exported]) -> Exported:
    pairs = [(2, 4), (8, 8), (4, 3), (16, 16), (3, 2), (5, 7)]
    pairs = pairs[::-1] if request.param else pairs
    widths = FIXED | {name: pairs[place % len(pairs)] for place, name in enumerate(UNUSUAL)}
    widths = {f"layers.{name}": width for name, width in widths.items()}
    return exported(
        Unusual,
        parts()[:, 0],
        widths=widths,
        per_channel=request.param,
        change=lambda network: prune.l1_unstructured(network.layers["pruned"], "weight", amount=0.5),
    )


def test_unusual_layers(unusual: Exported, relative: Relative) -> None:
    assert largest_differences(unusual, parts()[:, 1], relative) == {}


def test_layers_in_float_stay_in_float(unusual: Exported) -> None:
    assert not unusual.products("layers.in_float")
    assert not unusual.products("layers.float_weights")
    makers = {output: node for node in unusual.proto.graph.node for output in node.output}
    for name in ("weights_only", "weights_only_tokens"):
        (node,) = unusual.products(f"layers.{name}")
        while node.input[0] in makers:
            node = makers[node.input[0]]
            assert node.op_type in ("Relu", "Transpose", "Reshape", "Flatten")


def test_weights_computed_on_the_way_are_stored_as_they_enter_the_product(unusual: Exported) -> None:
    stored = stored_weights(unusual.network, parts()[:1, 0])
    for name in ("standardised", "scaled", "pruned"):
        codes = stored[f"layers.{name}"].codes.numpy()
        found = unusual.constants[unusual.stored(f"layers.{name}")[0]]
        assert stored[f"layers.{name}"].is_computed
        assert np.array_equal(found.reshape(-1), (codes.T if codes.ndim == 2 else codes).reshape(-1))
    names = [tensor.name for tensor in unusual.proto.graph.initializer]
    assert not [name for name in names if "original" in name or name.endswith(".gain")]


def test_a_weight_that_serves_twice_is_stored_once(unusual: Exported) -> None:
    sizes = {tensor.name: len(tensor.raw_data) for tensor in unusual.proto.graph.initializer}
    assert len(unusual.products("layers.twice")) == 2
    assert [name for name in sizes if name.startswith("layers.twice.weight_codes")] == [
        "layers.twice.weight_codes"
    ]
    assert unusual.stored("layers.owner")[:2] == unusual.stored("layers.sharer")[:2]
