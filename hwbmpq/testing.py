"""Slow, obvious references: the paper's formulas written out, one number at a time, in float64.

For tests, ours and those of plug-ins; nothing in hwbmpq imports this module.
"""

import math
from collections.abc import Sequence


def reference_weights(weights: Sequence[float], bits: int) -> tuple[list[float], float]:
    """Symmetric weight quantization (paper, eq. 3 and 4), ternary at 2 bits: values and scale."""
    if bits == 2:
        return _reference_ternary(weights)
    scale = max(abs(w) for w in weights) / (2 ** (bits - 1) - 1) or 1.0
    return [round(w / scale) * scale for w in weights], scale


def _reference_ternary(weights: Sequence[float]) -> tuple[list[float], float]:
    """TWN: threshold 0.7 mean|W|, scale = mean of |W| above it (Li et al. 2016)."""
    threshold = 0.7 * math.fsum(abs(w) for w in weights) / len(weights)
    kept = [abs(w) for w in weights if abs(w) > threshold]
    scale = math.fsum(kept) / len(kept) if kept else 1.0
    return [math.copysign(scale, w) if abs(w) > threshold else 0.0 for w in weights], scale


def reference_pact(value: float, alpha: float, bits: int, *, signed: bool) -> float:
    """PACT (paper, eq. 1 and 2); the signed form clips at ±α and has 2^(bits-1) - 1 steps on each side."""
    steps = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    clipped = reference_clip(value, alpha, signed=signed)
    return round(clipped * steps / alpha) * alpha / steps


def reference_clip(value: float, alpha: float, *, signed: bool) -> float:
    """What PACT does before it rounds."""
    return min(max(value, -alpha if signed else 0.0), alpha)


def reference_pact_gradients(value: float, alpha: float, *, signed: bool) -> tuple[float, float]:
    """Straight-through derivatives of PACT by its input and by α."""
    if signed:
        inside = abs(value) < alpha
        return float(inside), 0.0 if inside else math.copysign(1.0, value)
    return float(0 <= value < alpha), float(value >= alpha)
