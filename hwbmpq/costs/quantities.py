"""Costs by the name that users know. Which model answers is the profile's choice."""

from collections.abc import Iterable
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from hwbmpq.costs.figures import FigureLog
from hwbmpq.costs.registry import get_cost_model, register
from hwbmpq.costs.table import Candidates, Capacity, CostTable
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import CostChoice
from hwbmpq.values import Layer


class _Quantity(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    unit: ClassVar[str] = ""
    quantity: ClassVar[str] = ""
    fallback: ClassVar[CostChoice | None] = None

    def tabulate(
        self, layers: Iterable[Layer], profile: HardwareProfile, precisions: Candidates
    ) -> CostTable:
        choice = profile.cost_models.get(self.quantity, self.fallback)
        if choice is None:
            raise FigureLog(profile, self.quantity).missing(
                f"cost_models.{self.quantity}",
                hint=f"say which model answers: `{self.quantity}: {{model: …}}`",
            )
        table = get_cost_model(choice.model, **choice.options).tabulate(layers, profile, precisions)
        return table.named(self.quantity)


@register("latency")
class Latency(_Quantity):
    """Milliseconds for one input, by the latency model that the profile chooses."""

    unit: ClassVar[str] = "ms"
    quantity: ClassVar[str] = "latency"
    formula: ClassVar[str] = "that of the model in the profile's cost_models.latency"
    needs: ClassVar[tuple[str, ...]] = ("cost_models.latency",)


@register("energy")
class Energy(_Quantity):
    """Microjoules for one input, by the energy model that the profile chooses."""

    unit: ClassVar[str] = "uJ"
    quantity: ClassVar[str] = "energy"
    formula: ClassVar[str] = "that of the model in the profile's cost_models.energy"
    needs: ClassVar[tuple[str, ...]] = ("cost_models.energy",)


@register("memory")
class Memory(_Quantity):
    """Bits of the weights: the paper's count, unless the profile's cost_models.memory says more."""

    unit: ClassVar[str] = "bit"
    quantity: ClassVar[str] = "memory"
    fallback: ClassVar[CostChoice | None] = CostChoice(model="weight_memory")
    formula: ClassVar[str] = "weights * weight_bits"
    needs: ClassVar[tuple[str, ...]] = ()


class _Role(BaseModel):
    """A cost bound to the memory that holds something."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    unit: ClassVar[str] = "bit"
    role: ClassVar[str] = ""
    cost: ClassVar[str] = ""
    other_role: ClassVar[str] = ""

    def tabulate(
        self, layers: Iterable[Layer], profile: HardwareProfile, precisions: Candidates
    ) -> CostTable:
        name: str = type(self).registered_name  # type: ignore[attr-defined]
        figures = FigureLog(profile, name)
        level = figures.level(self.role)
        table = get_cost_model(self.cost).tabulate(layers, profile, precisions)
        size = figures.need_of(level, "size_bytes")
        notes = table.notes
        if self.other_role in level.holds:
            notes = (*notes, f"{level.name} holds the {self.other_role} as well, which are not counted here")
        return table.named(
            name,
            figures=(*table.figures, *figures.used),
            notes=notes,
            capacity=Capacity(level=level.name, bits=8 * size),
        )


@register("flash")
class Flash(_Role):
    """``memory``, to fit in the profile's memory that holds the weights."""

    role: ClassVar[str] = "weights"
    other_role: ClassVar[str] = "activations"
    cost: ClassVar[str] = "memory"
    formula: ClassVar[str] = "that of memory"
    needs: ClassVar[tuple[str, ...]] = ("memory that holds weights: size_bytes",)


@register("ram")
class Ram(_Role):
    """``activation_memory``, to fit in the profile's memory that holds the activations."""

    role: ClassVar[str] = "activations"
    other_role: ClassVar[str] = "weights"
    cost: ClassVar[str] = "activation_memory"
    formula: ClassVar[str] = "that of activation_memory"
    needs: ClassVar[tuple[str, ...]] = ("memory that holds activations: size_bytes",)
