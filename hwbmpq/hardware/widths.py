"""Which widths the layers of a network may take on a device, and what runs when a width is asked for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hwbmpq.errors import UnsupportedPrecisionError
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import NumberFormat, WidthPair, parse_format
from hwbmpq.values import FLOAT_BITS, Layer, Precision

_FLOAT = parse_format("fp32")
_STORED = "none"
PAPER_WIDTHS = {2, 4}
"""BMPQ's candidates, taken where a device has them."""
WIDEST_INTEGER_ACTIVATION = 8
END_BITS = 16
APART = "apart"
"""Every activation width that runs with a weight width is a candidate, not one by a rule."""
FIXED, FREE = "fixed", "free"
"""Whether the first and the last layer have a width of their own, or choose as the others do."""
APART_WIDTHS = {2, 4, 8}
"""Activation widths that are candidates then by default, where a device has them."""


def op_of(layer: Layer) -> str:
    """What profiles call this layer: its kind, with ``dw`` before it if it is depthwise."""
    return f"dw{layer.kind}" if layer.is_depthwise else layer.kind


def op_on(profile: HardwareProfile, layer: Layer) -> str:
    """The operation whose widths a layer has; weights that no kernel of their own reads are stored as matrices are."""
    op = op_of(layer)
    return "linear" if layer.weight_only and not profile.pairs_for(op) else op


@dataclass(frozen=True, slots=True)
class Execution:
    """The pair that runs when a precision is asked for."""

    pair: WidthPair
    is_promoted: bool
    is_stored_only: bool = False
    """Whether the device has no kernel for it: float beside its weight on a device of integers."""


class WidthFinder:
    """Finds what runs on one device, and remembers it: networks ask for the same again and again."""

    def __init__(self, profile: HardwareProfile) -> None:
        self._profile = profile
        self._found: dict[tuple[str, Precision], Execution] = {}

    def execution(self, op: str, precision: Precision) -> Execution:
        """What runs; ``UnsupportedPrecisionError`` if nothing does. Only ``promote`` widens a width."""
        key = (op, precision)
        if key not in self._found:
            runs = sorted(self._profile.pairs_for(op), key=lambda pair: bool(pair.ops))
            pairs = {pair.precision: pair for pair in runs}  # one that names the operation wins
            promote = self._profile.precisions.promote
            promoted = Precision(
                weight_bits=promote.get(precision.weight_bits, precision.weight_bits),
                activation_bits=promote.get(precision.activation_bits, precision.activation_bits),
            )
            pair = pairs.get(precision, pairs.get(promoted))
            if pair is None and precision.activation_bits == FLOAT_BITS:
                pair = self._in_float(op, promoted.weight_bits)
            if pair is None:
                raise UnsupportedPrecisionError(
                    f"profile {self._profile.target!r} does not run {op} at {precision}; "
                    f"it runs {', '.join(map(str, sorted(pairs))) or 'no width'}"
                )
            is_stored_only = pair.kernel == _STORED and pair not in runs
            promoted_to = pair.precision != precision
            self._found[key] = Execution(pair, is_promoted=promoted_to, is_stored_only=is_stored_only)
        return self._found[key]

    def execution_of(self, layer: Layer, precision: Precision) -> Execution:
        """What runs of a layer. The weight of a weight-only one may be stored at a width that no kernel multiplies with
        floats: it is widened and computed with in float."""
        if not layer.weight_only:
            return self.execution(op_of(layer), precision)
        width = precision.weight_bits
        for pair in self._profile.pairs_for(op_of(layer)):
            if pair.activation.is_float and pair.weight.bits == width:
                return Execution(pair, is_promoted=False)
        stored = _FLOAT if width == FLOAT_BITS else parse_format(f"int{width}")
        pair = self._beside_float(op_of(layer), stored)
        return Execution(pair, is_promoted=False, is_stored_only=pair.kernel == _STORED)

    def _in_float(self, op: str, weight_bits: int) -> WidthPair | None:
        """For what reads float, if the device stores weights of that width."""
        formats = {pair.weight.bits: pair.weight for pair in self._profile.pairs} | {FLOAT_BITS: _FLOAT}
        weight = formats.get(weight_bits)
        return None if weight is None else self._beside_float(op, weight)

    def _beside_float(self, op: str, weight: NumberFormat) -> WidthPair:
        """Weights are unpacked for the device's widest float kernel, or only stored if it has none."""
        pairs = self._profile.pairs_for(op)
        floats = [pair for pair in pairs if pair.weight.is_float and pair.activation.is_float]
        if not floats:
            return WidthPair(weight=weight, activation=_FLOAT, compute=_FLOAT.name, kernel=_STORED)
        widest = max(floats, key=lambda pair: pair.activation.bits)
        return replace(widest, weight=widest.weight if weight == _FLOAT else weight, ops=())


def weight_widths(profile: HardwareProfile, op: str = "*") -> tuple[int, ...]:
    """Integer weight widths that a device has for an operation, ascending."""
    return tuple(sorted({pair.weight.bits for pair in profile.pairs_for(op) if not pair.weight.is_float}))


def common_widths(layers: Iterable[Layer], profile: HardwareProfile) -> tuple[int, ...] | None:
    """The integer weight widths that all of a network's operations have; None if there is none."""
    ops = {op_on(profile, layer) for layer in layers if not layer.is_end} or {"*"}
    shared = set.intersection(*(set(weight_widths(profile, op)) for op in ops))
    return tuple(sorted(shared)) or None


def candidates(
    profile: HardwareProfile,
    bits: Sequence[int] | None = None,
    *,
    activation_bits: str | int = "same",
    activation_widths: Sequence[int] | None = None,
    op: str = "*",
) -> tuple[Precision, ...]:
    """One ``Precision`` per candidate weight width, ascending; with ``apart``, one per pair of widths.

    ``bits``: the weight widths, each of which must be supported; by default the device's among {2, 4}, or all it
    has if that leaves nothing to choose. ``activation_bits`` says which activation width goes with them: ``same``
    (or the next wider one that runs with it), ``widest`` (one for all, at most 8 bits where integer, else float),
    ``float``, or a number. Of several pairs, those with an existing kernel are preferred. ``apart``: all pairs that the
    device runs, their activations among ``activation_widths``, by default 2, 4 and 8 bits, or all up to 8 if it has none
    of these.
    """
    if bits is None:
        bits = weight_widths(profile, op)
        papers = set(bits) & PAPER_WIDTHS
        bits = bits if len(papers) < 2 else tuple(papers)
    runs = {width: _pairs_of(profile, width, op) for width in sorted(set(bits))}
    for width, pairs in runs.items():
        if not pairs:
            raise _unsupported(profile, op, f"{width}-bit weights")
    finder = WidthFinder(profile)
    activations = [{pair.activation.bits for pair in pairs} for pairs in runs.values()]
    common = set.intersection(*activations) if activations else set()
    if activation_bits == APART:
        return _pairs_apart(profile, runs, activation_widths, op)
    found = []
    for width, pairs in runs.items():
        chosen = _activation(pairs, width, activation_bits, common)
        if chosen is None:
            raise _unsupported(profile, op, f"{width}-bit weights and {activation_bits} activations")
        precision = Precision(weight_bits=width, activation_bits=chosen)
        finder.execution(op, precision)  # raises if the device does not run it
        found.append(precision)
    return tuple(found)


def _pairs_apart(
    profile: HardwareProfile, runs: Mapping[int, list[WidthPair]], wanted: Sequence[int] | None, op: str
) -> tuple[Precision, ...]:
    """Every weight width with every activation width that runs with it; float where no integer does."""
    has = {pair.activation.bits for pairs in runs.values() for pair in pairs if not pair.activation.is_float}
    missing = [str(bits) for bits in wanted or () if bits not in has]
    if missing and has:
        raise _unsupported(profile, op, f"{', '.join(missing)}-bit activations")
    usual = has & APART_WIDTHS or {bits for bits in has if bits <= WIDEST_INTEGER_ACTIVATION} or has
    allowed = usual if wanted is None else set(wanted)
    found = []
    for width, pairs in runs.items():
        integers = {pair.activation.bits for pair in pairs if not pair.activation.is_float}
        floats = [pair.activation.bits for pair in pairs if pair.activation.is_float]
        widths = sorted(integers & allowed) or ([] if integers else sorted(floats)[:1])
        if not widths:
            raise _unsupported(
                profile, op, f"{width}-bit weights and {', '.join(map(str, sorted(allowed)))}-bit activations"
            )
        found += [Precision(weight_bits=width, activation_bits=bits) for bits in widths]
    return tuple(found)


def _unsupported(profile: HardwareProfile, op: str, what: str) -> UnsupportedPrecisionError:
    pairs = [f"{pair} ({', '.join(pair.ops)} only)" if pair.ops else str(pair) for pair in profile.pairs]
    return UnsupportedPrecisionError(
        f"profile {profile.target!r} does not run {op} with {what}; its pairs: {', '.join(pairs)}"
    )


_KERNELS = ("vendor", "user", "none")


def _pairs_of(profile: HardwareProfile, width: int, op: str) -> list[WidthPair]:
    """The pairs that run a weight width, itself or promoted, of the best kind of kernel that there is."""
    pairs = profile.pairs_for(op)
    runs = [pair for pair in pairs if pair.weight.bits == width]
    if not runs:
        runs = [pair for pair in pairs if pair.weight.bits == profile.precisions.promote.get(width)]
    best = min((_KERNELS.index(pair.kernel) for pair in runs), default=0)
    return [pair for pair in runs if _KERNELS.index(pair.kernel) == best]


def _activation(runs: Sequence[WidthPair], width: int, policy: str | int, common: set[int]) -> int | None:
    """The activation width that goes with a weight width, of those that run with it."""
    if isinstance(policy, int):
        return policy
    integers = sorted(pair.activation.bits for pair in runs if not pair.activation.is_float)
    floats = sorted(pair.activation.bits for pair in runs if pair.activation.is_float)
    if policy == "same":
        wide_enough = [bits for bits in integers if bits >= width]
        return next(iter([*wide_enough, *floats, *integers[-1:]]), None)
    if policy == "widest":
        integers = [bits for bits in integers if bits in common] or integers
        narrow = [bits for bits in integers if bits <= WIDEST_INTEGER_ACTIVATION]
        return next(iter([*narrow[-1:], *floats, *integers]), None)
    if policy == "float":
        return next(iter(floats), None)
    raise ValueError(f"activation_bits={policy!r}: use 'same', 'widest', 'apart', 'float' or a number")


def first_last_precision(profile: HardwareProfile, op: str = "*") -> Precision:
    """The widths of the first and the last layer.

    What the profile's ``first_last`` says; else 16 bits if the device has them (int16 or fp16); else its
    widest pair.
    """
    ends = profile.constraints.first_last
    if ends is not None:
        return Precision(weight_bits=ends.w.bits, activation_bits=ends.a.bits)
    pairs = [pair.precision for pair in profile.pairs_for(op)]
    if not pairs:
        raise _unsupported(profile, op, "any width")
    sixteen = Precision(weight_bits=END_BITS, activation_bits=END_BITS)
    return sixteen if sixteen in pairs else max(pairs)


def layer_candidates(
    layers: Iterable[Layer],
    profile: HardwareProfile,
    bits: Sequence[int] | None = None,
    *,
    activation_bits: str | int = "same",
    activation_widths: Sequence[int] | None = None,
    ends: str = "fixed",
) -> dict[str, tuple[Precision, ...]]:
    """The precisions that each layer may take, by name: ``candidates`` of its operation, or its one precision if it is an
    end of the network. With ``ends="free"`` the ends have that beside the candidates, unless the profile gives it.
    Weight-only layers take the weight widths of these, and read floats."""
    are_free = ends == FREE and profile.constraints.first_last is None
    by_op: dict[tuple[str, bool, bool], tuple[Precision, ...]] = {}
    found = {}
    for layer in layers:
        key = (op_on(profile, layer), layer.weight_only, layer.is_end)
        if key not in by_op:
            try:
                by_op[key] = _options(profile, key, bits, activation_bits, activation_widths, are_free)
            except UnsupportedPrecisionError as error:
                raise UnsupportedPrecisionError(
                    f"layer {layer.name!r} ({key[0]}): {error}", hint=error.hint
                ) from None
        found[layer.name] = by_op[key]
    return found


def _options(
    profile: HardwareProfile,
    key: tuple[str, bool, bool],
    bits: Sequence[int] | None,
    policy: str | int,
    activation_widths: Sequence[int] | None,
    ends_are_free: bool,
) -> tuple[Precision, ...]:
    op, weight_only, is_end = key
    found: tuple[Precision, ...] = (first_last_precision(profile, op),) if is_end else ()
    if not is_end or ends_are_free:
        policy = "same" if weight_only else policy
        own = candidates(profile, bits, activation_bits=policy, activation_widths=activation_widths, op=op)
        if policy != APART:  # then each weight width has one activation width
            own = tuple(one for one in own if one.weight_bits not in {end.weight_bits for end in found})
        found = tuple(sorted({*found, *own}))
    if not weight_only:
        return found
    widths = sorted({precision.weight_bits for precision in found})
    return tuple(Precision(weight_bits=width, activation_bits=FLOAT_BITS) for width in widths)


def trained_precisions(
    layers: Iterable[Layer], profile: HardwareProfile, bits: Mapping[str, Precision]
) -> dict[str, Precision]:
    """What to quantize at while training so that the device, running ``bits``, computes the same.

    Narrow weights beside float activations (weight-only kernels) leave the activations in float, and so do layers of
    which only the weight is quantized.
    """
    finder = WidthFinder(profile)
    return {
        layer.name: bits[layer.name]
        if layer.weight_only
        or bits[layer.name].weight_bits == FLOAT_BITS  # left in float, whatever the device has
        else finder.execution(op_of(layer), bits[layer.name]).pair.trained(bits[layer.name])
        for layer in layers
    }


def are_apart(options: Sequence[Precision]) -> bool:
    """Whether a layer may take one weight width with several activation widths."""
    return len({precision.weight_bits for precision in options}) < len(options)


def uniform_pair(choices: Mapping[str, Sequence[Precision]], pair: Precision) -> dict[str, Precision]:
    """Every layer at one pair of widths; where a layer does not have it, at its next wider or else its widest."""
    found = {}
    for name, options in choices.items():
        weights = sorted({p.weight_bits for p in options})
        width = next((bits for bits in weights if bits >= pair.weight_bits), weights[-1])
        same = sorted(p for p in options if p.weight_bits == width)
        found[name] = next((p for p in same if p.activation_bits >= pair.activation_bits), same[-1])
    return found


def uniform(choices: Mapping[str, Sequence[Precision]], weight_bits: int) -> dict[str, Precision]:
    """Every layer at one weight width; where a layer does not have it, at its next wider or else its widest."""
    found = {}
    for name, precisions in choices.items():
        wide_enough = [precision for precision in precisions if precision.weight_bits >= weight_bits]
        found[name] = min(wide_enough) if wide_enough else max(precisions)
    return found
