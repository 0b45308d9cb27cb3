"""Slow, obvious references (the paper's formulas written out, one number at a time, in float64), and layers to
try a cost model on.

For tests, ours and those of plug-ins; nothing in hwbmpq imports this module.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from hwbmpq.values import Layer

Numbers = Mapping[str, Mapping[Any, float]]
"""By layer and choice."""


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


def conv_layer(
    in_channels: int,
    out_channels: int,
    *,
    size: int,
    kernel_size: int = 3,
    stride: int = 1,
    groups: int = 1,
    name: str = "conv",
    **fields: Any,
) -> Layer:
    """A 2-D convolution that keeps the image size (divided by its stride), to try a cost model on."""
    weight_shape = (out_channels, in_channels // groups, kernel_size, kernel_size)
    output_shape = (1, out_channels, size // stride, size // stride)
    return Layer(
        name=name,
        kind="conv2d",
        weight_shape=weight_shape,
        parameters=fields.pop("parameters", prod(weight_shape)),
        bias_parameters=fields.pop("bias_parameters", 0),
        macs=fields.pop("macs", prod(weight_shape[1:]) * prod(output_shape)),
        input_shape=(1, in_channels, size, size),
        output_shape=output_shape,
        in_channels=in_channels,
        out_channels=out_channels,
        kernel_size=(kernel_size, kernel_size),
        stride=(stride, stride),
        groups=groups,
        **fields,
    )


def linear_layer(
    in_channels: int, out_channels: int, *, tokens: int = 1, name: str = "linear", **fields: Any
) -> Layer:
    """A linear layer over ``tokens`` positions, to try a cost model on."""
    return Layer(
        name=name,
        kind="linear",
        weight_shape=(out_channels, in_channels),
        parameters=fields.pop("parameters", in_channels * out_channels),
        bias_parameters=fields.pop("bias_parameters", 0),
        macs=fields.pop("macs", in_channels * out_channels * tokens),
        input_shape=(1, tokens, in_channels),
        output_shape=(1, tokens, out_channels),
        in_channels=in_channels,
        out_channels=out_channels,
        **fields,
    )


def best_by_enumeration(
    values: Numbers,
    costs: Mapping[str, Numbers | Sequence[Numbers]],
    budgets: Mapping[str, float],
    ties: Sequence[Sequence[str]] = (),
) -> tuple[float, dict[str, Any]] | None:
    """The largest objective of an allocation problem and its bits, by trying everything; None if nothing fits.

    Sums are first taken in floating point for all combinations at once; whether a budget holds is then decided in
    exact arithmetic, from the best combination downwards. Values below 1e-9 of the largest count as zero.
    """
    groups = _tie_groups(list(values), ties)
    choices = [sorted(set.intersection(*(set(values[layer]) for layer in group))) for group in groups]
    noise = 1e-9 * max(abs(value) for numbers in values.values() for value in numbers.values())
    clean = {
        n: {c: v if abs(v) >= noise else 0.0 for c, v in numbers.items()} for n, numbers in values.items()
    }
    rows = [
        (table, budgets[name])
        for name, cost in costs.items()
        if name in budgets
        for table in ([cost] if isinstance(cost, Mapping) else cost)
    ]
    objective = _all_sums(clean, groups, choices)
    may_fit = np.ones(objective.shape, dtype=bool)
    for table, budget in rows:
        may_fit &= _all_sums(table, groups, choices) <= budget + 1e-9 * abs(budget)
    for position in np.argsort(-objective, axis=None, kind="stable"):
        if not may_fit.flat[position]:
            continue
        picks = np.unravel_index(int(position), objective.shape)
        bits = {n: choices[g][int(j)] for g, j in enumerate(picks) for n in groups[g]}
        if all(_exact_sum(table, bits) <= Fraction(budget) for table, budget in rows):
            return math.fsum(clean[layer][bits[layer]] for layer in values), bits
    return None


def _tie_groups(layers: Sequence[str], ties: Sequence[Sequence[str]]) -> list[list[str]]:
    groups = [[layer] for layer in layers]
    for tie in ties:
        together = [group for group in groups if set(group) & set(tie)]
        groups = [group for group in groups if group not in together] + [list(chain(*together))]
    return groups


def _all_sums(table: Numbers, groups: list[list[str]], choices: list[list[Any]]) -> Any:
    """An array with one axis per group."""
    total = np.zeros([len(options) for options in choices])
    for axis, (group, options) in enumerate(zip(groups, choices, strict=True)):
        numbers = [sum(table[layer][choice] for layer in group if layer in table) for choice in options]
        shape = [-1 if other == axis else 1 for other in range(len(groups))]
        total = total + np.array(numbers, dtype=float).reshape(shape)
    return total


def _exact_sum(table: Numbers, bits: Mapping[str, Any]) -> Fraction:
    return sum((Fraction(numbers[bits[layer]]) for layer, numbers in table.items()), Fraction(0))
