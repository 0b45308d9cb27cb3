"""What a cost model is: the figures it reads, a base for those that cost each layer by itself, and models by name."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from hwbmpq.costs.geometry import calls_of
from hwbmpq.costs.table import (
    Candidates,
    Capacity,
    CostRow,
    CostTable,
    FigureUse,
    Layers,
    Number,
    candidates_of,
)
from hwbmpq.errors import CostModelError as CostModelError
from hwbmpq.errors import MissingFigureError
from hwbmpq.hardware.profile import HardwareProfile, WidthFinder
from hwbmpq.hardware.schema import FLOATS, Figure, MemoryLevel, RateRow, Sourced, WidthPair, quantity_of
from hwbmpq.registry import COST_MODELS
from hwbmpq.registry import Registration as Registration
from hwbmpq.values import Layer, Precision

_ROW_FIGURES = ("macs_per_cycle", "macs_per_s", "pj_per_mac")


class FigureLog:
    """Hands out the figures of one profile to one cost model and keeps the list of what was used."""

    def __init__(self, profile: HardwareProfile, cost_model: str) -> None:
        self.profile = profile
        self.cost_model = cost_model
        self._used: dict[str, FigureUse | tuple[BaseModel, str]] = {}  # a figure: its block and field

    @property
    def used(self) -> tuple[FigureUse, ...]:
        """What was handed out, with where it comes from."""
        return tuple(
            use if isinstance(use, FigureUse) else _figure_use(path, *use) for path, use in self._used.items()
        )

    def need(self, block: str, field: str) -> float:
        """The figure ``block.field`` (``clock.core_hz``), or a ``MissingFigureError`` that names it."""
        return self._take(getattr(self.profile, block), field, block)

    def need_of(self, level: MemoryLevel, field: str) -> float:
        """A figure of a memory."""
        return self._take(level, field, f"memory.{level.name}")

    def constant(self, use: FigureUse) -> float:
        """A figure of the cost model itself."""
        self._used[use.path] = use
        return use.value

    def efficiency(self) -> float:
        """The share of the peak that is reached; all of it if the profile says nothing."""
        return 1.0 if self.profile.compute.efficiency is None else self.need("compute", "efficiency")

    def accelerator_clock(self) -> float:
        """The accelerator's clock if it has its own, else the core's."""
        own = self.profile.clock.accel_hz
        return self.need("clock", "core_hz" if own is None else "accel_hz")

    def missing(self, field: str, *, hint: str = "") -> MissingFigureError:
        return MissingFigureError(self.profile.target, field, self.cost_model, hint=hint)

    def level(self, role: str, name: str | None = None) -> MemoryLevel:
        """The memory that stores weights or activations: the one named, or the last that holds them."""
        levels = [level for level in self.profile.memory if role in level.holds]
        if name is not None:
            levels = [level for level in self.profile.memory if level.name == name]
        if not levels:
            field = f"memory level {name!r}" if name is not None else f"memory that holds {role}"
            raise self.missing(field, hint=f"list it under `memory`: {{name: …, holds: [{role}], …}}")
        return levels[-1]

    def capacity(self, role: str, name: str | None = None) -> Capacity | None:
        """The memory that stores weights or activations, if the profile has one and knows its size.

        One that is named must be there, with its size.
        """
        levels = [level for level in self.profile.memory if role in level.holds]
        if name is None and (not levels or levels[-1].size_bytes is None):
            return None
        level = self.level(role, name)
        return Capacity(level=level.name, bits=8 * self.need_of(level, "size_bytes"))

    def row(self, block: str, op: str, kernel_size: tuple[int, ...], pair: WidthPair) -> tuple[str, float]:
        """The field and the figure of the best matching row of ``compute.table`` or ``energy.table``."""
        rows = getattr(self.profile, block).table
        matches = [
            (_specificity(row), -index) for index, row in enumerate(rows) if _fits(row, op, kernel_size, pair)
        ]
        if not matches:
            kernel = f" {'x'.join(map(str, kernel_size))}" if kernel_size else ""
            rows_there = [f"{row.w or 'any'}×{row.a or 'any'}" for row in rows if row.w or row.a]
            hint = f"it has rows for {', '.join(rows_there)}: choose widths with --bits" if rows_there else ""
            raise self.missing(f"{block}.table row for {op}{kernel} at {pair}", hint=hint)
        index = -max(matches)[1]
        field = next(name for name in _ROW_FIGURES if getattr(rows[index], name, None) is not None)
        return field, self._take(rows[index], field, f"{block}.table.{index}")

    def _take(self, owner: BaseModel, field: str, where: str) -> float:
        figure: Figure | None = getattr(owner, field)
        path = f"{where}.{field}"
        if figure is None:
            raise self.missing(
                path, hint=f"add it to the profile: `{field}: {{value: …, kind: …, src: […]}}`"
            )
        self._used[path] = (owner, field)
        return figure.value


def _figure_use(path: str, owner: BaseModel, field: str) -> FigureUse:
    figure: Figure = getattr(owner, field)
    quantity = quantity_of(type(owner).model_fields[field])
    unit = quantity.dimension.unit if quantity else ""
    return sourced_use(path, figure, figure.value, unit, figure.note or "")


def sourced_use(path: str, source: Sourced, value: Number, unit: str, note: str) -> FigureUse:
    """The use of something with the origin that its block in the profile states."""
    return FigureUse(
        path=path,
        value=value,
        unit=unit,
        kind=source.kind or "",
        sources=source.src,
        note=note,
        is_doubtful=source.is_doubtful,
    )


def _fits(row: RateRow, op: str, kernel_size: tuple[int, ...], pair: WidthPair) -> bool:
    if "*" not in row.op and op not in row.op:
        return False
    if row.kernel_size is not None:
        wanted = row.kernel_size * len(kernel_size) if len(row.kernel_size) == 1 else row.kernel_size
        if wanted != kernel_size:
            return False
    formats = ((row.w, pair.weight), (row.a, pair.activation))
    for asked, has in formats:  # int8 and uint8 are equally fast, fp16 and bf16 too
        if asked and (asked.bits, asked.name in FLOATS) != (has.bits, has.name in FLOATS):
            return False
    return row.compute is None or row.compute.name == pair.compute


def _specificity(row: RateRow) -> tuple[bool, ...]:
    """A row that names more wins; the operation counts most."""
    return (
        "*" not in row.op,
        row.kernel_size is not None,
        row.w is not None,
        row.a is not None,
        row.compute is not None,
    )


@runtime_checkable
class CostModel(Protocol):
    """Anything with ``tabulate``; Φ in the paper.

    ``formula`` and ``needs`` (profile fields) are optional attributes that ``hwbmpq costs show`` prints.
    """

    unit: ClassVar[str]

    def tabulate(self, layers: Layers, profile: HardwareProfile, precisions: Candidates) -> CostTable: ...


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
    registered_name: ClassVar[str] = ""


class LayerwiseCost(CostOptions):
    """A cost that adds up over layers. A subclass says what one layer costs at one pair of widths."""

    is_per_call: ClassVar[bool] = False
    """Whether a layer that is called at several sizes is costed call by call: true of time and energy, not of storage."""

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
        figures = FigureLog(profile, name)
        cost = self.per_layer(figures)
        cost = over_calls(cost) if self.is_per_call else cost
        table = cost_layers(name, self.unit, layers, profile, precisions, cost, self.origin)
        capacity = self.capacity(figures)
        special = Counter(text for row in table.origins.values() for text in set(row.values()))
        counted = (f"{text} ({n} of {len(table.rows[0].costs)} layers)" for text, n in special.items())
        notes = (*self.notes(profile), *counted)
        return replace(table, figures=figures.used, notes=notes, capacity=capacity)


def over_calls(cost: LayerCost) -> LayerCost:
    """The cost of a layer from that of its calls, each at its own size; one that computes nothing costs nothing."""

    def add(layer: Layer, pair: WidthPair) -> Number:
        return sum(count * cost(call, pair) for call, count in calls_of(layer)) if layer.macs else 0

    return add


def cost_layers(
    name: str,
    unit: str,
    layers: Layers,
    profile: HardwareProfile,
    precisions: Candidates,
    cost: LayerCost,
    origin_of: Callable[[Layer, WidthPair], str],
) -> CostTable:
    """Every layer at every candidate: a number, and where it comes from, for the pair that really runs."""
    finder = WidthFinder(profile)
    costs: dict[str, dict[Precision, Number]] = {}
    origins: dict[str, dict[Precision, str]] = {}
    promotions: dict[Precision, Precision] = {}
    for layer in layers:
        row = costs[layer.name] = {}
        for precision in candidates_of(layer, precisions):
            runs = finder.execution_of(layer, precision)
            row[precision] = cost(layer, runs.pair)
            origin = origin_of(layer, runs.pair)
            if runs.is_promoted:
                promotions[precision] = runs.pair.precision
                origin = "; ".join(filter(None, [f"{precision} runs as {runs.pair.precision}", origin]))
            if origin:
                origins.setdefault(layer.name, {})[precision] = origin
    rows = (CostRow(costs=costs),)
    return CostTable(name=name, model=name, unit=unit, rows=rows, origins=origins, promotions=promotions)


class CyclesLatency(LayerwiseCost):
    """Milliseconds from a number of cycles. A subclass counts them."""

    unit: ClassVar[str] = "ms"
    is_per_call: ClassVar[bool] = True
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
