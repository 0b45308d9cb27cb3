"""Scales by error and rounding that makes up for itself; the ordinary quantizer leaves the results as they are."""

import pytest
import torch
from torch import Tensor

from hwbmpq.quant import fake_quantize_weight
from hwbmpq.quant.functional import largest_code
from hwbmpq.quant.scales import best_scale, nearest_codes
from hwbmpq.training.ptq.rounding import damped, gptq_round

every_width = pytest.mark.parametrize("bits", range(2, 9))


def weights(generator: torch.Generator, groups: int, rows: int, n: int) -> Tensor:
    """Heavy-tailed, of different sizes, one row of zeros."""
    values = torch.randn(groups, rows, n, generator=generator) ** 3
    values *= torch.logspace(-6, 3, groups * rows).view(groups, rows, 1)
    values[0, 0] = 0
    return values


def moments(generator: torch.Generator, groups: int, n: int) -> Tensor:
    """Of inputs that hang together."""
    mixing = torch.randn(groups, n, n, generator=generator)
    inputs = torch.randn(groups, 4 * n, n, generator=generator) @ mixing
    return inputs.transpose(1, 2) @ inputs


def lost(weight: Tensor, rounded: Tensor, products: Tensor) -> float:
    """The squared error of the outputs."""
    error = rounded - weight
    return float(((error @ products) * error).sum())


@every_width
def test_a_scale_by_error_is_at_least_as_good_as_that_of_the_largest_weight(
    generator: torch.Generator, bits: int
) -> None:
    rows = weights(generator, 1, 12, 50)[0]
    scale = best_scale(rows, bits)
    error = (nearest_codes(rows, scale, bits) * scale - rows).square().sum(1)
    usual = (fake_quantize_weight(rows, bits, channel_axis=0) - rows).square().sum(1)
    assert bool((error <= usual).all())
    assert bits > 6 or bool((error < usual).any())


def test_importance_decides_which_weights_are_hit() -> None:
    rows = torch.tensor([[1.0, 0.32]])
    tail_counts = best_scale(rows, 2, torch.tensor([[0.01, 1.0]]))
    assert float(tail_counts) == pytest.approx(0.32, abs=0.02)
    assert float(best_scale(rows, 2, torch.tensor([[1.0, 0.01]]))) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
def test_the_quantizer_leaves_rounded_weights_as_they_are(bits: int, seed: int, per_channel: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, products = weights(generator, 3, 4, 70), moments(generator, 3, 70)
    rows = weight.view((-1, 70) if per_channel else (1, -1))
    scale = best_scale(rows, bits)
    shaped = scale.view((3, 4, 1) if per_channel else (1, 1, 1))
    for codes in (nearest_codes(weight, shaped, bits), gptq_round(weight, shaped, bits, products)):
        rounded = (codes * shaped).view(12, 70)
        again = fake_quantize_weight(rounded, bits, channel_axis=0 if per_channel else None)
        assert torch.equal(again, rounded)


@every_width
def test_making_up_loses_less_of_the_output(generator: torch.Generator, bits: int) -> None:
    weight, products = torch.randn(2, 8, 100, generator=generator), moments(generator, 2, 100)
    scale = best_scale(weight.view(-1, 100), bits).view(2, 8, 1)
    nearest = nearest_codes(weight, scale, bits) * scale
    better = gptq_round(weight, scale, bits, products) * scale
    assert lost(weight, better, products) < 0.7 * lost(weight, nearest, products)


def test_inputs_that_have_nothing_in_common_leave_nothing_to_make_up(generator: torch.Generator) -> None:
    weight = torch.randn(1, 5, 30, generator=generator)
    scale = best_scale(weight[0], 4).view(1, 5, 1)
    products = torch.rand(30, generator=generator).diag()[None]
    assert torch.equal(gptq_round(weight, scale, 4, products), nearest_codes(weight, scale, 4))


def slow_codes(row: Tensor, scale: float, bits: int, products: Tensor) -> Tensor:
    """One row, as the method is described: after each weight the best change of those that are left."""
    row, products = row.double().clone(), damped(products[None])[0]
    top = largest_code(bits, signed=True)
    peak = int(row.abs().argmax())
    forced = float(row[peak].sign()) * top
    codes = torch.zeros_like(row)
    left = products.diagonal().argsort(descending=True).tolist()
    while left:
        index = left.pop(0)
        nearest = float((row[index] / scale).round().clamp(-top, top))
        codes[index] = forced if index == peak and bits > 2 else nearest
        error = codes[index] * scale - row[index]
        if left:  # minimise (error, change) · products · (error, change)
            cross = products[left, index] * error
            row[left] -= torch.linalg.solve(products[left][:, left], cross)
    return codes


@pytest.mark.parametrize("bits", [2, 4])
def test_many_columns_give_what_one_after_the_other_gives(generator: torch.Generator, bits: int) -> None:
    weight, products = torch.randn(1, 3, 80, generator=generator), moments(generator, 1, 80)
    scale = best_scale(weight[0], bits)
    found = gptq_round(weight, scale.view(1, 3, 1), bits, products)[0]
    expected = [slow_codes(row, float(s), bits, products[0]) for row, s in zip(weight[0], scale, strict=True)]
    assert float((found.double() != torch.stack(expected)).double().mean()) < 0.02  # ties of rounding


def test_inputs_that_are_all_zero_do_no_harm(generator: torch.Generator) -> None:
    weight = torch.randn(1, 2, 5, generator=generator)
    scale = best_scale(weight[0], 4).view(1, 2, 1)
    codes = gptq_round(weight, scale, 4, torch.zeros(1, 5, 5))
    assert torch.equal(codes, nearest_codes(weight, scale, 4))
