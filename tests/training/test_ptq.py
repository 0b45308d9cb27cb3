"""Without training: clipping points, rounding and norms, on networks small enough to check."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import InputQuantizer, assign, prepare, quantized_layers
from hwbmpq.quant.scales import best_clip
from hwbmpq.training.ptq.calibration import (
    CapturedInput,
    InputCapture,
    calibrate_inputs,
)
from hwbmpq.training.ptq.rounding import round_weights
from hwbmpq.training.ptq.run import post_training

Prepared = Callable[..., nn.Module]


@pytest.fixture
def batches(generator: torch.Generator) -> list[Tensor]:
    return [torch.randn(8, 3, 8, 8, generator=generator) for _ in range(3)]


@pytest.fixture
def prepared() -> Prepared:
    def prepare_(network: nn.Module, example: Tensor, bits: int = 3, **options: Any) -> nn.Module:
        options = {"precision": (bits, 8), "first_last_precision": None, "per_channel": True} | options
        return prepare(network, hwbmpq.describe(network.eval(), example), **options)

    return prepare_


def is_stable(network: nn.Module) -> bool:
    """Whether the quantizers reproduce all weights exactly."""
    return all(
        torch.equal(layer.quantize_weight(layer.weight), layer.weight)
        for _, layer in quantized_layers(network)
    )


def difference(network: nn.Module, other: nn.Module, images: Tensor) -> float:
    with torch.no_grad():
        return float((network.eval()(images) - other.eval()(images)).square().mean())


LAYERS = {
    "conv1d": (nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "strided": (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 8, 7)),
    "dilated": (nn.Conv2d(4, 6, 3, dilation=2, padding="same"), (2, 4, 8, 8)),
    "circular": (nn.Conv2d(4, 6, (3, 2), padding=1, padding_mode="circular"), (2, 4, 8, 8)),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2), (2, 4, 8, 8)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4), (2, 4, 8, 8)),
    "conv3d": (nn.Conv3d(2, 3, (1, 2, 3), stride=(1, 2, 1)), (2, 2, 3, 4, 5)),
    "linear": (nn.Linear(5, 3), (2, 7, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_columns_times_weights_are_the_output(name: str, prepared: Prepared) -> None:
    layer, shape = copy.deepcopy(LAYERS[name])
    images = torch.randn(shape)
    network = prepared(nn.Sequential(layer), images, precision=32)
    seen: list[CapturedInput] = []
    with torch.no_grad(), InputCapture([layer], seen.append):
        output = network(images) - (
            0 if layer.bias is None else layer.bias.view(-1, *[1] * len(seen[0].kernel))
        )
    columns = seen[0].columns(10**6)  # (groups, inputs, n)
    product = columns @ layer.weight.detach().reshape(len(columns), -1, columns.shape[2]).transpose(1, 2)
    channels = product.permute(1, 0, 2).flatten(1)
    expected = (
        output.flatten(0, -2) if not seen[0].kernel else output.flatten(2).transpose(1, 2).flatten(0, 1)
    )
    torch.testing.assert_close(channels, expected)


def test_fewer_columns_are_the_same_for_equal_shapes(prepared: Prepared) -> None:
    layer = nn.Conv2d(3, 2, 3)
    network = prepared(nn.Sequential(layer), torch.zeros(1, 3, 8, 8), precision=32)
    seen: list[CapturedInput] = []
    images = torch.randn(4, 3, 8, 8)
    with InputCapture([layer], seen.append):
        network(images)
        network(2 * images)
    first, second = (product.columns(40) for product in seen)
    assert first.shape == (1, 40, 27)
    assert torch.equal(second, 2 * first)


@pytest.mark.parametrize("with_data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
@pytest.mark.parametrize("name", [*LAYERS, "transposed"])
def test_every_kind_of_layer_is_rounded_for_good(
    name: str, per_channel: bool, with_data: bool, prepared: Prepared
) -> None:
    transposed = (nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2), (2, 4, 5, 5))
    layer, shape = copy.deepcopy(transposed if name == "transposed" else LAYERS[name])
    images = torch.randn(shape)
    network = prepared(nn.Sequential(layer), images, bits=4, per_channel=per_channel)
    exact = copy.deepcopy(network)
    assign(exact, {"0": 32})
    round_weights(network, [images] if with_data else None)
    assert is_stable(network)
    assert not torch.equal(layer.weight, exact[0].weight)
    assert difference(network, exact, images) < 0.02 * float(exact(images).detach().var())


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_each_step_comes_closer_to_the_float_network(
    bits: int, tiny_cnn: nn.Module, batches: list[Tensor], prepared: Prepared
) -> None:
    exact = copy.deepcopy(tiny_cnn).eval()
    plain = prepared(tiny_cnn, batches[0], bits=bits)
    calibrate_inputs(plain, batches)
    rounded = copy.deepcopy(plain)
    post_training(rounded, batches)
    images = torch.cat(batches)
    assert is_stable(rounded)
    assert difference(rounded, exact, images) < 0.5 * difference(plain, exact, images)


def test_inputs_that_differ_from_the_float_networks_are_made_up_for(
    generator: torch.Generator, prepared: Prepared
) -> None:
    """The second layer, at 8 bits, has to undo what 2 bits did to the first."""
    network = nn.Sequential(nn.Linear(6, 24), nn.Linear(24, 4))
    exact = copy.deepcopy(network)
    images = torch.randn(500, 6, generator=generator)
    prepared(network, images[:1], precision=(2, 32))
    assign(network, {"1": (8, 32)})
    first_alone = copy.deepcopy(network)
    round_weights(network, [images])
    first_alone[0].load_state_dict(network[0].state_dict())
    assert difference(network, exact, images) < 0.2 * difference(first_alone, exact, images)


def test_the_bias_makes_up_for_the_mean(generator: torch.Generator, prepared: Prepared) -> None:
    network = nn.Sequential(nn.Linear(10, 4))
    exact = copy.deepcopy(network)
    images = 3 + torch.randn(200, 10, generator=generator)
    round_weights(prepared(network, images[:1], precision=(2, 32)), [images])
    with torch.no_grad():
        torch.testing.assert_close(network(images).mean(0), exact(images).mean(0))


class Standardised(nn.Conv2d):
    """Multiplies with something else than its parameter, as timm's StdConv2d."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(input, weight, self.bias, self.stride, self.padding)


class Padded(nn.Conv2d):
    """Pads by itself, as timm's Conv2dSame."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(F.pad(input, (0, 1, 0, 1)), self.weight, self.bias, self.stride)


def test_weights_that_are_computed_on_the_way_stay(batches: list[Tensor], prepared: Prepared) -> None:
    layer = Standardised(3, 4, 3)
    before = layer.weight.detach().clone()
    network = prepared(nn.Sequential(layer), batches[0])
    round_weights(network)
    round_weights(network, batches)
    assert torch.equal(layer.weight, before)


def test_a_layer_with_a_forward_of_its_own_is_rounded_with_data(
    batches: list[Tensor], prepared: Prepared
) -> None:
    network = prepared(nn.Sequential(Padded(3, 4, 3)), batches[0])
    round_weights(network, batches)
    assert is_stable(network)


def test_float_weights_stay(tiny_cnn: nn.Module, batches: list[Tensor], prepared: Prepared) -> None:
    before = tiny_cnn[0].weight.detach().clone()
    network = prepared(tiny_cnn, batches[0], first_last_precision=32)
    round_weights(network, batches)
    assert torch.equal(tiny_cnn[0].weight, before)
    assert not torch.equal(tiny_cnn[3].weight, before)


class Twice(nn.Module):
    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        if shared:
            self.second.weight = self.first.weight
        else:
            self.second = nn.Identity()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(torch.relu(self.first(x)))))


def test_a_weight_that_two_layers_hold_stays(prepared: Prepared) -> None:
    network = Twice(shared=True)
    before = network.first.weight.detach().clone()
    round_weights(prepared(network, torch.zeros(1, 4)), [torch.randn(9, 4)])
    assert torch.equal(network.first.weight, before)


def test_a_layer_that_runs_twice_is_rounded_for_both(prepared: Prepared) -> None:
    network = prepared(Twice(shared=False), torch.zeros(1, 4))
    round_weights(network, [torch.randn(9, 4)])
    assert is_stable(network)


def test_modes_norms_and_hooks_stay(tiny_cnn: nn.Module, batches: list[Tensor], prepared: Prepared) -> None:
    network = prepared(tiny_cnn, batches[0]).train()
    network[1].eval()
    modes = [module.training for module in network.modules()]
    norm = copy.deepcopy(network[1].state_dict())
    precisions = [layer.precision for _, layer in quantized_layers(network)]
    done: list[tuple[int, int]] = []
    post_training(network, batches, on_layer=lambda *numbers: done.append(numbers))
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(norm[key], value) for key, value in network[1].state_dict().items())
    assert [layer.precision for _, layer in quantized_layers(network)] == precisions
    assert not network[0].weight_quantizer._forward_hooks
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_labels_beside_the_images_are_not_looked_at(
    tiny_cnn: nn.Module, batches: list[Tensor], prepared: Prepared
) -> None:
    first = prepared(tiny_cnn, batches[0])
    second = copy.deepcopy(first)
    post_training(first, batches)
    post_training(second, ((images, torch.zeros(8)) for images in batches))
    assert torch.equal(first[3].weight, second[3].weight)


def test_no_batch_is_an_error(tiny_cnn: nn.Module, images: Tensor, prepared: Prepared) -> None:
    with pytest.raises(HwbmpqError, match="no images to calibrate on"):
        post_training(prepared(tiny_cnn, images), [])


def test_clipping_points_are_found_anew(tiny_cnn: nn.Module, images: Tensor, prepared: Prepared) -> None:
    network = prepared(tiny_cnn, images)
    calibrate_inputs(network, [100 * images])
    assign(network, {"0": (3, 4), "8": (3, 16)})
    calibrate_inputs(network, [images])
    quantizer = network[0].input_quantizer
    assert float(quantizer.alpha) == pytest.approx(float(best_clip(images, 4, signed=True)))
    assert float(network[8].input_quantizer.observed) < 10
    assert not any(m.training for m in network.modules() if isinstance(m, InputQuantizer))
    assert torch.equal(network[1].running_mean, torch.zeros(4))


def test_a_trained_network_stays_accurate_at_3_bits(data_folder: Path, prepared: Prepared) -> None:
    """Plain rounding at these widths gets 78 % of the images right, the float network 91 %."""
    weights = data_folder.parent / "weights" / "cifar10_resnet20.pt"
    network = hwbmpq.models.load_model("hwbmpq:resnet20", weights=weights).network
    with np.load(data_folder / "cifar10.npz") as arrays:
        calibration, test, labels = arrays["x_train"][:128], arrays["x_test"][:500], arrays["y_test"][:500]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    pixels, images = (
        (torch.from_numpy(x).permute(0, 3, 1, 2) / 255 - mean) / std for x in (calibration, test)
    )
    prepared(network, images[:1], precision=(8, 8))
    widths = [8, 4, 4, 8, 4, 8, 4, 4, 4, 4, 4, 4, 4, 4, 2, 2, 2, 4, 2, 8]
    names = [name for name, _ in quantized_layers(network)]
    assign(network, {name: (bits, 8) for name, bits in zip(names, widths, strict=True)})
    post_training(network, pixels.split(64))
    with torch.no_grad():
        hits = (network(images).argmax(1) == torch.from_numpy(labels.astype(np.int64)).flatten()).sum()
    assert int(hits) >= 0.88 * len(labels)
