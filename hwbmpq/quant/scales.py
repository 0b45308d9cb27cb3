"""Scales and clipping points with the least squared error."""

import torch
from torch import Tensor

from hwbmpq.quant.functional import SMALLEST_ALPHA, largest_code

_CANDIDATES = 64
_SMALLEST_CLIP = 0.2
"""Share of the largest magnitude below which no clipping point of weights is tried."""
_SAMPLE = 2**14
"""Elements looked at to place a clipping point of activations."""
_CLIP_CANDIDATES = 40


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


def best_clip(values: Tensor, bits: int, *, signed: bool) -> Tensor:
    """The clipping point with the least squared quantization error on a sample of ``values``."""
    sample = _sample(values.flatten()).float()
    if not signed:
        sample = sample.clamp_min(0)
    peak = values.abs().amax() if signed else values.amax()
    peak = peak.float().clamp_min(SMALLEST_ALPHA)
    candidates = peak * torch.linspace(1 / _CLIP_CANDIDATES, 1, _CLIP_CANDIDATES, device=values.device)
    steps = largest_code(bits, signed=signed)
    unit = (sample / candidates[:, None]).clamp_(-1, 1)  # (candidates, sample)
    errors = (unit.mul_(steps).round_().mul_(candidates[:, None] / steps) - sample).square_().sum(1)
    return candidates[errors.argmin()].to(values.dtype)


def _sample(flat: Tensor) -> Tensor:
    """Up to ``_SAMPLE`` elements, at random but always the same.

    Every n-th element would not do: where n divides the size of an image, these are all from one column of it.
    """
    if flat.numel() <= _SAMPLE:
        return flat
    generator = torch.Generator().manual_seed(0)
    return flat[torch.randint(flat.numel(), (_SAMPLE,), generator=generator).to(flat.device)]
