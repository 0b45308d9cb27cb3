"""Fake quantization with straight-through gradients: float in, float on the grid out.

Only float arithmetic is used in the hot paths: on CPUs, comparisons and selections by mask run several
times slower than ``clamp``, ``round`` and their backward kernels (measured by ``benchmarks/train_step.py``).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hwbmpq.errors import NonFiniteError


def largest_code(bits: int, *, signed: bool) -> int:
    """Largest integer code; the signed range is symmetric, so its smallest is the negative.

    >>> largest_code(4, signed=True), largest_code(4, signed=False)
    (7, 15)
    """
    return (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1


CodeRange = tuple[int, int]
"""The smallest and the largest integer code of an input."""

_BYTE_STEPS = 2**8 - 1


def input_codes(bits: int, *, signed: bool, below: int = 0) -> CodeRange:
    """The codes of an input; ``below`` of 255 steps are below zero where values are signed and lopsided, else half.

    >>> input_codes(4, signed=False), input_codes(4, signed=True), input_codes(4, signed=True, below=40)
    ((0, 15), (-7, 7), (-2, 13))
    """
    if not (signed and below):
        top = largest_code(bits, signed=signed)
        return (-top if signed else 0, top)
    steps = (1 << bits) - 1
    low = max(1, round(below * steps / _BYTE_STEPS))
    return -low, steps - low


TERNARY_BITS = 2
TERNARY_THRESHOLD = 0.7
"""TWN's threshold as a multiple of the mean magnitude (Li et al. 2016, eq. 6)."""

SMALLEST_ALPHA = 1e-6
"""Clipping points below count as this one, so that training can undo a step that went too far."""

HALVES = (torch.float16, torch.bfloat16)  # too coarse to compute scales and codes in


def quantize_weight(weight: Tensor, bits: int, *, channel_axis: int | None = None) -> tuple[Tensor, Tensor]:
    """Integer codes (as floats) and scale; ``codes * scale`` is the fake-quantized weight.

    The scale is ``max|W| / (2^(bits-1) - 1)``, or TWN's at 2 bits, and 1 where all weights are zero. It has
    the weight's number of axes, all of length 1 but ``channel_axis``. Half precision is computed in float32.
    """
    if bits != TERNARY_BITS:
        return max_scale_codes(weight, bits, channel_axis=channel_axis)
    return _ternary(*_in_float(weight, channel_axis))


def max_scale_codes(weight: Tensor, bits: int, *, channel_axis: int | None = None) -> tuple[Tensor, Tensor]:
    """Like ``quantize_weight``, with ``max|W| / (2^(bits-1) - 1)`` as the scale at 2 bits too."""
    weight, axes = _in_float(weight, channel_axis)
    scale = _or_one(_peak(weight, axes) / largest_code(bits, signed=True))
    return torch.div(weight, scale).round_(), scale


def fake_quantize_weight(
    weight: Tensor, bits: int, *, channel_axis: int | None = None, name: str = "the weight"
) -> Tensor:
    """``round(W/S)·S``, ternary at 2 bits; the gradient passes straight through.

    ``name`` is what the error about infinite or NaN weights calls them.
    """
    with torch.no_grad():
        codes, scale = quantize_weight(weight, bits, channel_axis=channel_axis)
    return straight_through(weight, codes, scale, name)


def straight_through(weight: Tensor, codes: Tensor, scale: Tensor, name: str) -> Tensor:
    """``codes * scale`` in the weight's place, whose gradient it passes on; overwrites ``codes``."""
    if _can_read(scale) and not bool(torch.isfinite(scale).all()):
        raise NonFiniteError(
            f"{name} holds infinite or NaN weights",
            hint="lower the learning rate, clip gradients, or check the loaded weights",
        )
    quantized = codes.detach().mul_(scale.detach()).to(weight.dtype)
    return _StraightThrough.apply(weight, quantized)  # type: ignore[no-untyped-call, no-any-return]


def fake_quantize_activation(
    values: Tensor,
    alpha: Tensor,
    bits: int,
    *,
    signed: bool,
    learns_step: bool = False,
    codes: CodeRange | None = None,
) -> Tensor:
    """Clip to [0, α] (signed: [-α, α]), round to ``bits``. α gets the clipped values' gradient (PACT).

    ``learns_step``: α is trained as a multiple of the step size instead (LSQ), so rounding errors count too.
    ``alpha`` is a scalar tensor; below ``SMALLEST_ALPHA`` it counts as that. ``codes`` are the smallest and the largest to
    round to, by default symmetric if ``signed``; α is the value of the largest, and the smallest is at its share of it.
    """
    if values.dtype in HALVES:
        return fake_quantize_activation(
            values.float(), alpha.float(), bits, signed=signed, learns_step=learns_step, codes=codes
        ).to(values.dtype)
    function = _LearnedClip if learns_step else _Pact
    low, top = codes or input_codes(bits, signed=signed)
    return function.apply(values, alpha, low, top)  # type: ignore[no-untyped-call, no-any-return]


def check_finite(values: Tensor, name: str) -> None:
    """Raise if ``values`` hold infinities or NaN; only on CPU, where this needs no synchronisation.

    The sum shows it at a fraction of the cost of testing each element. Every element is tested only if
    the sum is not finite, since it may have overflowed.
    """
    if not _can_read(values) or bool(torch.isfinite(values.detach().sum())):
        return
    if not bool(torch.isfinite(values.detach()).all()):
        raise NonFiniteError(
            f"the input of {name} holds infinite or NaN values",
            hint="check the data for bad samples; if training diverged, lower the learning rate",
        )


def _can_read(values: Tensor) -> bool:
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def _in_float(weight: Tensor, channel_axis: int | None) -> tuple[Tensor, list[int]]:
    """The weight in a precision to compute scales in, and the axes that one scale spans."""
    axes = [axis for axis in range(weight.dim()) if axis != channel_axis]
    return weight.float() if weight.dtype in HALVES else weight, axes


def _ternary(weight: Tensor, axes: list[int]) -> tuple[Tensor, Tensor]:
    """TWN codes in {-1, 0, 1} and the mean magnitude of the weights that are not cut to zero.

    Works on weights scaled to a peak of 1: sums of equal magnitudes are then exact, which makes
    the quantizer idempotent, and no magnitude overflows the sum.
    """
    peak = _or_one(_peak(weight, axes))
    unit = weight / peak
    threshold = _or_one(TERNARY_THRESHOLD * unit.abs().mean(dim=axes, keepdim=True))
    codes = F.hardshrink(unit / threshold, 1.0).sign_()
    count = codes.abs().sum(dim=axes, keepdim=True)
    total = (unit * codes).sum(dim=axes, keepdim=True)
    return codes, peak * _or_one(total / count.clamp_min(1.0))


def _peak(values: Tensor, axes: list[int]) -> Tensor:
    """Largest magnitude, without an intermediate tensor of magnitudes."""
    return torch.maximum(values.amax(dim=axes, keepdim=True), -values.amin(dim=axes, keepdim=True))


def _or_one(scale: Tensor) -> Tensor:
    """1 in place of zeros; numbers too small to divide by count as zero."""
    return torch.where(scale < torch.finfo(scale.dtype).tiny, torch.ones_like(scale), scale)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, quantized: Tensor) -> Tensor:
        return quantized

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0], None


class _Pact(torch.autograd.Function):
    """On an accelerator the host never reads α, so neither pass waits.

    Each pass allocates one tensor and works in place: on CPUs, touching fresh memory costs more than all
    the arithmetic.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, alpha: Tensor, low: int, top: int) -> Tensor:
        alpha = alpha.clamp_min(SMALLEST_ALPHA)
        ctx.save_for_backward(values, alpha)
        ctx.lowest = low / top
        clipped = _clamped(values, alpha * ctx.lowest, alpha)
        return clipped.mul_(top / alpha).round_().mul_(alpha / top)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        values, alpha = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives are wanted, which the kernels do not have
            return *_differentiable_gradients(gradient, values, alpha, ctx.lowest), None, None
        # The kernels take constant bounds. On CPU α can be read; elsewhere everything is divided by it.
        scaled, bound = (values, alpha.item()) if _can_read(alpha) else (values / alpha, 1.0)
        result = torch.empty_like(values)
        alpha_gradient = None
        if ctx.needs_input_grad[1]:
            alpha_gradient = _clipped_gradient(gradient, scaled, bound, ctx.lowest, scratch=result)
        low = _lower_bound(bound, ctx.lowest, values)
        torch.ops.aten.hardtanh_backward.grad_input(gradient, scaled, low, bound, grad_input=result)
        return result, alpha_gradient, None, None


def _clamped(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """On CPU numbers as bounds are seven times as fast as tensors; elsewhere reading them would stall the device."""
    if not _can_read(high):
        return torch.clamp(values, min=low, max=high)
    # Into a tensor laid out as the values: of itself, it would lay out a single channel anew, and convolutions go by that.
    return torch.clamp(values, low.item(), high.item(), out=torch.empty_like(values))


class _LearnedClip(torch.autograd.Function):
    """LSQ with α in place of the step s = α/Q: ∂/∂α is ∂/∂s divided by Q.

    A step of α is to be Q times the step that LSQ's gradient, scaled by 1/√(N·Q), takes s: its gradient is multiplied by
    Q²/√(N·Q), N being the values of one image.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, alpha: Tensor, low: int, top: int) -> Tensor:
        quantized = _Pact.forward(ctx, values, alpha, low, top)
        ctx.save_for_backward(values, alpha.clamp_min(SMALLEST_ALPHA), quantized)
        ctx.factor = top**1.5 / max(1, values.numel() // max(1, len(values))) ** 0.5 if values.dim() else 1.0
        return quantized

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        values, alpha, quantized = ctx.saved_tensors
        if torch.is_grad_enabled():
            passed, _ = _differentiable_gradients(gradient, values, alpha, ctx.lowest)
            slope = (gradient * quantized.detach()).sum() - (passed * values).sum()
            return passed, slope * ctx.factor / alpha, None, None
        scaled, bound = (values, alpha.item()) if _can_read(alpha) else (values / alpha, 1.0)
        low = _lower_bound(bound, ctx.lowest, values)
        passed = torch.ops.aten.hardtanh_backward(gradient, scaled, low, bound)
        alpha_gradient = None
        if ctx.needs_input_grad[1]:
            # Inside, a value's slope is its rounding error over α; where clipped, ±1, which is the quantized value over α.
            slope = _inner_product(gradient, quantized) - _inner_product(passed, values)
            alpha_gradient = slope * ctx.factor / alpha
        return passed, alpha_gradient, None, None


def _inner_product(a: Tensor, b: Tensor) -> Tensor:
    """The sum of products, in one pass and without a tensor in between where both lie alike in memory.

    It is summed in float32 throughout: of millions of values the last digits are lost, which a gradient of α can spare.
    """
    if a.stride() == b.stride() and a.dtype == b.dtype and _is_dense(a):
        return torch.dot(a.as_strided((a.numel(),), (1,)), b.as_strided((b.numel(),), (1,)))
    return (a * b).sum()


def _is_dense(values: Tensor) -> bool:
    return values.is_contiguous() or (
        values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last)
    )


def _lower_bound(bound: float, lowest: float, values: Tensor) -> float:
    """Where gradients stop below, for a kernel that stops at the bound itself: PACT's interval is [0, α), which has 0."""
    return bound * lowest if lowest else -torch.finfo(values.dtype).tiny


def _differentiable_gradients(
    gradient: Tensor, values: Tensor, alpha: Tensor, lowest: float
) -> tuple[Tensor, Tensor]:
    """Gradients of the input and of α in plain arithmetic, linear in ``gradient``; ``lowest`` is the smallest value over α."""
    above = (values >= alpha).to(gradient.dtype)
    below = (values <= alpha * lowest if lowest else values < 0).to(gradient.dtype)
    alpha_gradient = (gradient * (above + lowest * below)).sum()
    return gradient * (1 - above - below), alpha_gradient


def _clipped_gradient(
    gradient: Tensor, values: Tensor, bound: float, lowest: float, *, scratch: Tensor
) -> Tensor:
    """Sum of the gradient where ``values`` ≥ ``bound``, and ``lowest`` times that where they are clipped below."""
    just_below = bound * (1.0 - torch.finfo(values.dtype).eps / 2)  # the next smaller float
    if lowest == -1:
        torch.clamp(values, -bound, bound, out=scratch)
        torch.ops.aten.hardshrink.out(scratch, just_below, out=scratch)  # ±bound where clipped, else 0
        return scratch.mul_(gradient).sum() / bound
    torch.ops.aten.threshold_backward.grad_input(gradient, values, just_below, grad_input=scratch)
    above = scratch.sum()
    if not lowest:
        return above
    torch.mul(gradient, values <= bound * lowest, out=scratch)
    return above + lowest * scratch.sum()
