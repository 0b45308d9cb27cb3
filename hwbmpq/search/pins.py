"""Layers whose width is given, not chosen: pinned to one, or kept in float."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from hwbmpq.errors import HwbmpqError, UnknownNameError, UnsupportedPrecisionError
from hwbmpq.graph import LayerGraph
from hwbmpq.hardware import HardwareProfile, candidates
from hwbmpq.hardware.widths import APART, WidthFinder, op_on
from hwbmpq.values import FLOAT_BITS, Layer, Precision, is_width

Pins = Mapping[str, int | str]
"""By pattern of layer names: a weight width (8), or a pair (``W4A8``)."""
_FLOAT = Precision(weight_bits=FLOAT_BITS, activation_bits=FLOAT_BITS)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    """What a layer was given, and by whom."""

    width: int | Precision
    by: str
    tied_to: str = ""
    """The layer that this one follows, if no pattern matched it."""

    @property
    def why(self) -> str:
        return f" (tied to {self.tied_to})" if self.tied_to else ""


@dataclass(frozen=True, kw_only=True)
class FixedLayers:
    """What patterns give to the layers of one network."""

    given: Mapping[str, _Given]

    def __bool__(self) -> bool:
        return bool(self.given)

    def choices(
        self, graph: LayerGraph, profile: HardwareProfile, activation_bits: str | int
    ) -> dict[str, tuple[Precision, ...]]:
        """The one candidate of each of these layers."""
        return {
            layer.name: (_precision(self.given[layer.name], layer, profile, activation_bits),)
            for layer in graph
            if layer.name in self.given
        }

    def remarks(self, choices: Mapping[str, Sequence[Precision]]) -> list[str]:
        """What is pinned and what stays in float, for people."""
        in_float = [f"{name}{given.why}" for name, given in self.given.items() if choices[name][0] == _FLOAT]
        pinned = [
            f"{name} {choices[name][0]}{given.why}"
            for name, given in self.given.items()
            if choices[name][0] != _FLOAT
        ]
        return [
            *([f"pinned: {', '.join(pinned)}"] if pinned else []),
            *([f"kept in float: {', '.join(in_float)}"] if in_float else []),
        ]


def fixed_layers(
    graph: LayerGraph, profile: HardwareProfile, pin: Pins, keep_float: Iterable[str]
) -> FixedLayers:
    """The layers that somebody's patterns, and then the profile's own, match; tied layers follow each other.

    A pattern of somebody's that matches nothing is an error; a profile's need not be about this network.
    """
    names = [layer.name for layer in graph]
    own = _matched(names, pin, keep_float, "")
    theirs = _matched(
        names, profile.constraints.pin, profile.constraints.keep_float, f"profile {profile.target}: "
    )
    return FixedLayers(given={**_spread(theirs, graph), **_spread(own, graph)})


def _matched(names: Sequence[str], pin: Pins, keep_float: Iterable[str], whose: str) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    wanted = [
        (pattern, parse_pin(pattern, width), f"pin {pattern}={width}") for pattern, width in pin.items()
    ]
    wanted += [(pattern, _FLOAT, f"keep_float {pattern}") for pattern in keep_float]
    for pattern, width, text in wanted:
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches and not whose:
            raise UnknownNameError(
                "layer", pattern, names, hint="patterns are as in a shell: 'layer3.*', '*.conv2', 'head'"
            )
        for name in matches:
            _add(found, name, _Given(width=width, by=whose + text))
    return found


def _add(found: dict[str, _Given], name: str, given: _Given) -> None:
    before = found.setdefault(name, given)
    if before.width != given.width:
        raise HwbmpqError(
            f"layer {name!r} gets two widths, by '{before.by}' and by '{given.by}'",
            hint="leave one of them out",
        )


def _spread(given: Mapping[str, _Given], graph: LayerGraph) -> dict[str, _Given]:
    """A layer that is tied to one of these has its width too."""
    found, count = dict(given), -1
    while count != len(found):  # ties may overlap
        count = len(found)
        for tied in _tied(graph):
            for giver in [name for name in tied if name in found]:
                for name in tied:
                    _add(found, name, replace(found[giver], tied_to=giver))
    return found


def _tied(graph: LayerGraph) -> list[tuple[str, ...]]:
    """Layers that share a width, or a weight and thus its width."""
    shared = [(layer.name, layer.shares_weight_with) for layer in graph if layer.shares_weight_with]
    return [*(tie.layers for tie in graph.ties), *shared]


def parse_pin(pattern: str, width: int | str) -> int | Precision:
    """What a layer is pinned to: a weight width, or a pair."""
    text = str(width).strip()
    digits = text.upper().removeprefix("W")
    try:
        if digits.isdecimal() and is_width(int(digits)):
            return int(digits)
        return Precision.parse(text.upper())
    except ValueError:
        raise HwbmpqError(
            f"pin {pattern}={width}: {text!r} is neither a weight width nor a pair",
            hint=f"write {pattern}=8 or {pattern}=W4A8; keep_float (--keep-float) leaves layers in float",
        ) from None


def _precision(
    given: _Given, layer: Layer, profile: HardwareProfile, activation_bits: str | int
) -> Precision:
    width, op = given.width, op_on(profile, layer)
    if width == _FLOAT:
        return _FLOAT
    try:
        if layer.weight_only:  # what it reads stays in float
            bits = width.weight_bits if isinstance(width, Precision) else width
            return replace(candidates(profile, [bits], op=op)[0], activation_bits=FLOAT_BITS)
        if isinstance(width, int):
            policy = "widest" if activation_bits == APART else activation_bits  # pinned: nothing to choose
            return candidates(profile, [width], activation_bits=policy, op=op)[0]
        WidthFinder(profile).execution(op, width)
    except UnsupportedPrecisionError as error:
        raise UnsupportedPrecisionError(
            f"{given.by}: layer {layer.name!r}: {error}", hint=error.hint
        ) from None
    return width
