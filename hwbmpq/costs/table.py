"""``CostTable``: what each layer costs at each precision, and where the numbers come from."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from hwbmpq.values import Layer, Precision

Number = int | float
WrittenPrecision = Annotated[Precision, PlainValidator(Precision.parse), PlainSerializer(str)]
"""A precision that files keep as ``W4A8``."""
Layers = Iterable[Layer]
"""The layers of a network, or its ``LayerGraph``, which some costs need."""
Candidates = Sequence[Precision] | Mapping[str, Sequence[Precision]]
"""The precisions to cost: the same for all layers, or by layer name."""


def candidates_of(layer: Layer, precisions: Candidates) -> Sequence[Precision]:
    """The precisions that one layer may take."""
    return precisions[layer.name] if isinstance(precisions, Mapping) else precisions


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureUse:
    """A figure that a cost rests on."""

    path: str
    """``clock.core_hz``, or the name of a constant of the cost model itself."""
    value: Number
    unit: str
    kind: str
    sources: tuple[str, ...] = ()
    note: str = ""
    is_doubtful: bool = False
    """Whether it is assumed, or its sources disagree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """A memory that a cost has to fit in."""

    level: str
    bits: Number


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncosted:
    """Work of the network that a cost has no figure for."""

    name: str
    why: str
    macs: int
    share: float
    """Of the network's MACs."""


_MOST_NAMES = 3


def no_figure(uncosted: Sequence[Uncosted]) -> str:
    """``2 parts of the network (98 % of its MACs) have no figure on this device: gru, head``."""
    share = sum(entry.share for entry in uncosted)
    percent = "less than 1 %" if share < 0.01 else f"{100 * share:.0f} %"
    names = [entry.name for entry in uncosted]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    parts = "1 part of the network" if len(names) == 1 else f"{len(names)} parts of the network"
    verb = "has" if len(names) == 1 else "have"
    return f"{parts} ({percent} of its MACs) {verb} no figure on this device: {', '.join(names[:_MOST_NAMES])}{more}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CostRow:
    """A sum over layers. Layers that are not in it add nothing."""

    costs: Mapping[str, Mapping[WrittenPrecision, Number]]
    constant: Number = 0
    label: str = ""
    """What the sum is about, where a cost has several: a step of the schedule."""

    def total(self, allocation: Mapping[str, Precision]) -> Number:
        return self.constant + sum(choices[allocation[layer]] for layer, choices in self.costs.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class CostTable:
    """A cost: one additive row, or several that must each stay within the budget."""

    name: str
    unit: str
    rows: tuple[CostRow, ...]
    model: str = ""
    figures: tuple[FigureUse, ...] = ()
    origins: Mapping[str, Mapping[WrittenPrecision, str]] = field(default_factory=dict)
    """Where single numbers come from, if not from the formula as it stands: promoted widths, neighbours."""
    notes: tuple[str, ...] = ()
    capacity: Capacity | None = None
    promotions: Mapping[WrittenPrecision, WrittenPrecision] = field(default_factory=dict)
    """Precisions without a kernel, and those that they run as."""
    estimated: tuple[str, ...] = ()
    """Layers with a number that is not a measurement of the layer itself, where the others are measured."""
    estimated_at: Mapping[str, tuple[WrittenPrecision, ...]] = field(default_factory=dict)
    """The precisions at which that is so, by layer; all of them for a layer that is not listed here."""
    estimated_constant: Number = 0
    """How much of the constant is an estimate."""
    uncosted: tuple[Uncosted, ...] = ()
    """What there is no figure for, and what is therefore in no number here."""
    float_total: Number | None = None
    """The same cost of the network in float, where that is known."""
    leaves_out: str = ""
    """A sentence on what the network also has that this cost does not count."""
    findings: tuple[str, ...] = ()
    """Those of the notes that say which widths a measurement found to be equally fast."""

    @classmethod
    def additive(
        cls,
        name: str,
        layers: Layers,
        precisions: Candidates,
        cost: Callable[[Layer, Precision], Number],
        *,
        unit: str,
        **fields: Any,
    ) -> "CostTable":
        """A table with one row, from a function of layer and precision."""
        costs = {
            layer.name: {precision: cost(layer, precision) for precision in candidates_of(layer, precisions)}
            for layer in layers
        }
        return cls(name=name, unit=unit, rows=(CostRow(costs=costs),), **fields)

    @property
    def is_lower_bound(self) -> bool:
        """Whether the network costs more than the totals say, by an unknown amount."""
        return bool(self.uncosted)

    @property
    def no_figure(self) -> str:
        """Which parts have no figure."""
        return no_figure(self.uncosted)

    def estimated_share(self, allocation: Mapping[str, Precision]) -> float:
        """Share of the total that rests on estimates, of a cost that adds up."""
        total = self.total(allocation)
        if not self.is_additive or not total:
            return 0.0
        costs = self.rows[0].costs
        found = (layer for layer in self.estimates(allocation) if layer in costs)
        return (self.estimated_constant + sum(costs[layer][allocation[layer]] for layer in found)) / total

    def estimates(self, allocation: Mapping[str, Precision]) -> tuple[str, ...]:
        """The layers whose number at their own width is an estimate."""
        at = self.estimated_at
        return tuple(name for name in self.estimated if name not in at or allocation[name] in at[name])

    @property
    def is_additive(self) -> bool:
        return len(self.rows) == 1

    def __getitem__(self, layer: str) -> Mapping[Precision, Number]:
        """The costs of one layer in an additive table."""
        if not self.is_additive:
            raise TypeError(f"{self.name} has {len(self.rows)} rows: ask one of them")
        return self.rows[0].costs[layer]

    def total(self, allocation: Mapping[str, Precision]) -> Number:
        """What the network costs: the sum, or the largest of the sums."""
        return max((row.total(allocation) for row in self.rows), default=0)

    def peak(self, allocation: Mapping[str, Precision]) -> CostRow:
        """The row that decides."""
        return max(self.rows, key=lambda row: row.total(allocation))

    @property
    def doubtful_figures(self) -> tuple[FigureUse, ...]:
        """Assumed and uncertain figures that every number here rests on."""
        return tuple(figure for figure in self.figures if figure.is_doubtful)

    @property
    def is_flat(self) -> bool:
        """Whether layers have a choice of widths that run, and none of them changes anything."""
        if self.promotions:
            return False  # some widths are not there at all
        all_choices = [choices for row in self.rows for choices in row.costs.values()]
        has_choice = any(len(choices) > 1 for choices in all_choices)
        return has_choice and all(len(set(choices.values())) <= 1 for choices in all_choices)

    def scaled(self, factor: float, **changes: Any) -> "CostTable":
        """Every number times ``factor``."""
        rows = tuple(
            replace(
                row,
                costs={
                    layer: {precision: value * factor for precision, value in choices.items()}
                    for layer, choices in row.costs.items()
                },
                constant=row.constant * factor,
            )
            for row in self.rows
        )
        return replace(self, rows=rows, estimated_constant=self.estimated_constant * factor, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; precisions as ``W4A8``."""
        content: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "CostTable":
        """What ``to_dict`` wrote; ``ValueError`` if it is something else."""
        return _ADAPTER.validate_python(content)


_ADAPTER = TypeAdapter(CostTable)
