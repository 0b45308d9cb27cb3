"""Which widths a layer may take on a device, and what really runs then."""

from collections.abc import Sequence
from dataclasses import dataclass

from hwbmpq.errors import UnsupportedPrecisionError
from hwbmpq.hardware.formats import WidthPair
from hwbmpq.hardware.schema import HardwareProfile
from hwbmpq.values import Layer, Precision

PAPER_WIDTHS = (2, 4)
"""BMPQ's candidates, taken where a device has them."""
WIDEST_INTEGER_ACTIVATION = 8
END_BITS = 16


def op_of(layer: Layer) -> str:
    """What profiles call this layer: its kind, with ``dw`` before it if it is depthwise."""
    return f"dw{layer.kind}" if layer.is_depthwise else layer.kind


@dataclass(frozen=True, slots=True)
class Execution:
    """The pair that runs when a precision is asked for."""

    pair: WidthPair
    is_promoted: bool


class WidthFinder:
    """Looks up the pairs of one profile."""

    def __init__(self, profile: HardwareProfile) -> None:
        self._profile = profile
        self._found: dict[tuple[str, Precision], Execution] = {}
        self._pairs: dict[Precision, list[WidthPair]] = {}
        for pair in profile.pairs:
            self._pairs.setdefault(pair.precision, []).append(pair)

    def execution(self, op: str, precision: Precision) -> Execution:
        """What runs; ``UnsupportedPrecisionError`` if nothing does. Only ``promote`` widens a width."""
        key = (op, precision)
        if key not in self._found:
            self._found[key] = self._find(op, precision)
        return self._found[key]

    def is_supported(self, op: str, precision: Precision) -> bool:
        return self._pair(op, precision) is not None or self._pair(op, self._promoted(precision)) is not None

    def _find(self, op: str, precision: Precision) -> Execution:
        pair = self._pair(op, precision)
        if pair is not None:
            return Execution(pair, is_promoted=False)
        pair = self._pair(op, self._promoted(precision))
        if pair is not None:
            return Execution(pair, is_promoted=True)
        known = sorted({other.precision for other in self._profile.pairs if not other.ops or op in other.ops})
        raise UnsupportedPrecisionError(
            f"profile {self._profile.target!r} does not run {op} at {precision}; "
            f"it runs {', '.join(map(str, known)) or 'no width'}"
        )

    def _pair(self, op: str, precision: Precision) -> WidthPair | None:
        pairs = self._pairs.get(precision, ())
        named = next((pair for pair in pairs if op in pair.ops), None)
        return named or next((pair for pair in pairs if not pair.ops), None)

    def _promoted(self, precision: Precision) -> Precision:
        promote = self._profile.precisions.promote
        return Precision(
            weight_bits=promote.get(precision.weight_bits, precision.weight_bits),
            activation_bits=promote.get(precision.activation_bits, precision.activation_bits),
        )


def weight_widths(profile: HardwareProfile, op: str = "*") -> tuple[int, ...]:
    """Integer weight widths that a device has for an operation, ascending."""
    runs = (pair for pair in profile.pairs if not pair.ops or op in pair.ops)
    return tuple(sorted({pair.weight.bits for pair in runs if not pair.weight.is_float}))


def candidates(
    profile: HardwareProfile,
    bits: Sequence[int] | None = None,
    *,
    activation_bits: str | int = "same",
    op: str = "*",
) -> tuple[Precision, ...]:
    """One ``Precision`` per candidate weight width, ascending.

    ``bits``: the weight widths, each of which must be supported; by default the device's among {2, 4}, else
    all it has. ``activation_bits`` says which activation width goes with them: ``same`` (or the next wider
    one that runs with it), ``widest`` (one for all, at most 8 bits where integer, else float), ``float``, or a
    number.
    """
    widths = tuple(sorted(set(bits))) if bits is not None else _default_widths(profile, op)
    finder = WidthFinder(profile)
    return tuple(_with_activation(profile, finder, width, activation_bits, op) for width in widths)


def _default_widths(profile: HardwareProfile, op: str) -> tuple[int, ...]:
    widths = weight_widths(profile, op)
    return tuple(width for width in widths if width in PAPER_WIDTHS) or widths


def _with_activation(
    profile: HardwareProfile, finder: WidthFinder, width: int, activation_bits: str | int, op: str
) -> Precision:
    runs = [
        pair
        for pair in profile.pairs
        if pair.weight.bits == profile.precisions.promote.get(width, width)
        and (not pair.ops or op in pair.ops)
    ]
    integers = sorted(pair.activation.bits for pair in runs if not pair.activation.is_float)
    floats = sorted(pair.activation.bits for pair in runs if pair.activation.is_float)
    chosen: int | None
    if isinstance(activation_bits, int):
        chosen = activation_bits
    elif activation_bits == "same":
        chosen = next((bits for bits in [*integers, *floats] if bits >= width), None)
        if finder.is_supported(op, Precision(weight_bits=width, activation_bits=width)):
            chosen = width
    elif activation_bits == "widest":
        narrow = [bits for bits in integers if bits <= WIDEST_INTEGER_ACTIVATION]
        chosen = max(narrow) if narrow else next(iter([*floats, *integers]), None)
    elif activation_bits == "float":
        chosen = next(iter(floats), None)
    else:
        raise ValueError(f"activation_bits={activation_bits!r}: use 'same', 'widest', 'float' or a number")
    if chosen is None:
        raise UnsupportedPrecisionError(
            f"profile {profile.target!r} does not run {width}-bit weights with {activation_bits} activations; "
            f"its pairs: {', '.join(map(str, profile.pairs))}"
        )
    precision = Precision(weight_bits=width, activation_bits=chosen)
    finder.execution(op, precision)  # raises if the device does not run it
    return precision


def end_precision(profile: HardwareProfile) -> Precision:
    """The widths of the first and the last layer.

    What the profile's ``first_last`` says; else 16 bits if the device has them (int16 or fp16); else its
    widest pair.
    """
    ends = profile.constraints.first_last
    if ends is not None:
        return Precision(weight_bits=ends.w.bits, activation_bits=ends.a.bits)
    sixteen = Precision(weight_bits=END_BITS, activation_bits=END_BITS)
    pairs = [pair.precision for pair in profile.pairs]
    integer_or_half = [pair for pair in pairs if pair.weight_bits <= END_BITS] or pairs
    return sixteen if sixteen in pairs else max(integer_or_half)
