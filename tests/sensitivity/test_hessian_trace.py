"""Traces against Hessians that are known."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.sensitivity.alternatives import batch_traces
from hwbmpq.sensitivity.measure import SensitivityInputs, Step, run_steps
from hwbmpq.values import Precision, Sensitivity

Measured = Callable[..., Sensitivity]


def step_of(loss: Tensor, leaves: dict[str, list[Tensor]]) -> Step:
    return Step(name="batch 0", inputs=torch.zeros(1), loss=loss, leaves=leaves)


def test_one_vector_suffices_for_a_diagonal_quadratic(generator: torch.Generator) -> None:
    curvature = torch.tensor([1.0, -2.0, 5.0])
    weight = torch.randn(3, requires_grad=True)
    loss = (curvature * weight**2).sum() / 2
    assert batch_traces(step_of(loss, {"a": [weight]}), generator, vectors=1) == {"a": pytest.approx(4.0)}


def test_runs_of_one_layer_are_uses_of_one_weight(generator: torch.Generator) -> None:
    uses = [torch.ones(3, requires_grad=True) for _ in range(2)]
    loss = ((uses[0] + uses[1]) ** 2).sum() / 2  # of w: (2w)²/2 each, second derivative 4
    assert batch_traces(step_of(loss, {"a": uses}), generator, vectors=1) == {"a": pytest.approx(12.0)}


def test_a_loss_linear_in_the_weights_has_no_curvature(generator: torch.Generator) -> None:
    weight = torch.ones(3, requires_grad=True)
    assert batch_traces(step_of(weight.sum(), {"a": [weight]}), generator) == {"a": 0.0}


def measurement_of(network: nn.Module, images: Tensor, labels: Tensor) -> SensitivityInputs:
    layers = tuple(hwbmpq.describe(network, images))
    return SensitivityInputs(
        network=network,
        layers=layers,
        batches=[(images, labels)],
        precisions={layer.name: Precision(weight_bits=32, activation_bits=32) for layer in layers},
        widths={layer.name: (2, 4) for layer in layers},
    )


def test_the_estimate_comes_close_to_an_explicit_hessian(generator: torch.Generator) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    images, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    measurement = measurement_of(network, images, labels)
    (step,) = run_steps(measurement, measurement.float_copy())
    found = batch_traces(step, generator, vectors=2000)

    def loss(first: Tensor, last: Tensor) -> Tensor:
        hidden = F.linear(images, first, network[0].bias).tanh()
        return F.cross_entropy(F.linear(hidden, last, network[2].bias), labels)

    blocks = torch.autograd.functional.hessian(loss, (network[0].weight, network[2].weight))
    explicit = {"0": blocks[0][0].reshape(12, 12).trace(), "2": blocks[1][1].reshape(12, 12).trace()}
    assert found == pytest.approx({name: float(trace) for name, trace in explicit.items()}, rel=0.1)


def test_scores_are_per_weight_and_the_same_for_one_seed(
    measured: Measured, tiny_cnn: nn.Module, images: Tensor, labels: Tensor
) -> None:
    first, again, other = (
        measured(tiny_cnn, images, [(images, labels)], method="hessian_trace", seed=seed).scores
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_the_score_is_the_trace_over_the_number_of_weights(measured: Measured) -> None:
    """With one input the Hessian of a bias-free layer is that of its logits: diag(p) - p·pᵀ, times x²."""
    network = nn.Sequential(nn.Linear(1, 2, bias=False))
    images, labels = torch.tensor([[2.0]]), torch.tensor([0])
    probabilities = network(images).softmax(1)[0].detach()
    batches = [(images, labels)] * 100
    found = measured(network, images, batches, method="hessian_trace", widths=(4,))
    trace = 4 * float((probabilities * (1 - probabilities)).sum())
    assert found.scores["0"] == pytest.approx(trace / 2, rel=0.1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
        return self.head(F.scaled_dot_product_attention(query, key, value).squeeze(1).mean(1))


def test_attention_can_be_differentiated_twice(measured: Measured) -> None:
    images, labels = torch.randn(2, 5, 8), torch.tensor([0, 2])
    assert measured(Attention(), images, [(images, labels)], method="hessian_trace").scores["qkv"] != 0


class OnceOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("no second derivative")
        return gradient.clone()


class Once(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(OnceOnly.apply(self.first(x)))


def test_what_cannot_be_differentiated_twice_says_so(measured: Measured) -> None:
    images, labels = torch.randn(2, 3), torch.tensor([0, 2])
    with pytest.raises(hwbmpq.HwbmpqError, match="cannot be differentiated twice: no second derivative"):
        measured(Once(), images, [(images, labels)], method="hessian_trace")


class Valley(nn.Module):
    """Logits ±exp(-w²): beyond its turning point the loss is bent downwards."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.layer.weight, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        hill = torch.exp(-(self.layer(x) ** 2))
        return torch.cat([hill, -hill], dim=1)


def test_negative_traces_keep_their_sign_and_are_named(measured: Measured) -> None:
    images, labels = torch.ones(1, 1), torch.tensor([1])
    found = measured(Valley(), images, [(images, labels)], method="hessian_trace")
    assert found.scores["layer"] < 0
    assert "negative trace" in found.remarks[0]
    assert "layer" in found.remarks[0]
