"""The activation quantizer as a module: initialisation, sharing, observed range."""

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hwbmpq.errors import NonFiniteError
from hwbmpq.quant import CALIBRATION_BATCHES, InputQuantizer, fake_quantize_activation
from hwbmpq.quant.scales import best_clip


@pytest.fixture
def quantizer() -> InputQuantizer:
    return InputQuantizer(signed=False, trainable=True, name="layer 'conv'", like=torch.empty(0))


def batch(seed: int) -> Tensor:
    return torch.randn(64, 32, generator=torch.Generator().manual_seed(seed)).relu()


def squared_error(values: Tensor, alpha: Tensor, bits: int, signed: bool) -> float:
    return float((fake_quantize_activation(values, alpha, bits, signed=signed) - values).square().sum())


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("signed", [False, True])
def test_best_clip_beats_the_maximum_and_its_neighbours(bits: int, signed: bool) -> None:
    values = torch.randn(4000) if signed else torch.randn(4000).relu()
    best = best_clip(values, bits, signed=signed)
    error = squared_error(values, best, bits, signed)
    for factor in (0.8, 1.25):
        assert error <= squared_error(values, best * factor, bits, signed)
    assert error <= squared_error(values, values.abs().max(), bits, signed)


def test_alpha_is_the_mean_of_the_first_batches_best_clips_and_then_stays(quantizer: InputQuantizer) -> None:
    batches = [batch(seed) * (1 + seed) for seed in range(CALIBRATION_BATCHES)]
    for values in batches:
        quantizer(values, 4)
    expected = torch.stack([best_clip(values, 4, signed=False) for values in batches]).mean()
    torch.testing.assert_close(quantizer.alpha.detach(), expected)
    quantizer(batch(99) * 1000, 4)
    torch.testing.assert_close(quantizer.alpha.detach(), expected)


def test_evaluation_learns_from_its_first_batch_only_and_only_if_nothing_was_known(
    quantizer: InputQuantizer,
) -> None:
    quantizer.eval()(batch(0), 4)
    quantizer(batch(1) * 10, 4)
    torch.testing.assert_close(quantizer.alpha.detach(), best_clip(batch(0), 4, signed=False))
    assert torch.equal(quantizer(batch(0), 4), quantizer(batch(0), 4))


def test_readers_at_two_widths_count_as_one_batch(quantizer: InputQuantizer) -> None:
    values = batch(0)
    four, two = quantizer(values, 4), quantizer(values, 2)
    assert quantizer.calibration.batches == 1
    assert two.unique().numel() <= 4 < four.unique().numel()


@pytest.mark.parametrize("widths", [(16, 4), (16, 4, 16, 4)], ids=str)
def test_a_reader_at_sixteen_bits_does_not_keep_others_from_calibrating(
    widths: tuple[int, ...], quantizer: InputQuantizer
) -> None:
    values = batch(0)
    for bits in widths:
        quantizer(values, bits)
    assert quantizer.calibration.batches == 1
    torch.testing.assert_close(quantizer.alpha.detach(), best_clip(values, 4, signed=False))


def test_a_forward_pass_recomputed_in_backward_sees_the_same_alpha(quantizer: InputQuantizer) -> None:
    values = batch(0).requires_grad_()
    # The product makes a tensor that is gone by the time it is computed again.
    result = checkpoint(lambda x: quantizer(x * 1.0, 4).square(), values, use_reentrant=False)
    alpha = float(quantizer.alpha.detach())
    result.sum().backward()
    assert (float(quantizer.alpha.detach()), quantizer.calibration.batches) == (alpha, 1)


def test_switching_from_sixteen_bits_calibrates_alpha_then(quantizer: InputQuantizer) -> None:
    for seed in range(CALIBRATION_BATCHES + 1):
        quantizer(batch(seed), 16)
    quantizer(batch(0), 4)
    torch.testing.assert_close(quantizer.alpha.detach(), best_clip(batch(0), 4, signed=False))


def test_switching_to_sixteen_bits_knows_the_range_already(quantizer: InputQuantizer) -> None:
    for seed in range(CALIBRATION_BATCHES + 1):
        quantizer(batch(seed), 4)
    widest = max(float(batch(seed).max()) for seed in range(CALIBRATION_BATCHES))
    assert float(quantizer.observed) == pytest.approx(widest)
    torch.testing.assert_close(quantizer.eval()(batch(0), 16), batch(0), rtol=0, atol=1e-4)


def test_batches_of_zeros_teach_nothing(quantizer: InputQuantizer) -> None:
    quantizer(torch.zeros(4, 4), 4)
    assert (quantizer.calibration.batches, float(quantizer.alpha.detach())) == (0, 1.0)


def test_inference_mode_works(quantizer: InputQuantizer) -> None:
    expected = quantizer.eval()(batch(0), 4)
    with torch.inference_mode():
        assert torch.equal(quantizer(batch(0), 4), expected)


def test_a_changed_alpha_is_not_answered_from_the_cache(quantizer: InputQuantizer) -> None:
    values = batch(0)
    before = quantizer.eval()(values, 4)
    with torch.no_grad():
        quantizer.alpha.mul_(0.1)
    assert not torch.equal(quantizer(values, 4), before)


def test_equal_widths_share_the_tensor_and_others_do_not(quantizer: InputQuantizer) -> None:
    values = batch(0).requires_grad_()
    four = quantizer(values, 4)
    assert quantizer(values, 4) is four
    assert quantizer(values, 2) is not four
    assert quantizer(batch(0), 4) is not four  # equal values, another tensor


def test_an_in_place_change_is_not_answered_from_the_cache(quantizer: InputQuantizer) -> None:
    for seed in range(CALIBRATION_BATCHES):
        quantizer(batch(seed), 4)
    values = batch(0)
    before = quantizer(values, 4)
    values.mul_(0.5)
    after = quantizer(values, 4)
    assert not torch.equal(before, after)


def test_a_tensor_made_without_gradients_is_not_reused_with_them(quantizer: InputQuantizer) -> None:
    values = batch(0).requires_grad_()
    with torch.no_grad():
        first = quantizer(values, 4)
    second = quantizer(values, 4)
    assert not first.requires_grad
    assert second.requires_grad


def test_the_cache_keeps_no_tensor_alive(quantizer: InputQuantizer) -> None:
    quantizer(batch(0), 4)
    assert quantizer._last is not None
    assert quantizer._last._quantized() is None


def test_sixteen_bits_use_the_range_seen_in_training(quantizer: InputQuantizer) -> None:
    for seed in range(CALIBRATION_BATCHES):
        quantizer(batch(seed), 16)
    widest = max(float(batch(seed).max()) for seed in range(CALIBRATION_BATCHES))
    assert float(quantizer.observed) == pytest.approx(widest)
    quantizer.eval()
    assert float(quantizer(torch.tensor([widest * 2]), 16).detach()) == pytest.approx(widest)
    quantizer.train()
    assert float(quantizer(torch.tensor([widest * 2]), 16).detach()) == pytest.approx(widest * 2)
    assert quantizer.alpha.grad is None


def test_float_width_returns_the_very_tensor(quantizer: InputQuantizer) -> None:
    values = batch(0)
    assert quantizer(values, 32) is values


def test_alpha_below_zero_still_quantizes_and_can_recover(quantizer: InputQuantizer) -> None:
    for seed in range(CALIBRATION_BATCHES):
        quantizer(batch(seed), 4)
    with torch.no_grad():
        quantizer.alpha.fill_(-100.0)
    quantized = quantizer(batch(0), 4)
    quantized.backward(-torch.ones_like(quantized))  # the loss falls as the outputs grow
    assert torch.isfinite(quantized).all()
    assert float(quantizer.alpha.grad) < 0  # so the next step raises α


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("bits", [2, 8, 16])
def test_infinite_and_nan_inputs_raise_and_name_the_layer(
    quantizer: InputQuantizer, bad: float, bits: int
) -> None:
    values = batch(0)
    values[3, 4] = bad
    with pytest.raises(NonFiniteError, match="the input of layer 'conv' holds infinite or NaN"):
        quantizer(values, bits)


def test_large_finite_values_whose_sum_overflows_pass(quantizer: InputQuantizer) -> None:
    assert torch.isfinite(quantizer(torch.full((8,), 3e38), 4)).all()


def test_copies_and_pickles_do_not_share_the_cache(quantizer: InputQuantizer) -> None:
    values = batch(0)
    kept = quantizer(values, 4)
    for twin in (copy.deepcopy(quantizer), pickle.loads(pickle.dumps(quantizer))):
        assert twin._last is None
        assert torch.equal(twin(values, 4), kept)
        assert twin.calibration.batches == 2
        assert quantizer.calibration.batches == 1


def test_empty_batches_change_nothing(quantizer: InputQuantizer) -> None:
    assert quantizer(torch.empty(0, 4), 4).shape == (0, 4)
    assert quantizer(torch.empty(0, 4), 16).shape == (0, 4)
    assert quantizer.calibration.batches == 0


def fresh() -> InputQuantizer:
    return InputQuantizer(signed=False, trainable=True, name="layer 'conv'", like=torch.empty(0))


def test_a_changed_range_is_not_answered_from_the_cache(quantizer: InputQuantizer) -> None:
    values = batch(0)
    before = quantizer(values, 16)
    quantizer.observed.mul_(0.1)
    assert not torch.equal(quantizer.eval()(values, 16), before)


def test_a_loaded_range_is_not_learned_again(quantizer: InputQuantizer) -> None:
    quantizer(batch(0), 16)
    twin = fresh()
    twin.load_state_dict(quantizer.state_dict())
    twin.eval()(batch(1) * 100, 16)
    assert torch.equal(twin.observed, quantizer.observed)


def test_a_loaded_alpha_is_not_calibrated_again(quantizer: InputQuantizer) -> None:
    for seed in range(CALIBRATION_BATCHES):
        quantizer(batch(seed), 4)
    twin = fresh()
    twin.load_state_dict(quantizer.state_dict())
    twin(batch(9) * 100, 4)
    assert torch.equal(twin.alpha, quantizer.alpha)


def test_a_checkpoint_with_half_a_quantizer_is_refused(quantizer: InputQuantizer) -> None:
    state = quantizer.state_dict()
    del state["alpha"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "alpha"'):
        fresh().load_state_dict(state)


def test_the_unsigned_clip_ignores_negative_values() -> None:
    values = torch.cat([batch(0).flatten(), -10 * torch.rand(2000)])
    assert torch.equal(best_clip(values, 4, signed=False), best_clip(values.relu(), 4, signed=False))


def test_the_signed_clip_looks_at_magnitudes() -> None:
    torch.testing.assert_close(best_clip(-batch(0), 4, signed=True), best_clip(batch(0), 4, signed=True))


def test_best_clip_looks_at_the_whole_image_not_at_one_column() -> None:
    """With 64 images of 16x32x32, every 64th element would be from the first column: here, zeros."""
    values = torch.rand(64, 16, 32, 32, generator=torch.Generator().manual_seed(0))
    values[..., 0] = 0.0
    assert float(best_clip(values, 2, signed=False)) > 0.8
