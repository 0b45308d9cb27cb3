"""Scales and clipping points with the least squared error."""

import math

import torch
from torch import Tensor

from hwbmpq.quant.functional import SMALLEST_ALPHA, CodeRange, input_codes, largest_code

_CANDIDATES = 64
_SMALLEST_CLIP = 0.2
"""Share of the largest magnitude below which no clipping point of weights is tried."""
_SAMPLE = 2**14
"""Elements looked at to place a clipping point of activations."""
_CLIP_CANDIDATES = 40
_LARGEST_SHARE_BELOW = 1 / 3
"""Values whose range is below zero for more than this share are symmetric enough."""
_HEIGHTS = (0.25, 0.5, 0.75, 1.0)
"""Shares of the largest value at which it may be clipped while codes below zero reach as deep as the values."""


def best_scale(rows: Tensor, bits: int, importance: Tensor | None = None) -> Tensor:
    """The scale of each row of (rows, n) with the least squared error, shape (rows, 1); 1 where all is zero.

    ``importance`` weighs the errors; anything that broadcasts to the rows' shape.
    """
    top = largest_code(bits, signed=True)
    peak = rows.abs().amax(dim=1, keepdim=True)
    peak = torch.where(peak < torch.finfo(peak.dtype).tiny * top, top, peak)
    least, best = torch.full_like(peak, torch.inf), peak / top
    for share in torch.linspace(1.0, _SMALLEST_CLIP, _CANDIDATES).tolist():
        scale = peak * share / top
        error = (nearest_codes(rows, scale, bits).mul_(scale) - rows).square_()
        total = (error if importance is None else error.mul_(importance)).sum(dim=1, keepdim=True)
        best = torch.where(total < least, scale, best)
        least = torch.minimum(total, least)
    return best


def nearest_codes(values: Tensor, scale: Tensor, bits: int) -> Tensor:
    """The nearest codes, clipped to the range."""
    top = largest_code(bits, signed=True)
    return (values / scale).round_().clamp_(-top, top)


def best_clip(values: Tensor, bits: int, *, signed: bool, below: int = 0) -> Tensor:
    """The clipping point with the least squared quantization error on a sample of ``values``."""
    return _best_clip(values, _sample_of(values), input_codes(bits, signed=signed, below=below))[0]


def best_steps_below(values: Tensor, bits: int) -> int:
    """How many of 255 steps should be below zero, for the least squared error on a sample of signed ``values``.

    0 stands for half of them. What SiLU, GELU and Hardswish return is nearly all positive: half of the codes would be unused.
    """
    sample = _sample_of(values)
    depth, height = float(-sample.amin()), float(sample.amax())
    if not math.isfinite(depth + height) or depth <= 0 or depth > _LARGEST_SHARE_BELOW * (depth + height):
        return 0
    candidates = {max(1, round(255 * depth / (depth + height * share))) for share in _HEIGHTS}
    errors = {
        below: float(_best_clip(values, sample, input_codes(bits, signed=True, below=below))[1])
        for below in (0, *sorted(candidates))
        if below < 128
    }
    return min(errors, key=errors.__getitem__)


def _best_clip(values: Tensor, sample: Tensor, codes: CodeRange) -> tuple[Tensor, Tensor]:
    """The clipping point that suits the sample, and its squared error."""
    low, top = codes
    if low == 0:
        sample = sample.clamp_min(0)
    peak = values.abs().amax() if low == -top else values.amax()
    peak = peak.float().clamp_min(SMALLEST_ALPHA)
    candidates = peak * torch.linspace(1 / _CLIP_CANDIDATES, 1, _CLIP_CANDIDATES, device=values.device)
    unit = (sample / candidates[:, None]).clamp_(low / top, 1)  # (candidates, sample)
    errors = (unit.mul_(top).round_().mul_(candidates[:, None] / top) - sample).square_().sum(1)
    least = errors.argmin()
    return candidates[least].to(values.dtype), errors[least]


def _sample_of(values: Tensor) -> Tensor:
    return _sample(values.flatten()).float()


def _sample(flat: Tensor) -> Tensor:
    """Up to ``_SAMPLE`` elements, at random but always the same.

    Every n-th element would not do: where n divides the size of an image, these are all from one column of it.
    """
    if flat.numel() <= _SAMPLE:
        return flat
    generator = torch.Generator().manual_seed(0)
    return flat[torch.randint(flat.numel(), (_SAMPLE,), generator=generator).to(flat.device)]
