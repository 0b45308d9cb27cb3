"""Rounding a weight for good: scales chosen by error, and rounding that makes up for its own errors.

Codes times scale are reproduced exactly by the ordinary quantizer when it quantizes them again: from 3 bits on,
because in each channel some weight has the largest code, from which that quantizer takes its scale; at
2 bits because all that is not zero has one magnitude.
"""

import torch
from torch import Tensor

from hwbmpq.quant.functional import TERNARY_BITS
from hwbmpq.quant.ranges import largest_code

_CANDIDATES = 64
_SMALLEST_CLIP = 0.2
"""Share of the largest magnitude below which no clipping point is tried."""
_DAMPING = 0.01
"""Share of the mean diagonal that is added to it (Frantar et al. 2022 use the same)."""
_BLOCK = 64
"""Columns after which the rest is brought up to date: one large product instead of many thin ones."""


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


def gptq_round(weight: Tensor, scale: Tensor, bits: int, moments: Tensor) -> Tensor:
    """Codes column by column, the columns to come making up for the error so far (GPTQ, Frantar et al. 2022).

    ``weight`` is (groups, rows, n), ``moments`` the inputs' second moments (groups, n, n), ``scale`` broadcasts to the
    weight. The columns with the largest inputs come first, while there is most to make up with.
    """
    order = moments.diagonal(dim1=1, dim2=2).argsort(dim=1, descending=True)  # (groups, n)
    columns = order[:, None, :].expand_as(weight)
    left, tops = weight.gather(2, columns), _top_codes(weight, scale, bits).gather(2, columns)
    moments = moments.gather(1, order[:, :, None].expand_as(moments))
    factor = _inverse_factor(moments.gather(2, order[:, None, :].expand_as(moments))).to(weight.dtype)
    codes = tops  # where they are not zero they stay; the others are filled in
    for start in range(0, left.shape[2], _BLOCK):
        block, rest = slice(start, start + _BLOCK), slice(start + _BLOCK, None)
        errors = _round_block(left[:, :, block], codes[:, :, block], scale, bits, factor[:, block, block])
        left[:, :, rest] -= errors @ factor[:, block, rest]
    return torch.empty_like(codes).scatter_(2, columns, codes)


def damped(moments: Tensor) -> Tensor:
    """Second moments in double precision that can be inverted, whatever the inputs were."""
    moments = moments.double()
    diagonal = moments.diagonal(dim1=1, dim2=2)
    mean = diagonal.mean(dim=1, keepdim=True)
    extra = torch.where(mean > 0, _DAMPING * mean, 1.0)  # inputs that are all zero: any code is as good
    return moments + torch.diag_embed(extra.expand_as(diagonal))


def _round_block(left: Tensor, codes: Tensor, scale: Tensor, bits: int, factor: Tensor) -> Tensor:
    """Fill in the codes of some columns; returns their errors in units of the factor's diagonal."""
    errors = torch.empty_like(left)
    for column in range(left.shape[2]):
        here = slice(column, column + 1)
        given, values = codes[:, :, here], left[:, :, here]
        chosen = torch.where(given != 0, given, nearest_codes(values, scale, bits))
        codes[:, :, here] = chosen
        errors[:, :, here] = (values - chosen * scale) / factor[:, here, here]
        left[:, :, column + 1 :] -= errors[:, :, here] * factor[:, here, column + 1 :]
    return errors


def _top_codes(weight: Tensor, scale: Tensor, bits: int) -> Tensor:
    """The largest code for the largest weight of each scale, and zeros: making up must not change the range."""
    codes = torch.zeros_like(weight)
    if bits == TERNARY_BITS:
        return codes
    rows = (1, -1) if scale.numel() == 1 else (-1, weight.shape[2])
    where = weight.abs().reshape(rows).argmax(dim=1, keepdim=True)
    tops = weight.reshape(rows).gather(1, where).sign() * largest_code(bits, signed=True)
    codes.view(rows).scatter_(1, where, tops)
    return codes


def _inverse_factor(moments: Tensor) -> Tensor:
    """Upper triangular U with UᵀU the inverse of the (damped) moments."""
    lower = torch.linalg.cholesky(damped(moments))
    upper: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    return upper
