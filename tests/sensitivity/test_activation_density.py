"""Activation densities against shares counted by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import prepare
from hwbmpq.sensitivity import DensityMeter
from hwbmpq.values import Sensitivity

Measured = Callable[..., Sensitivity]
LABELS = torch.tensor([0, 1])


def diagonal(*weights: float) -> nn.Linear:
    layer = nn.Linear(len(weights), len(weights), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weights).diag())
    return layer


@pytest.fixture
def chain() -> nn.Module:
    """The first ReLU lets 3 of 4 channels through for positive inputs, the last layer keeps 2 of these."""
    return nn.Sequential(
        diagonal(1, 2, 3, -1), nn.ReLU(), diagonal(1, -1, 1, 1), nn.ReLU(), diagonal(1, 1, 0, 1)
    )


def test_the_density_is_the_share_of_nonzero_values_that_the_next_layer_reads(
    measured: Measured, chain: nn.Module
) -> None:
    images = torch.ones(2, 4)  # 4 channels: [1 2 3 0] after the first ReLU, [1 0 3 0] after the second
    found = measured(chain, images, [(images, LABELS)], method="activation_density")
    assert found.scores == {"0": 0.75, "2": 0.5, "4": 0.25}
    assert found.errors == {}


def test_batches_count_by_their_size(measured: Measured, chain: nn.Module) -> None:
    ones = torch.ones(2, 4)
    batches = [(ones, LABELS), (ones, LABELS), (torch.zeros(2, 4), LABELS)]
    found = measured(chain, ones, batches, method="activation_density")
    assert found.scores == {"0": pytest.approx(0.5), "2": pytest.approx(1 / 3), "4": pytest.approx(1 / 6)}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.last = diagonal(1, -1), diagonal(-3, 1), diagonal(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))  # [1 0]
        x = torch.relu(x + self.branch(x))  # [1 0] + [-3 0] = [0 0]
        return self.last(x)


def test_a_layer_before_an_addition_counts_what_is_read_behind_it(measured: Measured) -> None:
    images = torch.ones(2, 2)
    found = measured(Residual(), images, [(images, LABELS)], method="activation_density")
    assert found.scores == {"first": 0.5, "branch": 0.0, "last": 0.0}


class Gated(nn.Module):
    """Squeeze and excitation: one reader sees the channel means, where nothing is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.squeeze, self.last = nn.Conv2d(1, 1, 1, bias=False), diagonal(1), diagonal(1, 1, 1, 1)
        nn.init.ones_(self.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x))
        gate = self.squeeze(x.mean((2, 3)))[:, :, None, None]
        return self.last((x * gate).flatten(1))


def test_a_reader_behind_pooling_is_asked_only_if_there_is_no_other(measured: Measured) -> None:
    images = torch.tensor([1.0, -1.0, -1.0, -1.0]).view(1, 1, 2, 2).repeat(2, 1, 1, 1)
    found = measured(Gated(), images, [(images, LABELS)], method="activation_density")
    assert found.scores == {"conv": 0.25, "squeeze": 0.25, "last": 0.25}


def test_a_meter_counts_while_a_quantized_model_trains(tiny_cnn: nn.Module, images: Tensor) -> None:
    layers = hwbmpq.describe(tiny_cnn, images)
    prepare(tiny_cnn.train(), layers)
    seen: list[Tensor] = []
    tiny_cnn[2].register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    with DensityMeter(tiny_cnn, layers) as meter:
        for _ in range(2):
            tiny_cnn(images).square().sum().backward()
    expected = torch.stack(seen).count_nonzero() / torch.stack(seen).numel()
    assert meter.densities()["0"] == pytest.approx(float(expected))


def test_start_counts_anew_and_stop_leaves_no_hook(chain: nn.Module) -> None:
    prepare(chain, layers := hwbmpq.describe(chain, torch.ones(1, 4)))
    meter = DensityMeter(chain, layers).start()
    chain(torch.ones(1, 4))
    meter.start()
    chain(torch.zeros(1, 4))
    meter.stop()
    chain(torch.ones(1, 4))
    assert meter.densities() == {"0": 0.0, "2": 0.0, "4": 0.0}
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in chain.modules())


def test_a_meter_that_saw_nothing_says_so(chain: nn.Module) -> None:
    prepare(chain, layers := hwbmpq.describe(chain, torch.ones(1, 4)))
    with pytest.raises(HwbmpqError, match="no activations of layer '0' were seen"):
        DensityMeter(chain, layers).densities()


def test_a_model_that_is_not_prepared_is_refused(chain: nn.Module) -> None:
    with pytest.raises(HwbmpqError, match="no quantized layer named '0'"):
        DensityMeter(chain, hwbmpq.describe(chain, torch.ones(1, 4)))
