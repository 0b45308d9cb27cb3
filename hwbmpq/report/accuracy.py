"""Accuracy against a cost: what was measured at which budget, and the smallest that holds what was asked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from hwbmpq.units import amount
from hwbmpq.values import Metric

_ROUNDING = 1e-9
"""97.8 % less 1 % is not exactly 96.8 % to a computer."""
_Figure = Annotated[float, Field(allow_inf_nan=False, gt=-1e30, lt=1e30)]
_Bits = Annotated[int, Field(ge=1, le=64)]


@dataclass(frozen=True, kw_only=True)
class AccuracyProbe:
    """The network at the widths that one budget allows, measured on validation images."""

    costs: Mapping[str, _Figure]
    average_bits: _Figure
    """Of the weights of all layers."""
    value: _Figure
    """Of the metric."""
    weight_bits: tuple[_Bits, ...]
    """By layer, in their order."""
    holds: bool | None = None
    """Whether the value is what was asked for; None if nothing was."""
    is_trained: bool = False
    """Whether it was trained at these widths, or only calibrated."""


@dataclass(frozen=True, kw_only=True)
class AccuracySearch:
    """All probes along one cost."""

    cost: str
    unit: str
    metric: Metric
    in_float: _Figure
    """Of the same weights in float, on the same images."""
    images: Annotated[int, Field(ge=1)]
    """How many validation images the values are of."""
    asked: str = ""
    """``max-drop 1%``; empty where only the curve was asked for."""
    least: _Figure | None = None
    """What the value must not fall below."""
    probes: tuple[AccuracyProbe, ...] = ()
    """In the order in which they were made."""
    budget: _Figure | None = None
    """The smallest that was found to hold, in the cost's unit."""
    reached: _Figure | None = None
    """By the network that the run left, on the same images."""

    @property
    def curve(self) -> tuple[AccuracyProbe, ...]:
        """From cheap to expensive; of equal costs, the trained last."""
        return tuple(sorted(self.probes, key=lambda probe: (probe.costs[self.cost], probe.is_trained)))

    @property
    def is_met(self) -> bool | None:
        """Whether the run's network is what was asked for; None before it is measured."""
        return None if self.reached is None else self.is_enough(self.reached)

    def is_enough(self, value: float) -> bool | None:
        """Whether a value is what was asked for; None if nothing was."""
        return None if self.least is None else value >= self.least - _ROUNDING

    def with_probe(self, probe: AccuracyProbe) -> "AccuracySearch":
        probe = replace(probe, holds=self.is_enough(probe.value))
        return replace(self, probes=(*self.probes, probe))

    @property
    def question(self) -> str:
        """``max-drop 1%: at least 96.80%, where float has 97.80% accuracy on 718 validation images; …``."""
        in_float = f"float has {self.metric.text(self.in_float)} {self.metric.name} on {self.images:,} validation images"
        if self.least is None:
            return in_float
        return f"{self.asked}: at least {self.metric.text(self.least)}, where {in_float}; as little {self.cost} as possible"

    def line(self, probe: AccuracyProbe) -> str:
        """``memory 24.10 KiB, 3.20 bits on average, accuracy 97.20% (-0.60%): holds``."""
        verdict = {True: ": holds", False: ": too low", None: ""}[probe.holds]
        return (
            f"{self.cost} {amount(probe.costs[self.cost], self.unit)}, {probe.average_bits:.2f} bits on average, "
            f"{self.metric.name} {self.metric.text(probe.value)} ({self.metric.change(probe.value - self.in_float)})"
            f"{', trained' if probe.is_trained else ''}{verdict}"
        )

    def to_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = _WRITTEN.dump_python(self, mode="json")
        return {**content, "is_met": self.is_met}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "AccuracySearch":
        """What ``to_dict`` wrote; ``ValueError`` if it is something else."""
        return _WRITTEN.validate_python({name: value for name, value in content.items() if name != "is_met"})

    def checked(self, layers: int) -> "AccuracySearch":
        """Itself; ``ValueError`` if it cannot be of a network of so many layers: others may have changed the file."""
        if any(self.cost not in probe.costs or len(probe.weight_bits) != layers for probe in self.probes):
            raise ValueError("the probes of accuracy belong to another network or cost")
        return self


_WRITTEN = TypeAdapter(AccuracySearch)
