"""The numbers of a plan, ready to be drawn or written: no printing here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hwbmpq.allocate import Allocation, Explanation
from hwbmpq.costs.table import Number
from hwbmpq.values import Precision, Sensitivity

_NO_DIFFERENCE = 1e-6
"""Of the objective's range."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerReport:
    """One layer's line."""

    name: str
    kind: str
    parameters: int
    sensitivity: float
    precision: Precision
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
    """The budget as it was said."""
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
    objective: float
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which width each layer gets on a device, what that costs, and why."""

    target: str
    objective: str
    sensitivity: Sensitivity
    layers: tuple[LayerReport, ...]
    costs: Mapping[str, CostReport]
    allocation: Allocation
    alternatives: tuple[Alternative, ...]
    explanation: Explanation | None
    objective_range: tuple[float, float]
    """Of the objective, from every layer at its worst to every layer at its best choice."""
    is_optimized: bool = True
    """Whether somebody looked for the best widths; a control did not."""
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
        return {
            "target": self.target,
            "objective": self.objective,
            "sensitivity": {"method": self.sensitivity.method, "remarks": list(self.sensitivity.remarks)},
            "allocation": {
                **self.allocation.to_dict(),
                "optimal": self.is_optimized and self.allocation.optimal,
            },
            "is_optimized": self.is_optimized,
            "objective_range": list(self.objective_range),
            "share_of_range": self.share_of_range(self.allocation.objective),
            "layers": [
                {
                    "name": layer.name,
                    "kind": layer.kind,
                    "parameters": layer.parameters,
                    "sensitivity": layer.sensitivity,
                    "precision": str(layer.precision),
                    "is_fixed": layer.is_fixed,
                    "costs": dict(layer.costs),
                }
                for layer in self.layers
            ],
            "costs": {name: _fields(cost) for name, cost in self.costs.items()},
            "alternatives": [
                {**_fields(alternative), "share_of_range": self.share_of_range(alternative.objective)}
                for alternative in self.alternatives
            ],
            "explanation": None if self.explanation is None else self.explanation.to_dict(),
            "remarks": list(self.remarks),
            "missing": dict(self.missing),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Plan":
        """What ``to_dict`` wrote, but for the sensitivity's errors."""
        layers = tuple(
            LayerReport(**{**layer, "precision": Precision.parse(layer["precision"])})
            for layer in content["layers"]
        )
        explanation = content["explanation"]
        return cls(
            target=content["target"],
            objective=content["objective"],
            sensitivity=Sensitivity(
                method=content["sensitivity"]["method"],
                scores={layer.name: layer.sensitivity for layer in layers},
                remarks=tuple(content["sensitivity"]["remarks"]),
            ),
            layers=layers,
            costs={name: _cost(name, cost) for name, cost in content["costs"].items()},
            allocation=Allocation.from_dict(content["allocation"]),
            alternatives=tuple(
                Alternative(**{name: value for name, value in entry.items() if name != "share_of_range"})
                for entry in content["alternatives"]
            ),
            explanation=None if explanation is None else Explanation.from_dict(explanation, Precision.parse),
            objective_range=(content["objective_range"][0], content["objective_range"][1]),
            is_optimized=content["is_optimized"],
            remarks=tuple(content["remarks"]),
            missing=content["missing"],
        )


def _cost(name: str, content: Mapping[str, Any]) -> CostReport:
    capacity = content["capacity"]
    return CostReport(
        **{**content, "name": name, "capacity": None if capacity is None else (capacity[0], capacity[1])}
    )


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__ if name != "name"}
