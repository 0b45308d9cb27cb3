"""Widths from activation densities: the rule that activation-density training follows instead of a budget."""

from collections.abc import Collection, Mapping

from hwbmpq.allocate.problem import AllocationError, Ties, build_problem
from hwbmpq.errors import UnknownNameError
from hwbmpq.values import FLOAT_BITS, MAX_BITS, MIN_BITS, Precision


def density_widths(
    current: Mapping[str, Precision],
    densities: Mapping[str, float],
    *,
    fixed: Collection[str] = (),
    ties: Ties = (),
) -> dict[str, int]:
    """Weight widths after one step of activation-density quantization: round(width × density), at least 2.

    Vasquez et al. 2021; half-way cases round to even. ``fixed`` layers, the ends, keep their width and need no
    density; of the others in a tie group all get the width of the widest. No width grows, and no budget is asked.

    >>> now = Precision(weight_bits=16, activation_bits=16)
    >>> density_widths({"a": now, "b": now, "c": now}, {"a": 0.25, "b": 0.01}, fixed=["c"])
    {'a': 4, 'b': 2, 'c': 16}
    """
    for layer in fixed:
        if layer not in current:
            raise UnknownNameError("layer to keep", layer, current)
    widths = {
        layer: precision.weight_bits if layer in fixed else _width(layer, precision.weight_bits, densities)
        for layer, precision in current.items()
    }
    groups = build_problem({layer: {0: 0} for layer in current}, {}, {}, ties).groups
    for group in groups:
        free = [layer for layer in group.layers if layer not in fixed]
        widths |= dict.fromkeys(free, max((widths[layer] for layer in free), default=MIN_BITS))
    return widths


def _width(layer: str, bits: int, densities: Mapping[str, float]) -> int:
    if layer not in densities:
        raise AllocationError(f"no activation density is given for layer {layer!r}")
    density = densities[layer]
    if not 0 <= density <= 1:
        raise AllocationError(f"layer {layer!r}: an activation density of {density} is no share of 1")
    width = max(MIN_BITS, round(bits * density))
    return width if width == FLOAT_BITS else min(width, MAX_BITS)  # there are no integers in between
