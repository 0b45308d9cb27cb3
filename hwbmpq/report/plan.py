"""The numbers of a plan, ready to be drawn or written: no printing here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from hwbmpq.allocate import Explanation
from hwbmpq.allocate.allocation import WrittenAllocation
from hwbmpq.costs.table import Number, WrittenPrecision
from hwbmpq.values import Sensitivity

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
    """The memory that it has to fit in: its name and size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """Every layer at one width, the ends at their own."""

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
        content: dict[str, Any] = _ADAPTER.dump_python(self, mode="json", exclude=names)
        content["allocation"]["optimal"] = self.is_optimized and self.allocation.optimal
        content["share_of_range"] = self.share_of_range(self.allocation.objective)
        for entry in content["alternatives"]:
            entry["share_of_range"] = self.share_of_range(entry["objective"])
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Plan":
        """What ``to_dict`` wrote, but for the sensitivity's errors; ``ValueError`` if it is something else."""
        costs = {name: {**cost, "name": name} for name, cost in content["costs"].items()}
        found = _ADAPTER.validate_python({**content, "costs": costs})
        scores = {layer.name: layer.sensitivity for layer in found.layers}
        return replace(found, sensitivity=replace(found.sensitivity, scores=scores))


_ADAPTER = TypeAdapter(Plan)
