"""The quantizers against the paper's formulas, in float64 and one number at a time."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis.extra import numpy as hnp
from torch import Tensor

from hwbmpq.errors import NonFiniteError
from hwbmpq.quant import fake_quantize_activation, fake_quantize_weight, quantize_weight
from hwbmpq.testing import reference_clip, reference_pact, reference_pact_gradients, reference_weights

WIDTHS = st.integers(2, 16)
DTYPES = st.sampled_from([torch.float32, torch.float64])


@st.composite
def weights(draw: st.DrawFn, min_dims: int = 1) -> Tensor:
    """Tensors of one to four axes over many magnitudes, with zeros and equal values among them."""
    shape = draw(hnp.array_shapes(min_dims=min_dims, max_dims=4, max_side=5))
    element = st.one_of(st.just(0.0), st.floats(-1, 1, width=32), st.sampled_from([0.25, -0.25, 1.0]))
    scale = 10.0 ** draw(st.integers(-12, 12))
    array = draw(hnp.arrays(np.float64, shape, elements=element)) * scale
    return torch.from_numpy(array).to(draw(DTYPES))


def ulps(values: Tensor, other: Tensor) -> float:
    """Largest distance, in units of the last place of the larger magnitude."""
    spacing = torch.from_numpy(np.spacing(np.maximum(values.abs().numpy(), other.abs().numpy())))
    return float(((values - other).abs() / spacing).max())


@given(weights(), WIDTHS)
def test_weights_match_the_formula_except_at_rounding_boundaries(weight: Tensor, bits: int) -> None:
    expected, scale = reference_weights(weight.double().flatten().tolist(), bits)
    assume(scale > 1e-30)  # below, float32 has no room for the codes
    ours = fake_quantize_weight(weight, bits).double().flatten()
    step = scale if bits > 2 else 0.7 * float(weight.double().abs().mean()) or 1.0
    for value, got, wanted in zip(weight.double().flatten().tolist(), ours.tolist(), expected, strict=True):
        position = abs(value) / step
        boundary = abs(position - math.floor(position) - 0.5) if bits > 2 else abs(position - 1)
        if boundary > 1e-5 + 4e-7 * position:  # the division rounds
            assert got == pytest.approx(wanted, rel=1e-5, abs=1e-6 * scale)


@given(weights(), WIDTHS)
def test_scale_is_the_formulas(weight: Tensor, bits: int) -> None:
    _, expected = reference_weights(weight.double().flatten().tolist(), bits)
    assume(expected > 1e-30)
    threshold = 0.7 * float(weight.double().abs().mean())
    distance = (weight.double().abs() / threshold - 1).abs().min() if bits == 2 and threshold else 1.0
    assume(float(distance) > 1e-5)  # a weight on TWN's threshold may fall on either side
    assert float(quantize_weight(weight, bits)[1]) == pytest.approx(expected, rel=1e-5)


@given(weights(), st.integers(3, 16))
def test_quantizing_twice_equals_once_bit_for_bit(weight: Tensor, bits: int) -> None:
    once = fake_quantize_weight(weight, bits)
    assert torch.equal(fake_quantize_weight(once, bits), once)


@given(weights())
def test_ternary_twice_equals_once_within_four_ulps(weight: Tensor) -> None:
    once = fake_quantize_weight(weight, 2)
    twice = fake_quantize_weight(once, 2)
    assert torch.equal(once.sign(), twice.sign())
    assert not once.any() or ulps(once, twice) <= 4


@pytest.mark.parametrize("bits", range(3, 17))
def test_scale_survives_its_own_rounding_for_every_float32_mantissa(bits: int) -> None:
    """Why the quantizer is idempotent: max → S → n·S → S' gives S' = S, whatever the maximum."""
    steps = float(2 ** (bits - 1) - 1)
    peaks = torch.arange(2**23, 2**24, 7, dtype=torch.int64).to(torch.float32)
    scales = peaks / steps
    assert torch.equal((scales * steps) / steps, scales)


@given(weights(), WIDTHS)
def test_weights_take_few_levels_inside_the_range(weight: Tensor, bits: int) -> None:
    quantized = fake_quantize_weight(weight, bits)
    assert quantized.unique().numel() <= 2**bits - 1
    assert float(quantized.abs().max()) <= float(weight.abs().max()) * (1 + 1e-6)


@given(weights(), st.integers(3, 16))
def test_error_is_at_most_half_a_step(weight: Tensor, bits: int) -> None:
    codes, scale = quantize_weight(weight, bits)
    assert torch.equal(codes, codes.round())
    error = (fake_quantize_weight(weight, bits) - weight).abs().max()
    assert float(error) <= 0.5 * float(scale) * (1 + 1e-3)


@given(weights(min_dims=2), WIDTHS)
def test_per_channel_equals_channels_on_their_own(weight: Tensor, bits: int) -> None:
    together = fake_quantize_weight(weight, bits, channel_axis=0)
    apart = torch.stack([fake_quantize_weight(channel, bits) for channel in weight])
    torch.testing.assert_close(together, apart, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("axis", [None, 0])
def test_all_zero_tensor_and_channel_stay_zero_with_scale_one_and_finite_gradients(
    bits: int, axis: int | None
) -> None:
    weight = torch.zeros(3, 4, requires_grad=True)
    with torch.no_grad():
        weight[1:] = torch.randn(2, 4) if axis == 0 else 0.0
    quantized = fake_quantize_weight(weight, bits, channel_axis=axis)
    quantized.sum().backward()
    assert not quantized[0].any()
    assert float(quantize_weight(weight.detach(), bits, channel_axis=axis)[1].flatten()[0]) == 1.0
    assert torch.equal(weight.grad, torch.ones_like(weight))


@given(weights(), WIDTHS)
def test_weight_gradient_passes_straight_through(weight: Tensor, bits: int) -> None:
    weight.requires_grad_()
    gradient = torch.randn_like(weight)
    fake_quantize_weight(weight, bits).backward(gradient)
    assert torch.equal(weight.grad, gradient)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("bits", [2, 4, 16])
@pytest.mark.parametrize("axis", [None, 0])
def test_infinite_and_nan_weights_raise_and_name_the_layer(bad: float, bits: int, axis: int | None) -> None:
    weight = torch.randn(3, 3)
    weight[1, 2] = bad
    with pytest.raises(NonFiniteError, match=r"layer 'stem\.conv' holds infinite or NaN weights"):
        fake_quantize_weight(weight, bits, channel_axis=axis, name="layer 'stem.conv'")


def test_sixteen_bits_are_close_to_float() -> None:
    weight, values = torch.randn(1000), torch.rand(1000)
    torch.testing.assert_close(fake_quantize_weight(weight, 16), weight, rtol=0, atol=1e-4)
    sixteen = fake_quantize_activation(values, torch.tensor(1.0), 16, signed=False)
    torch.testing.assert_close(sixteen, values, rtol=0, atol=1e-5)


# Activations

ALPHAS = st.floats(2**-10, 2**10, width=32)
UNITS = st.lists(
    st.one_of(st.floats(-3, 3, width=32, allow_subnormal=False), st.sampled_from([0.0, 1.0, -1.0, 2.0])),
    min_size=1,
    max_size=30,
)


def pact(units: list[float], alpha: float, bits: int, signed: bool) -> tuple[Tensor, Tensor, Tensor]:
    values = (torch.tensor(units) * alpha).requires_grad_()
    clip = torch.tensor(alpha, requires_grad=True)
    return values, clip, fake_quantize_activation(values, clip, bits, signed=signed)


@given(UNITS, ALPHAS, WIDTHS, st.booleans())
def test_activations_match_the_formula_except_at_rounding_boundaries(
    units: list[float], alpha: float, bits: int, signed: bool
) -> None:
    values, _, quantized = pact(units, alpha, bits, signed)
    steps = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    for value, got in zip(values.tolist(), quantized.tolist(), strict=True):
        position = reference_clip(value, alpha, signed=signed) * steps / alpha
        if abs(position - math.floor(position) - 0.5) > 1e-2:
            assert got == pytest.approx(reference_pact(value, alpha, bits, signed=signed), rel=1e-5, abs=0)


@given(UNITS, ALPHAS, WIDTHS, st.booleans())
def test_activation_levels_range_and_idempotence(
    units: list[float], alpha: float, bits: int, signed: bool
) -> None:
    _, clip, quantized = pact(units, alpha, bits, signed)
    quantized = quantized.detach()
    assert quantized.unique().numel() <= (2**bits - 1 if signed else 2**bits)
    assert float(quantized.max()) <= alpha * (1 + 1e-6)
    assert float(quantized.min()) >= (-alpha * (1 + 1e-6) if signed else 0.0)
    assert torch.equal(fake_quantize_activation(quantized, clip, bits, signed=signed), quantized)


@given(UNITS, ALPHAS, WIDTHS, st.booleans())
def test_activation_gradients_are_the_analytic_ones(
    units: list[float], alpha: float, bits: int, signed: bool
) -> None:
    values, clip, quantized = pact(units, alpha, bits, signed)
    gradient = torch.randn(len(units), generator=torch.Generator().manual_seed(3))
    quantized.backward(gradient)
    pairs = [reference_pact_gradients(v, alpha, signed=signed) for v in values.tolist()]
    expected = gradient * torch.tensor([by_value for by_value, _ in pairs])
    assert torch.equal(values.grad, expected)
    by_alpha = math.fsum(g * d for g, (_, d) in zip(gradient.tolist(), pairs, strict=True))
    assert float(clip.grad) == pytest.approx(by_alpha, rel=1e-4, abs=1e-5)


@given(st.floats(-3, 3), st.floats(0.1, 10), st.booleans())
def test_gradients_are_finite_differences_of_the_clip_before_rounding(
    unit: float, alpha: float, signed: bool
) -> None:
    value, step = unit * alpha, 1e-6 * alpha
    assume(min(abs(abs(unit) - 1), abs(unit)) > 1e-4)  # the clip has kinks there
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    clip = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    fake_quantize_activation(values, clip, 8, signed=signed).backward(torch.ones(1, dtype=torch.float64))

    def slope(low: float, high: float) -> float:
        return (high - low) / (2 * step)

    by_value = slope(
        reference_clip(value - step, alpha, signed=signed), reference_clip(value + step, alpha, signed=signed)
    )
    by_alpha = slope(
        reference_clip(value, alpha - step, signed=signed), reference_clip(value, alpha + step, signed=signed)
    )
    assert float(values.grad) == pytest.approx(by_value, abs=1e-6)
    assert float(clip.grad) == pytest.approx(by_alpha, abs=1e-6)


@pytest.mark.parametrize("signed", [False, True])
def test_memory_format_does_not_change_the_result(signed: bool) -> None:
    plain = torch.randn(2, 3, 4, 5)
    results = []
    for values in (
        plain,
        plain.to(memory_format=torch.channels_last),
        plain.transpose(2, 3).contiguous().transpose(2, 3),
    ):
        leaf = values.detach().requires_grad_()
        alpha = torch.tensor(0.8, requires_grad=True)
        quantized = fake_quantize_activation(leaf, alpha, 4, signed=signed)
        quantized.backward(plain.sin())
        results.append((quantized.detach(), leaf.grad, alpha.grad))
    for quantized, by_value, by_alpha in results[1:]:
        assert torch.equal(quantized, results[0][0])
        assert torch.equal(by_value, results[0][1])
        torch.testing.assert_close(by_alpha, results[0][2])


# Worked by hand


def test_ternary_threshold_is_seven_tenths_of_the_mean() -> None:
    codes, scale = quantize_weight(torch.tensor([0.69, 0.71, 1.0, 1.6]), 2)  # mean 1.0
    assert codes.tolist() == [0, 1, 1, 1]
    assert float(scale) == pytest.approx((0.71 + 1.0 + 1.6) / 3)


def test_halves_are_rounded_to_even() -> None:
    codes, _ = quantize_weight(torch.tensor([7.0, 0.5, 1.5, 2.5, -0.5, -1.5]), 4)
    assert codes.tolist() == [7, 0, 2, 2, 0, -2]
    values = fake_quantize_activation(torch.tensor([0.5, 1.5, 2.5]), torch.tensor(15.0), 4, signed=False)
    assert values.tolist() == [0, 2, 2]


def test_weights_too_small_to_divide_by_are_zero() -> None:
    codes, scale = quantize_weight(torch.tensor([10 * 2.0**-149]), 4)
    assert (codes.tolist(), scale.tolist()) == ([0], [1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("axis", [None, 0])
def test_half_precision_is_float32_rounded_once(dtype: torch.dtype, axis: int | None) -> None:
    weight = (torch.randn(64, 64) * torch.logspace(-2, 2, 64)[:, None]).to(dtype)
    wide = fake_quantize_weight(weight.float(), 8, channel_axis=axis)
    assert torch.equal(fake_quantize_weight(weight, 8, channel_axis=axis), wide.to(dtype))


@pytest.mark.parametrize("signed", [False, True])
def test_gradients_for_second_derivatives_equal_the_plain_ones(signed: bool) -> None:
    values = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0], requires_grad=True)
    alpha = torch.tensor(1.0, requires_grad=True)

    def gradients(create_graph: bool) -> tuple[Tensor, ...]:
        quantized = fake_quantize_activation(values, alpha, 4, signed=signed)
        return torch.autograd.grad(
            quantized, (values, alpha), torch.arange(1.0, 8.0), create_graph=create_graph
        )

    for plain, twice in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(plain, twice.detach())
