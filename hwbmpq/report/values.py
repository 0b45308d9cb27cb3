"""The values that reports are made of: a plan (which widths, at what cost, and why) and the facts of a run, which are
known before it begins: the network, the device, the costs, and how it was called. No printing here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from hwbmpq.allocate import Explanation
from hwbmpq.allocate.allocation import WrittenAllocation
from hwbmpq.costs.table import CostTable, FigureUse, Number, Uncosted, WrittenPrecision, no_figure
from hwbmpq.errors import HwbmpqError
from hwbmpq.report.accuracy import AccuracySearch
from hwbmpq.values import Layer, Precision, Sensitivity, TieGroup, Unquantized

_NO_DIFFERENCE = 1e-6
"""Of the objective's range."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerReport:
    """One layer's line."""

    name: str
    kind: str
    parameters: int
    sensitivity: Number
    precision: WrittenPrecision
    is_fixed: bool
    costs: Mapping[str, Number]
    """Costs that add up over layers; others are not in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostReport:
    """One cost's totals."""

    name: str
    unit: str
    total: Number
    budget: Number | None
    asked: str
    """The budget as the user gave it."""
    smallest: Number
    """Every layer at its narrowest."""
    largest: Number
    """Every layer at its widest."""
    float_total: Number | None
    """In 32-bit float, where that is known."""
    capacity: tuple[str, Number] | None = None
    """The memory that it must fit into: its name and size."""
    uncosted: tuple[Uncosted, ...] = ()
    """What the device has no figure for: the totals are without it."""
    estimated: tuple[str, ...] = ()
    """Parts with numbers that were not measured, where others were, and what stands in for them."""
    estimated_share: float = 0.0
    """Of the total."""
    leaves_out: str = ""
    """A sentence on what the cost does not count."""

    @property
    def is_lower_bound(self) -> bool:
        return bool(self.uncosted)

    @property
    def no_figure(self) -> str:
        """Which parts have no figure."""
        return no_figure(self.uncosted)

    @property
    def holds(self) -> bool | None:
        """Whether the budget is kept; None without one, and where the total is only a lower bound within it."""
        if self.budget is None or (self.is_lower_bound and self.total <= self.budget):
            return None
        return self.total <= self.budget


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """Every layer at one width, the first and last layers at their own."""

    label: str
    weight_bits: int
    costs: Mapping[str, Number]
    objective: Number
    fits: bool


_WrittenSensitivity = Annotated[
    Sensitivity,
    PlainValidator(lambda c: Sensitivity(method=c["method"], scores={}, remarks=tuple(c["remarks"]))),
    PlainSerializer(lambda found: {"method": found.method, "remarks": list(found.remarks)}),
]
"""Without scores, which the layers have."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which width each layer gets on a device, what that costs, and why."""

    target: str
    objective: str
    sensitivity: _WrittenSensitivity
    layers: tuple[LayerReport, ...]
    costs: Mapping[str, CostReport]
    allocation: WrittenAllocation
    alternatives: tuple[Alternative, ...]
    explanation: Explanation | None
    objective_range: tuple[Number, Number]
    """Of the objective, from every layer at its worst to every layer at its best choice."""
    is_optimized: bool = True
    """Whether the widths were optimised; those of a baseline were not."""
    remarks: tuple[str, ...] = ()
    stored: Mapping[str, int] = field(default_factory=dict)
    """Bits of the network as it is stored, by what they are for; memory is their sum."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Costs that this device has no figures for, and why."""

    @property
    def best_uniform(self) -> Alternative | None:
        """The one-width alternative that fits the budgets and is worth the most."""
        fitting = [alternative for alternative in self.alternatives if alternative.fits]
        return max(fitting, key=lambda alternative: alternative.objective, default=None)

    @property
    def is_no_better_than_uniform(self) -> bool:
        """Whether one width for all layers is within the budgets and worth as much."""
        best = self.best_uniform
        if best is None:
            return False
        gained = self.share_of_range(self.allocation.objective) - self.share_of_range(best.objective)
        return gained <= _NO_DIFFERENCE

    def share_of_range(self, objective: float) -> float:
        """Where an objective lies between the worst (0) and the best (1)."""
        low, high = self.objective_range
        return (objective - low) / (high - low) if high > low else 1.0

    def to_dict(self) -> dict[str, Any]:
        names = {"costs": {"__all__": {"name"}}}  # they are the keys
        content: dict[str, Any] = _PLAN.dump_python(self, mode="json", exclude=names)
        content["allocation"]["optimal"] = self.is_optimized and self.allocation.optimal
        content["share_of_range"] = self.share_of_range(self.allocation.objective)
        for name, cost in self.costs.items():
            content["costs"][name] |= {"is_lower_bound": cost.is_lower_bound, "holds": cost.holds}
        for entry in content["alternatives"]:
            entry["share_of_range"] = self.share_of_range(entry["objective"])
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Plan":
        """What ``to_dict`` wrote, but for the sensitivity's errors; ``ValueError`` if it is something else."""
        costs = {
            name: {**cost, "name": name} for name, cost in content["costs"].items()
        }  # what is derived is ignored
        found = _PLAN.validate_python({**content, "costs": costs})
        scores = {layer.name: layer.sensitivity for layer in found.layers}
        return replace(found, sensitivity=replace(found.sensitivity, scores=scores))


_PLAN = TypeAdapter(Plan)


SCHEMA = "hwbmpq/run-facts/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerFacts:
    name: str
    kind: str
    parameters: int
    macs: int
    is_end: bool

    @classmethod
    def of(cls, layer: Layer) -> "LayerFacts":
        return cls(**{name: getattr(layer, name) for name in cls.__slots__})


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node of the network's outline: a layer, a join, an input or an output."""

    name: str
    kind: str
    layer: str = ""
    """The layer that runs here, if one does."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A network on a device under budgets, as plain values that a file keeps."""

    title: str
    """``timm:resnet18 at 3x224x224``."""
    target: str
    device: str
    layers: tuple[LayerFacts, ...]
    ties: tuple[TieGroup, ...]
    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]
    """Between nodes, by name."""
    unquantized: tuple[Unquantized, ...]
    parameters: int
    macs: int
    traced_by: str
    tables: Mapping[str, CostTable]
    limits: Mapping[str, Number]
    """Budgets in the costs' own units."""
    sources: Mapping[str, str]
    """Where figures come from, by id."""
    caveats: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the run; empty for a plan."""
    command: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    accuracy: AccuracySearch | None = None
    """The probes that the budget was found by, where accuracy was asked for."""

    @property
    def figures(self) -> tuple[FigureUse, ...]:
        """Every figure that a cost is computed from, once."""
        found = {(use.path, use.value): use for table in self.tables.values() for use in table.figures}
        return tuple(found.values())

    @property
    def doubtful_figures(self) -> tuple[FigureUse, ...]:
        return tuple(use for use in self.figures if use.is_doubtful)

    @property
    def covered_share(self) -> float:
        """Share of the parameters that are weights of the layers."""
        covered = sum(layer.parameters for layer in self.layers)
        return covered / self.parameters if self.parameters else 1.0

    @property
    def choices(self) -> dict[str, tuple[Precision, ...]]:
        """Candidates by layer."""
        additive = (table.rows[0].costs for table in self.tables.values() if table.is_additive)
        whole = max(additive, key=len)  # one that has a figure for every layer, as memory has
        return {name: tuple(costs) for name, costs in whole.items()}

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **_FACTS.dump_python(self, mode="json")}

    @classmethod
    def from_dict(cls, content: Any) -> "RunFacts":
        """What ``to_dict`` wrote; an error if it is something else."""
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema != SCHEMA:
            raise HwbmpqError(f"these are not the facts of a run: schema {schema!r}")
        try:
            return _FACTS.validate_python(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise HwbmpqError(f"these are not the facts of a run: {place}: {first['msg']}") from None


_FACTS = TypeAdapter(RunFacts)
