"""Costs of layers that are not in a table, from those that are.

A rough law first: cost = a * MACs + b * weights + c * activations + d with coefficients that are not negative, fitted to all
measured layers of the same widths (depthwise ones apart). Then the nearest layers of the same operation correct it, by the
factor that they miss it by.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from hwbmpq.hardware.lookup_table import KeyValue, TableEntry

NEIGHBOURS = 6
FAR = math.log(4.0)
"""A layer that differs from its nearest neighbour by more than a factor of 4 (or two factors of 2.7, …) is a guess."""
_NEAREST = 0.05
"""Distances below this are alike: measurements have noise."""
_POWER = 3
_SWEEPS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What of a layer's geometry decides what it costs."""

    op: str
    depth: int
    """Input channels of one group."""
    columns: int
    """Output channels of one group."""
    groups: int
    positions: int
    window: int
    """Positions of the kernel."""
    jump: int
    """Input positions for each output position."""
    macs: int

    @property
    def work(self) -> tuple[float, ...]:
        """MACs, weights, activations, one."""
        activations = (self.depth * self.jump + self.columns) * self.groups * self.positions
        return float(self.macs), self.macs / self.positions, float(activations), 1.0

    @property
    def place(self) -> tuple[float, ...]:
        """Where it lies among other layers; larger kernels and strides are told apart more."""
        sizes = (self.depth, self.columns, self.groups, self.positions)
        return (*map(math.log, sizes), 1.5 * math.log(self.window), 0.7 * (self.jump > 1))


def shape_of(geometry: Mapping[str, KeyValue | None], macs: int) -> Shape | None:
    """The shape of a layer or an entry; None if it does not say enough."""
    sizes = [geometry.get(name) for name in ("in_channels", "out_channels", "positions")]
    groups = geometry.get("groups") or 1
    window, stride = (geometry.get(name) or (1,) for name in ("kernel_size", "stride"))
    if not isinstance(groups, int) or not isinstance(window, tuple) or not isinstance(stride, tuple):
        return None
    inputs, outputs, positions = (size if isinstance(size, int) else 0 for size in sizes)
    if min(inputs, outputs, positions, groups, prod(window), prod(stride), macs) < 1:
        return None
    return Shape(
        op=str(geometry["op"]),
        depth=max(1, inputs // groups),
        columns=max(1, outputs // groups),
        groups=groups,
        positions=positions,
        window=prod(window),
        jump=prod(stride),
        macs=macs,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A cost that was not measured."""

    value: float
    nearest: TableEntry
    is_far: bool


class Interpolator:
    """Estimates from entries of one pair of widths."""

    def __init__(self, entries: Sequence[TableEntry]) -> None:
        shapes = [(entry, shape_of(entry.model_dump(), entry.macs)) for entry in entries]
        self._known = [(entry, shape) for entry, shape in shapes if shape is not None]
        self._laws: dict[tuple[bool, int], tuple[float, ...]] = {}

    def estimate(self, shape: Shape, *, without: TableEntry | None = None) -> Estimate | None:
        """The cost of a layer; None if no entry has its operation. ``without`` leaves an entry out, to try how good this is."""
        known = [(entry, other) for entry, other in self._known if entry is not without]
        near = sorted(
            (
                (math.dist(shape.place, other.place), index)
                for index, (_, other) in enumerate(known)
                if other.op == shape.op
            )
        )[:NEIGHBOURS]
        if not near:
            return None
        law = self._law(shape.op.startswith("dw"), without)
        weights = [max(distance, _NEAREST) ** -_POWER for distance, _ in near]
        misses = [math.log(known[index][0].value / _cost(law, known[index][1])) for _, index in near]
        factor = sum(weight * miss for weight, miss in zip(weights, misses, strict=True)) / sum(weights)
        distance, index = near[0]
        return Estimate(
            value=math.exp(factor) * _cost(law, shape), nearest=known[index][0], is_far=distance > FAR
        )

    def _law(self, is_depthwise: bool, without: TableEntry | None) -> tuple[float, ...]:
        key = (is_depthwise, id(without))
        if key not in self._laws:
            self._laws[key] = fit_nonnegative(
                [
                    (shape.work, entry.value)
                    for entry, shape in self._known
                    if entry is not without and shape.op.startswith("dw") == is_depthwise
                ]
            )
        return self._laws[key]


def _cost(law: Sequence[float], shape: Shape) -> float:
    return sum(coefficient * amount for coefficient, amount in zip(law, shape.work, strict=True))


def fit_nonnegative(points: Sequence[tuple[tuple[float, ...], float]]) -> tuple[float, ...]:
    """Coefficients, none negative, with the least squared relative error; one that no point speaks of is zero."""
    rows = [[amount / value for amount in work] for work, value in points]
    size = len(rows[0])
    scales = [max(row[j] for row in rows) for j in range(size)]
    rows = [[row[j] / scales[j] for j in range(size)] for row in rows]
    gram = [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]
    wanted = [sum(row[j] for row in rows) for j in range(size)]
    found = [0.0] * size
    for _ in range(_SWEEPS):  # coordinate descent: exact for so few unknowns
        for j in range(size):
            others = sum(gram[j][i] * found[i] for i in range(size) if i != j)
            found[j] = max(0.0, (wanted[j] - others) / gram[j][j])
    return tuple(value / scale for value, scale in zip(found, scales, strict=True))


def leave_one_out(entries: Sequence[TableEntry]) -> tuple[float, ...]:
    """For each entry: the share by which an estimate from the others misses it; entries without others are left out."""
    interpolator = Interpolator(entries)
    misses = []
    for entry in entries:
        shape = shape_of(entry.model_dump(), entry.macs)
        found = None if shape is None else interpolator.estimate(shape, without=entry)
        if found is not None:
            misses.append(abs(found.value / entry.value - 1))
    return tuple(misses)
