"""Number formats by name (``int8``, ``uint4``, ``fp16``), and pairs of them that a device runs."""

import re
from dataclasses import dataclass, replace

from hwbmpq.values import FLOAT_BITS, MAX_BITS, MIN_BITS, Precision

_INTEGER = re.compile(r"u?int(\d{1,2})")
_FLOATS = {"fp16": 16, "bf16": 16, "fp32": 32}


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How a number is stored."""

    name: str
    bits: int

    @property
    def is_float(self) -> bool:
        return self.name in _FLOATS

    def __str__(self) -> str:
        return self.name


def parse_format(name: str) -> NumberFormat:
    """The format of that name; ``ValueError`` if hwbmpq has no quantizer for it.

    >>> parse_format("uint4").bits, parse_format("fp16").is_float
    (4, True)
    """
    if name in _FLOATS:
        return NumberFormat(name, _FLOATS[name])
    match = _INTEGER.fullmatch(name)
    if match and MIN_BITS <= int(match[1]) <= MAX_BITS:
        return NumberFormat(name, int(match[1]))
    raise ValueError(
        f"{name!r} is not a number format: use int{MIN_BITS} to int{MAX_BITS}, uint{MIN_BITS} to uint{MAX_BITS}, "
        f"{', '.join(_FLOATS)}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class WidthPair:
    """A weight and an activation format that the device runs together."""

    weight: NumberFormat
    activation: NumberFormat
    compute: str
    """The arithmetic that executes it: the format both are brought to."""
    kernel: str = "vendor"
    """``vendor``: a kernel exists. ``user``: you have to write it. ``none``: storage only."""
    ops: tuple[str, ...] = ()
    """Operations that have it; empty means all."""

    @property
    def precision(self) -> Precision:
        """The widths as they are stored, which is what costs count."""
        return Precision(weight_bits=self.weight.bits, activation_bits=self.activation.bits)

    @property
    def training(self) -> Precision:
        """The widths to quantize to while training: narrow weights beside float activations leave those in float."""
        return self.trained(self.precision)

    def trained(self, precision: Precision) -> Precision:
        """The same for a precision that this pair runs, be it a narrower one that is promoted to it."""
        weight_only = self.activation.is_float and not self.weight.is_float
        return replace(precision, activation_bits=FLOAT_BITS) if weight_only else precision

    def __str__(self) -> str:
        return f"{self.weight}×{self.activation}"


def common_compute(weight: NumberFormat, activation: NumberFormat) -> str:
    """Where a pair does not say how it is computed: in the wider of its formats, in float if one is."""
    floats = [fmt for fmt in (weight, activation) if fmt.is_float]
    return max(floats or [weight, activation], key=lambda fmt: fmt.bits).name.removeprefix("u")
