"""Rounding errors against numbers worked by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.quant import fake_quantize_weight
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.values import Precision, Sensitivity

Measured = Callable[..., Sensitivity]


@pytest.fixture
def small() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 1, bias=False))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[3.0, 1.4, 0.0]]))
    return network


def test_the_error_is_the_squared_distance(measured: Measured, small: nn.Module) -> None:
    found = measured(small, torch.zeros(1, 3), None, method="weight_error", widths=(3, 32))
    assert found.errors["0"] == {3: pytest.approx(0.4**2), 32: 0.0}


def test_the_score_is_relative_and_taken_at_the_narrowest_width(measured: Measured, small: nn.Module) -> None:
    found = measured(small, torch.zeros(1, 3), None, method="weight_error", widths=(8, 3))
    assert found.scores["0"] == pytest.approx(0.4**2 / (9 + 1.4**2))


def test_weights_that_are_all_zero_score_zero(measured: Measured, small: nn.Module) -> None:
    nn.init.zeros_(small[0].weight)
    assert measured(small, torch.zeros(1, 3), None, method="weight_error").scores["0"] == 0.0


class Doubled(nn.Conv2d):
    """Multiplies with something else than its parameter, as standardised convolutions do."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, 2 * self.weight, self.bias, self.stride, self.padding)


def test_the_weight_that_enters_the_quantizer_counts(measured: Measured) -> None:
    network = nn.Sequential(Doubled(2, 3, 3))
    found = measured(network, torch.zeros(1, 2, 5, 5), None, method="weight_error", widths=(4,))
    weight = 2 * network[0].weight.detach()
    expected = (weight - fake_quantize_weight(weight, 4)).square().sum()
    assert found.errors["0"][4] == pytest.approx(float(expected), rel=1e-4)


def test_hooks_of_the_user_do_not_run(small: nn.Module) -> None:
    layers = hwbmpq.describe(small, torch.zeros(1, 3))
    seen: list[Tensor] = []
    small[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    precisions = {"0": Precision(weight_bits=4, activation_bits=4)}
    measure_sensitivity(small, layers, method="weight_error", precisions=precisions, widths={"0": (2, 4)})
    assert seen == []
