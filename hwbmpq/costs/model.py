"""What a cost model is: the figures it reads, a base for those that cost each layer by itself, and models by name."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from hwbmpq.costs.figures import FigureLog as FigureLog
from hwbmpq.costs.figures import sourced_use as sourced_use
from hwbmpq.costs.per_layer import LayerCost as LayerCost
from hwbmpq.costs.per_layer import cost_layers, over_calls, with_estimates, with_work_outside
from hwbmpq.costs.table import Candidates, Capacity, CostTable, Layers
from hwbmpq.errors import CostModelError as CostModelError
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import WidthPair
from hwbmpq.hardware.widths import op_of
from hwbmpq.registry import COST_MODELS
from hwbmpq.registry import Registration as Registration
from hwbmpq.values import Layer


@runtime_checkable
class CostModel(Protocol):
    """Anything with ``tabulate``; Φ in the paper.

    ``formula`` and ``needs`` (profile fields) are optional attributes that ``hwbmpq costs show`` prints.
    """

    unit: ClassVar[str]

    def tabulate(self, layers: Layers, profile: HardwareProfile, precisions: Candidates) -> CostTable: ...


MS_PER_SECOND = 1e3


class CostOptions(BaseModel):
    """A cost model whose fields are its options: a profile sets them beside ``model`` in ``cost_models``."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    unit: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    is_alias: ClassVar[bool] = False
    """It passes on to another model, and cannot be what a profile chooses."""
    registered_name: ClassVar[str] = ""


class LayerwiseCost(CostOptions):
    """A cost that adds up over layers. A subclass says what one layer costs at one pair of widths."""

    counts_work: ClassVar[bool] = False
    """Whether it is about computing, as time and energy are: layers are costed call by call, each call at its own size,
    and what is computed outside of layers counts too."""
    is_proxy: ClassVar[bool] = False
    """Whether it is the same on every device, whatever runs on it."""

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

    def tabulate(self, layers: Layers, profile: HardwareProfile, precisions: Candidates) -> CostTable:
        name = self.registered_name or type(self).__name__
        layers = layers if isinstance(layers, Collection) else list(layers)
        figures = FigureLog(profile, name)
        cost = self.per_layer(figures)
        cost = over_calls(cost) if self.counts_work else cost

        def stand_in(layer: Layer, pair: WidthPair) -> str:
            return figures.estimates.get((op_of(layer), layer.kernel_size, pair), "")

        def origin(layer: Layer, pair: WidthPair) -> str:
            return "; ".join(filter(None, [self.origin(layer, pair), stand_in(layer, pair)]))

        needs_kernel = self.counts_work and not self.is_proxy
        table = cost_layers(
            *(name, self.unit, layers, profile, precisions, cost, origin), needs_kernel=needs_kernel
        )
        table = with_work_outside(table, layers, profile, cost if self.counts_work else None, stand_in)
        table = with_estimates(table, layers, profile, precisions, stand_in)
        capacity = self.capacity(figures)
        special = Counter(text for row in table.origins.values() for text in set(row.values()))
        counted = (f"{text} ({n} of {len(table.rows[0].costs)} layers)" for text, n in special.items())
        notes = (*table.notes, *self.notes(profile), *counted)
        return replace(table, figures=figures.used, notes=notes, capacity=capacity)


class CyclesLatency(LayerwiseCost):
    """Milliseconds from a number of cycles. A subclass counts them."""

    unit: ClassVar[str] = "ms"
    counts_work: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("clock.core_hz, or accel_hz if the accelerator has its own",)

    def cycles(self, figures: FigureLog) -> LayerCost:
        """Cycles of one layer, as a function."""
        raise NotImplementedError(type(self).__name__)

    def per_layer(self, figures: FigureLog) -> LayerCost:
        cycles = self.cycles(figures)
        clock = figures.accelerator_clock()
        return lambda layer, pair: cycles(layer, pair) / clock * MS_PER_SECOND


M = TypeVar("M", bound=type)


def register(name: str) -> Callable[[M], M]:
    """Class decorator: make a cost model known as ``name``."""

    def add(model: M) -> M:
        _named(COST_MODELS.add(name, model), name)
        return model

    return add


def cost_models() -> Mapping[str, Registration[type]]:
    """Every cost model that is known, broken plug-ins included, by name."""
    return dict(sorted(COST_MODELS.registrations().items()))


def refused_plugins() -> tuple[Registration[type], ...]:
    """Models of plug-ins whose name is taken."""
    return COST_MODELS.refused()


def get_cost_model(name: str, **options: Any) -> CostModel:
    """The cost model of that name with its options, or an error that says what is known."""
    model = _named(COST_MODELS.get(name), name)
    try:
        return cast(CostModel, model(**options))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {_said(item)}" for item in error.errors(include_url=False)
        )
        allowed = ", ".join(getattr(model, "model_fields", ())) or "none"
        raise CostModelError(f"cost model {name!r}: {problems} (its options: {allowed})") from None
    except TypeError as error:
        raise CostModelError(f"cost model {name!r}: {error}") from None


def _named(model: type, name: str) -> type:
    """Tell a model its name, for its messages; a subclass of one of ours has a name of its own."""
    if "registered_name" not in vars(model):
        model.registered_name = name  # type: ignore[attr-defined]
    return model


def _said(item: Any) -> str:
    return "no such option" if item["type"] == "extra_forbidden" else str(item["msg"])
