"""What a cost model is, and a base for those that cost each layer by itself."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

from hwbmpq.costs.figures import FigureLog
from hwbmpq.costs.table import Candidates, Capacity, CostRow, CostTable, Number, candidates_of
from hwbmpq.hardware.formats import WidthPair
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.widths import WidthFinder, op_of
from hwbmpq.values import Layer, Precision


@runtime_checkable
class CostModel(Protocol):
    """Anything with ``tabulate``; Φ in the paper.

    ``formula`` and ``needs`` (profile fields) are optional attributes that ``hwbmpq costs show`` prints.
    """

    unit: ClassVar[str]

    def tabulate(
        self, layers: Iterable[Layer], profile: HardwareProfile, precisions: Candidates
    ) -> CostTable: ...


LayerCost = Callable[[Layer, WidthPair], Number]
MS_PER_SECOND = 1e3


class CostOptions(BaseModel):
    """A cost model whose fields are its options: a profile sets them beside ``model`` in ``cost_models``."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    unit: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    is_alias: ClassVar[bool] = False
    """It passes on to another model, and cannot be what a profile chooses."""


class LayerwiseCost(CostOptions):
    """A cost that adds up over layers. A subclass says what one layer costs at one pair of widths."""

    def per_layer(self, figures: FigureLog) -> LayerCost:
        """The cost of one layer as a function, with the figures that it needs already looked up."""
        raise NotImplementedError(type(self).__name__)

    def notes(self, profile: HardwareProfile) -> tuple[str, ...]:
        """What a reader of the result must know."""
        return ()

    def capacity(self, figures: FigureLog) -> Capacity | None:
        """The memory that the cost has to fit in, if the model is about one."""
        return None

    def origin(self, layer: Layer, pair: WidthPair) -> str:
        """Where a single number comes from, if not from the formula as it stands."""
        return ""

    def tabulate(
        self, layers: Iterable[Layer], profile: HardwareProfile, precisions: Candidates
    ) -> CostTable:
        name = getattr(type(self), "registered_name", type(self).__name__)
        figures = FigureLog(profile, name)
        cost = self.per_layer(figures)
        found = cost_layers(
            layers,
            profile,
            precisions,
            lambda layer, pair: (cost(layer, pair), self.origin(layer, pair)),
        )
        capacity = self.capacity(figures)
        special = Counter(text for row in found.origins.values() for text in set(row.values()))
        return CostTable(
            name=name,
            model=name,
            unit=self.unit,
            rows=(CostRow(costs=found.costs),),
            figures=figures.used,
            origins=found.origins,
            notes=(
                *self.notes(profile),
                *(f"{text} ({count} of {len(found.costs)} layers)" for text, count in special.items()),
            ),
            capacity=capacity,
            promotions=found.promotions,
        )


@dataclass(frozen=True, kw_only=True)
class LayerCosts:
    """What layers cost at their candidates, and where the numbers come from."""

    costs: dict[str, dict[Precision, Number]] = field(default_factory=dict)
    origins: dict[str, dict[Precision, str]] = field(default_factory=dict)
    promotions: dict[Precision, Precision] = field(default_factory=dict)


def cost_layers(
    layers: Iterable[Layer],
    profile: HardwareProfile,
    precisions: Candidates,
    cost: Callable[[Layer, WidthPair], tuple[Number, str]],
) -> LayerCosts:
    """Every layer at every candidate; ``cost`` gives a number and its origin for the pair that really runs."""
    finder = WidthFinder(profile)
    found = LayerCosts()
    for layer in layers:
        row = found.costs[layer.name] = {}
        for precision, runs in finder.executions(op_of(layer), candidates_of(layer, precisions)):
            row[precision], origin = cost(layer, runs.pair)
            if runs.is_promoted:
                found.promotions[precision] = runs.pair.precision
                origin = "; ".join(filter(None, [f"{precision} runs as {runs.pair.precision}", origin]))
            if origin:
                found.origins.setdefault(layer.name, {})[precision] = origin
    return found


class CyclesLatency(LayerwiseCost):
    """Milliseconds from a number of cycles. A subclass counts them."""

    unit: ClassVar[str] = "ms"
    needs: ClassVar[tuple[str, ...]] = ("clock.core_hz, or accel_hz if the accelerator has its own",)

    def cycles(self, figures: FigureLog) -> LayerCost:
        """Cycles of one layer, as a function."""
        raise NotImplementedError(type(self).__name__)

    def per_layer(self, figures: FigureLog) -> LayerCost:
        cycles = self.cycles(figures)
        clock = figures.accelerator_clock()
        return lambda layer, pair: cycles(layer, pair) / clock * MS_PER_SECOND
