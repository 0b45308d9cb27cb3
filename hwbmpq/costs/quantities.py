"""Weight memory, and costs by the name that users know: which model answers is the profile's choice."""

from dataclasses import replace
from typing import ClassVar

from hwbmpq.costs.geometry import divide_up
from hwbmpq.costs.model import (
    CostModel,
    CostModelError,
    CostOptions,
    FigureLog,
    LayerCost,
    LayerwiseCost,
    cost_models,
    get_cost_model,
    register,
)
from hwbmpq.costs.table import Candidates, Capacity, CostTable, Layers, Number, candidates_of
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import CostChoice, WidthPair
from hwbmpq.hardware.widths import WidthFinder
from hwbmpq.values import FLOAT_BITS, Layer

SCALE_BITS = 32


@register("weight_memory")
class WeightMemory(LayerwiseCost):
    """Bits of the weights as they are stored.

    By itself the paper's count, weights only; options add some of what is also stored. ``stored_memory`` counts the
    whole network.
    """

    unit: ClassVar[str] = "bit"
    formula: ClassVar[str] = (
        "weights * weight_bits [+ scales * 32] [+ biases * bias_bits] [padded to simd_channels]"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "precisions.bias_bits (with biases)",
        "precisions.simd_channels (with padding)",
        "memory that holds weights: size_bytes (with level)",
    )

    scales: bool = False
    """Count a 32-bit scale per layer."""
    per_channel: bool = False
    """Count a 32-bit scale per output channel."""
    biases: bool = False
    """Count a bias per output channel, as folding a norm leaves it, at the profile's ``bias_bits``."""
    padding: bool = False
    """Pad output channels to the profile's ``simd_channels``."""
    level: str | None = None
    """The memory that the weights have to fit in (default: the last that holds them, if there is one)."""

    def per_layer(self, figures: FigureLog) -> LayerCost:
        precisions = figures.profile.precisions
        bias_bits = precisions.bias_bits if self.biases else 0
        if bias_bits is None:
            raise figures.missing("precisions.bias_bits")
        simd = precisions.simd_channels

        def cost(layer: Layer, pair: WidthPair) -> Number:
            if self.padding and pair.weight.name not in simd:
                raise figures.missing(f"precisions.simd_channels.{pair.weight.name}")
            weights = _padded(layer, simd[pair.weight.name]) if self.padding else layer.parameters
            biases = 0 if layer.shares_weight_with else layer.out_channels * bias_bits
            return weights * pair.weight.bits + self._scales(layer) * SCALE_BITS + biases

        return cost

    def _scales(self, layer: Layer) -> int:
        if layer.shares_weight_with or not (self.scales or self.per_channel):
            return 0
        return layer.out_channels if self.per_channel else 1

    def capacity(self, figures: FigureLog) -> Capacity | None:
        return figures.capacity("weights", self.level)

    def tabulate(self, layers: Layers, profile: HardwareProfile, precisions: Candidates) -> CostTable:
        layers = list(layers)
        table = super().tabulate(layers, profile, precisions)
        in_float = FLOAT_BITS * sum(layer.parameters for layer in layers)
        return replace(table, float_total=in_float, leaves_out=self._left_out)

    @property
    def _left_out(self) -> str:
        counted = ["the weights"]
        counted += ["their scales"] if self.scales or self.per_channel else []
        counted += ["a bias per channel"] if self.biases else []
        return f"weight_memory counts {' and '.join(counted)} alone, not the whole network"


def _padded(layer: Layer, channels: int) -> int:
    """Stored weights with output channels padded to a multiple."""
    return layer.parameters // layer.out_channels * divide_up(layer.out_channels, channels) * channels


UNITS = {"latency": "ms", "energy": "uJ", "memory": "bit"}


_DEFAULTS = {"memory": CostChoice(model="stored_memory")}


def chosen_model(quantity: str, profile: HardwareProfile) -> CostModel:
    """The model that answers for a quantity on a device; raises if there is none or it cannot."""
    choice = profile.cost_models.get(quantity, _DEFAULTS.get(quantity))
    if choice is None:
        hint = f"say which model answers: `{quantity}: {{model: …}}`"
        raise FigureLog(profile, quantity).missing(f"cost_models.{quantity}", hint=hint)
    model = get_cost_model(choice.model, **choice.options)
    if getattr(model, "is_alias", False):
        raise CostModelError(f"cost model {choice.model!r} passes on to another one: choose that")
    if not _answers(model, quantity):
        fitting = [name for name, found in cost_models().items() if _answers(found.entry, quantity)]
        raise CostModelError(
            f"cost model {choice.model!r} gives {model.unit}, not {UNITS[quantity]}; "
            f"for {quantity} there are {', '.join(fitting)}"
        )
    return model


def _answers(model: object, quantity: str) -> bool:
    units = str(getattr(model, "unit", "")).split(" or ")
    return UNITS[quantity] in units and not getattr(model, "is_alias", False)


class _Quantity(CostOptions):
    """A cost by the name that it is registered with."""

    is_alias: ClassVar[bool] = True

    def tabulate(self, layers: Layers, profile: HardwareProfile, precisions: Candidates) -> CostTable:
        name = self.registered_name
        table = chosen_model(name, profile).tabulate(layers, profile, precisions)
        if table.unit != self.unit:
            raise CostModelError(f"cost model {table.model!r} gave {table.unit} for {name}")
        kernels = () if name == "memory" else _kernel_notes(layers, profile, precisions)
        return replace(table, name=name, notes=tuple(dict.fromkeys([*table.notes, *kernels])))


def _kernel_notes(layers: Layers, profile: HardwareProfile, precisions: Candidates) -> tuple[str, ...]:
    """Pairs that no existing kernel runs."""
    finder = WidthFinder(profile)
    kernels: dict[str, set[str]] = {"user": set(), "none": set()}
    for layer in layers:
        for precision in candidates_of(layer, precisions):
            pair = finder.execution_of(layer, precision).pair
            kernels.get(pair.kernel, set()).add(str(pair))
    labels = {"user": "a kernel of your own is needed for", "none": "no kernel, storage only:"}
    return tuple(f"{labels[kernel]} {', '.join(sorted(found))}" for kernel, found in kernels.items() if found)


@register("latency")
class Latency(_Quantity):
    """Milliseconds for one input, by the latency model that the profile chooses."""

    unit: ClassVar[str] = UNITS["latency"]
    formula: ClassVar[str] = "that of the model in the profile's cost_models.latency"
    needs: ClassVar[tuple[str, ...]] = ("cost_models.latency",)


@register("energy")
class Energy(_Quantity):
    """Microjoules for one input, by the energy model that the profile chooses."""

    unit: ClassVar[str] = UNITS["energy"]
    formula: ClassVar[str] = "that of the model in the profile's cost_models.energy"
    needs: ClassVar[tuple[str, ...]] = ("cost_models.energy",)


@register("memory")
class Memory(_Quantity):
    """Bits of the whole network as it is stored, unless the profile's cost_models.memory says otherwise."""

    unit: ClassVar[str] = UNITS["memory"]
    formula: ClassVar[str] = "that of stored_memory, or of the model in the profile's cost_models.memory"


class _Role(CostOptions):
    """A cost that has to fit in the memory that holds something."""

    unit: ClassVar[str] = "bit"
    is_alias: ClassVar[bool] = True
    role: ClassVar[str] = ""
    other_role: ClassVar[str] = ""
    cost: ClassVar[str] = ""
    mcu_note: ClassVar[str] = ""
    """What a microcontroller keeps in that memory too."""

    def tabulate(self, layers: Layers, profile: HardwareProfile, precisions: Candidates) -> CostTable:
        figures = FigureLog(profile, self.registered_name)
        level = figures.level(self.role)
        capacity = figures.capacity(self.role, level.name)
        table = get_cost_model(self.cost).tabulate(layers, profile, precisions)
        notes = table.notes
        if self.other_role in level.holds:
            notes = (*notes, f"{level.name} holds the {self.other_role} as well, which are not counted here")
        if profile.device_class == "mcu" and self.mcu_note:
            notes = (*notes, self.mcu_note)
        used = {use.path: use for use in (*table.figures, *figures.used)}
        return replace(
            table, name=self.registered_name, figures=tuple(used.values()), notes=notes, capacity=capacity
        )


@register("flash")
class Flash(_Role):
    """``memory``, to fit in the profile's memory that holds the weights."""

    role: ClassVar[str] = "weights"
    other_role: ClassVar[str] = "activations"
    cost: ClassVar[str] = "memory"
    mcu_note: ClassVar[str] = "code is not counted"
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
