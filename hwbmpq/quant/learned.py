"""The quantizer ``learned``: step sizes of weights and clipping points of activations are trained (LSQ, Esser et al. 2020)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hwbmpq.quant.functional import HALVES, largest_code, max_scale_codes
from hwbmpq.quant.quantizers import OBSERVED_BITS, WeightQuantizer
from hwbmpq.quant.scales import best_scale, nearest_codes
from hwbmpq.registry import QUANTIZERS
from hwbmpq.values import FLOAT_BITS


@QUANTIZERS.register("learned")
class LearnedStepQuantizer(WeightQuantizer):
    """Codes ``round(W / step)``, clipped; the step of each scale is trained with the weights. Ternary at 2 bits.

    After a change of width the step starts where the squared error of the weight is least. At 16 bits there is nothing
    to gain by clipping: the scale is that of the largest magnitude, and nothing is learned.
    """

    added_entries: ClassVar[tuple[str, ...]] = ("step",)
    learns_inputs: ClassVar[bool] = True

    step: nn.Parameter

    def __init__(self, *, channel_axis: int | None, name: str, like: Tensor) -> None:
        super().__init__(channel_axis=channel_axis, name=name, like=like)
        shape = [size if axis == channel_axis else 1 for axis, size in enumerate(like.shape)]
        dtype = torch.float32 if like.dtype in HALVES else like.dtype
        self.step = nn.Parameter(torch.zeros(shape, dtype=dtype, device=like.device), requires_grad=False)
        self._has_step = False

    def set_bits(self, bits: int) -> None:
        if bits != self.bits:
            self._has_step = False
            with torch.no_grad():
                self.step.zero_()  # a checkpoint must not take up the old width's
        super().set_bits(bits)
        # DDP expects a gradient for every trainable parameter.
        self.step.requires_grad_(self._is_learned(bits))

    @staticmethod
    def _is_learned(bits: int) -> bool:
        return bits < OBSERVED_BITS

    @torch.no_grad()
    def take_scale(self, scale: Tensor) -> None:
        """Continue with this step at the present width; one number, or one for each scale in order."""
        if self._is_learned(self.bits):
            self.step.copy_(scale.reshape(self.step.shape) if scale.numel() > 1 else scale.reshape(()))
            self._has_step = True

    def forward(self, weight: Tensor) -> Tensor:
        if self.bits == FLOAT_BITS or not self._is_learned(self.bits):
            return super().forward(weight)
        if not self._has_step:
            self._start(weight)
        top = largest_code(self.bits, signed=True)
        return _LearnedRounding.apply(weight, self.step, top)  # type: ignore[no-untyped-call, no-any-return]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _start(self, weight: Tensor) -> None:
        _, scale = self._checked(weight, self._least_error(weight.detach(), self.bits))
        self.take_scale(scale)

    def codes_and_scale(self, weight: Tensor, bits: int | None = None) -> tuple[Tensor, Tensor]:
        bits = bits or self.bits
        if not self._is_learned(bits):
            return max_scale_codes(weight, bits, channel_axis=self.channel_axis)
        if bits != self.bits or not self._has_step:
            return self._least_error(weight, bits)
        step = _positive(self.step)
        return nearest_codes(weight.to(step.dtype), step, bits), step

    def _least_error(self, weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
        weight = weight.to(self.step.dtype)
        axis = self.channel_axis
        rows = weight.reshape(1, -1) if axis is None else weight.movedim(axis, 0).flatten(1)
        scale = best_scale(rows, bits).reshape(self.step.shape)
        return nearest_codes(weight, scale, bits), scale

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *others: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *others)
        # A float checkpoint has no step; one that no weight has been seen with is stored as zeros.
        self._has_step = prefix + "step" in state_dict and bool(self.step.detach().ne(0).all())


def _positive(step: Tensor) -> Tensor:
    """Steps that training has pushed to zero or below count as the smallest number that can be divided by."""
    return step.detach().clamp_min(torch.finfo(step.dtype).tiny * 2**8)


class _LearnedRounding(torch.autograd.Function):
    """Straight through inside the range, zero outside; the step's gradient is LSQ's, scaled by 1/√(N·Q_p)."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, step: Tensor, top: int) -> Tensor:
        step = _positive(step)
        scaled = weight.to(step.dtype) / step
        codes = scaled.clamp(-top, top).round_()
        ctx.save_for_backward(scaled, codes)
        ctx.top, ctx.step_shape, ctx.scales = top, step.shape, step.numel()
        return (codes * step).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        scaled, codes = ctx.saved_tensors
        inside = (scaled.abs() <= ctx.top).to(gradient.dtype)
        step_gradient = None
        if ctx.needs_input_grad[1]:
            slopes = codes - scaled * inside
            axes = [axis for axis in range(codes.dim()) if ctx.step_shape[axis] == 1]
            count = codes.numel() / max(1, ctx.scales)
            summed = (gradient.to(slopes.dtype) * slopes).sum(dim=axes, keepdim=True)
            step_gradient = summed / (count * ctx.top) ** 0.5
        return gradient * inside, step_gradient, None
