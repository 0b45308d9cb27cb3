"""Bit gradients against their definition, and where they are read."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.quant import quantize_weight
from hwbmpq.sensitivity import bit_gradient_norm
from hwbmpq.values import Precision, Sensitivity

Measured = Callable[..., Sensitivity]


def smooth_loss(weight: Tensor) -> Tensor:
    return (weight.sin() * torch.linspace(-2, 3, weight.numel(), dtype=weight.dtype).view_as(weight)).sum()


def literal_bit_gradients(weight: Tensor, bits: int, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """|∂L/∂b_i| for each weight and each of its bits in two's complement, by autograd: (weights, bits)."""
    codes, scale = quantize_weight(weight, bits)
    unsigned = codes.flatten().long() % 2**bits
    held = torch.stack([(unsigned >> i) & 1 for i in range(bits)], dim=1).to(weight.dtype).requires_grad_()
    value = torch.tensor([2.0**i for i in range(bits - 1)] + [-(2.0 ** (bits - 1))], dtype=weight.dtype)
    rebuilt = (held * value).sum(1).view_as(weight) * scale
    assert torch.equal(rebuilt, codes * scale)
    (gradient,) = torch.autograd.grad(loss(rebuilt), held)
    return gradient.abs()


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_closed_form_is_the_literal_matrix(bits: int, generator: torch.Generator) -> None:
    weight = torch.randn(7, 5, dtype=torch.float64, generator=generator)
    codes, scale = quantize_weight(weight, bits)
    quantized = (codes * scale).requires_grad_()
    (gradient,) = torch.autograd.grad(smooth_loss(quantized), quantized)
    literal = literal_bit_gradients(weight, bits, smooth_loss).sum(1).mean()
    assert float(bit_gradient_norm(gradient, weight, bits)) == pytest.approx(float(literal), rel=1e-10)


def test_a_norm_worked_by_hand() -> None:
    gradient, weight = torch.tensor([1.0, -3.0]), torch.tensor([0.7, -1.4])
    assert float(bit_gradient_norm(gradient, weight, 4)) == pytest.approx(2 * (1.4 / 7) * 15)


@pytest.mark.parametrize("bits", [2, 4])
def test_zero_weights_have_no_bit_gradient(bits: int) -> None:
    assert float(bit_gradient_norm(torch.ones(3), torch.zeros(3), bits)) == 0.0


def test_half_precision_does_not_overflow() -> None:
    weight = torch.full((3,), 100.0, dtype=torch.float16)
    norm = bit_gradient_norm(torch.full_like(weight, 2000.0), weight, 4)
    assert float(norm) == pytest.approx(2000 * 100 / 7 * 15)


def test_the_score_is_the_mean_norm_over_the_batches(measured: Measured) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    batches = [(torch.randn(2, 4), torch.tensor([0, 2])), (torch.randn(5, 4), torch.tensor([1, 1, 0, 2, 0]))]
    sensitivity = measured(network, batches[0][0], batches, widths=(2, 4, 32), activation_bits=32)
    norms = []
    for images, labels in batches:
        (gradient,) = torch.autograd.grad(F.cross_entropy(network(images), labels), network[1].weight)
        norms.append(float(bit_gradient_norm(gradient, network[1].weight, 32)))
    assert sensitivity.scores["1"] == pytest.approx(sum(norms) / 2)


def test_the_step_is_that_of_the_widest_candidate_not_of_the_present_width(measured: Measured) -> None:
    network, images, labels = nn.Sequential(nn.Linear(4, 3)), torch.randn(3, 4), torch.tensor([0, 1, 2])
    at_2_bits = {"0": Precision(weight_bits=2, activation_bits=32)}
    alone = measured(network, images, [(images, labels)], precisions=at_2_bits, widths=(2,))
    among_others = measured(network, images, [(images, labels)], precisions=at_2_bits, widths=(2, 4))
    weight = network[0].weight.detach()
    _, ternary_step = quantize_weight(weight, 2)
    expected = float(weight.abs().max() / 7 * 15 / (ternary_step * 3))
    assert among_others.scores["0"] / alone.scores["0"] == pytest.approx(expected)


def test_errors_fall_with_the_width(
    measured: Measured, tiny_cnn: nn.Module, images: Tensor, labels: Tensor
) -> None:
    for errors in measured(tiny_cnn, images, [(images, labels)]).errors.values():
        assert errors[2] > errors[4] > errors[8] >= 0


def test_the_error_is_half_the_fisher_weighted_square_of_the_rounding(measured: Measured) -> None:
    network, images, labels = nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 4), torch.tensor([0, 2])
    found = measured(network, images, [(images, labels)], widths=(4, 32), activation_bits=32)
    (gradient,) = torch.autograd.grad(F.cross_entropy(network(images), labels), network[0].weight)
    weight = network[0].weight.detach()
    codes, scale = quantize_weight(weight, 4)
    expected = (2 * gradient.square() * (weight - codes * scale).square()).sum() / 2
    assert found.errors["0"][4] == pytest.approx(float(expected), rel=1e-4)
    assert found.errors["0"][32] == 0.0


class StandardisedConv(nn.Conv2d):
    """As timm's StdConv2d: the weight that is multiplied with is computed in forward."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, self.standardised(), self.bias)

    def standardised(self) -> Tensor:
        return (self.weight - self.weight.mean()) / self.weight.std() * 10


def test_the_weight_that_enters_the_quantizer_counts_not_the_parameter(measured: Measured) -> None:
    network = nn.Sequential(StandardisedConv(1, 3, 2), nn.Flatten())
    images, labels = torch.randn(4, 1, 2, 2), torch.tensor([0, 1, 2, 0])
    found = measured(network, images, [(images, labels)], widths=(4, 32), activation_bits=32)
    entering = network[0].standardised().detach().requires_grad_()
    logits = F.conv2d(images, entering, network[0].bias).flatten(1)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, labels), entering)
    assert found.scores["0"] == pytest.approx(float(bit_gradient_norm(gradient, entering, 32)), rel=1e-5)


class Twice(nn.Module):
    """One layer that runs twice, and two layers that hold one parameter."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False) if tied else self.first
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


def test_the_runs_of_one_layer_add_up(measured: Measured) -> None:
    network, images, labels = Twice(tied=False), torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    found = measured(network, images, [(images, labels)], widths=(8, 32), activation_bits=32)
    weight = network.first.weight
    (gradient,) = torch.autograd.grad(F.cross_entropy(network(images), labels), weight)
    assert found.scores == {"first": pytest.approx(float(bit_gradient_norm(gradient, weight, 32)), rel=1e-5)}


def test_tied_layers_each_count_their_own_use(measured: Measured) -> None:
    network, images, labels = Twice(tied=True), torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    found = measured(network, images, [(images, labels)], widths=(8, 32), activation_bits=32)
    shared = network.first.weight.detach()
    uses = {"first": shared.clone().requires_grad_(), "second": shared.clone().requires_grad_()}
    logits = F.linear(F.linear(images, uses["first"]).tanh(), uses["second"])
    gradients = torch.autograd.grad(F.cross_entropy(logits, labels), list(uses.values()))
    expected = [float(bit_gradient_norm(gradient, shared, 32)) for gradient in gradients]
    assert [found.scores["first"], found.scores["second"]] == pytest.approx(expected, rel=1e-5)


class SideHead(nn.Module):
    """The second answer has no part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> dict[str, list[Tensor]]:
        return {"main": [self.main(x)], "side": [self.side(x)]}


def test_a_layer_without_influence_scores_zero_and_is_named(measured: Measured) -> None:
    images, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    found = measured(SideHead(), images, [(images, labels)])
    assert found.scores["side"] == 0.0
    assert found.remarks == ("no influence on the loss, score 0: side",)
