"""Rates of groups: step sizes are moved by shares of themselves where that is asked for."""

import pytest
import torch
from torch import nn

import hwbmpq
from hwbmpq.quant.learned import LearnedStepQuantizer
from hwbmpq.training.optimizers import make_optimizer, set_rate


def prepared() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    layers = hwbmpq.describe(network, torch.randn(4, 8))
    hwbmpq.quant.prepare(network, layers, precision=2, first_last_precision=8, quantizer="learned")
    return network


def steps(network: nn.Module) -> list[float]:
    quantizers = [module for module in network.modules() if isinstance(module, LearnedStepQuantizer)]
    return [float(quantizer.step.detach().mean()) for quantizer in quantizers]


@pytest.mark.parametrize("kind", ["adam", "adamw"])
@pytest.mark.parametrize("relative_steps", [True, False])
def test_a_first_step_moves_step_sizes_by_the_rate_or_by_that_share_of_themselves(
    kind: str, relative_steps: bool
) -> None:
    network = prepared()
    optimizer = make_optimizer(network, kind=kind, rate=1.0, relative_steps=relative_steps)
    network(torch.randn(16, 8)).square().sum().backward()
    before = steps(network)
    set_rate(optimizer, 0.001)
    optimizer.step()
    moved = [abs(new - old) for new, old in zip(steps(network), before, strict=True)]
    expected = [0.001 * (step if relative_steps else 1) for step in before]
    assert moved == pytest.approx(expected, rel=0.01)
    assert max(before) > 10 * min(before)


def test_sgd_has_one_rate() -> None:
    optimizer = make_optimizer(prepared(), kind="sgd", rate=1.0, momentum=0.9, nesterov=True)
    set_rate(optimizer, 0.25)
    assert {group["lr"] for group in optimizer.param_groups} == {0.25}
    assert optimizer.param_groups[0]["nesterov"]
