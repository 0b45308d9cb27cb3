"""The figures of a profile, handed out to a cost model: what was used, and what had to stand in for what is missing."""

from collections.abc import Iterator

from pydantic import BaseModel

from hwbmpq.costs.table import Capacity, FigureUse, Number
from hwbmpq.errors import MissingFigureError
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import (
    FLOATS,
    Figure,
    MemoryLevel,
    NumberFormat,
    RateRow,
    Sourced,
    WidthPair,
    quantity_of,
)

_ROW_FIGURES = ("macs_per_cycle", "macs_per_s", "pj_per_mac")


class FigureLog:
    """Hands out the figures of one profile to one cost model and keeps the list of what was used."""

    def __init__(self, profile: HardwareProfile, cost_model: str) -> None:
        self.profile = profile
        self.cost_model = cost_model
        self._used: dict[str, FigureUse | tuple[BaseModel, str]] = {}  # a figure: its block and field
        self.estimates: dict[tuple[str, tuple[int, ...], WidthPair], str] = {}
        """By operation, kernel and widths: rates that were not there, and what was taken instead."""

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
        """The field and the figure of the best matching row of ``compute.table`` or ``energy.table``.

        Without one, those of the slowest row at these widths, which ``estimates`` then says.
        """
        rows = getattr(self.profile, block).table
        matches = [
            (_specificity(row), -index)
            for index, row in enumerate(rows)
            if _has_op(row, op) and _has_kernel(row, kernel_size) and _has_widths(row, pair)
        ]
        index = -max(matches)[1] if matches else self._slowest(block, op, kernel_size, pair)
        field = _field(rows[index])
        return field, self._take(rows[index], field, f"{block}.table.{index}")

    def _slowest(self, block: str, op: str, kernel_size: tuple[int, ...], pair: WidthPair) -> int:
        """The place of the slowest row of the same operation and widths, or else of the same widths."""
        rows = getattr(self.profile, block).table
        # Depthwise kernels are several times slower than others: only their own rates are on the safe side.
        alike = [
            index
            for index, row in enumerate(rows)
            if _has_widths(row, pair) and (not op.startswith("dw") or any(_is_depthwise(row)))
        ]
        alike = [index for index in alike if _has_op(rows[index], op)] or alike
        kernel = f" {'x'.join(map(str, kernel_size))}" if kernel_size else ""
        if not alike:
            rows_there = [f"{row.w or 'any'}×{row.a or 'any'}" for row in rows if row.w or row.a]
            hint = f"it has rows for {', '.join(rows_there)}: choose widths with --bits" if rows_there else ""
            raise self.missing(f"{block}.table row for {op}{kernel} at {pair}", hint=hint)
        clock = self.profile.clock.core_hz
        found = min(alike, key=lambda index: _speed(rows[index], 1.0 if clock is None else clock.value))
        self.estimates[op, kernel_size, pair] = (
            f"{op}{kernel} has no figure: counted as {_named(rows[found])}"
        )
        return found

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


def _has_op(row: RateRow, op: str) -> bool:
    return "*" in row.op or op in row.op


def _has_kernel(row: RateRow, kernel_size: tuple[int, ...]) -> bool:
    if row.kernel_size is None:
        return True
    return kernel_size == (
        row.kernel_size * len(kernel_size) if len(row.kernel_size) == 1 else row.kernel_size
    )


def _has_widths(row: RateRow, pair: WidthPair) -> bool:
    """int8 and uint8 are equally fast, fp16 and bf16 too; weights that are unpacked to float count as that."""
    is_unpacked = pair.activation.is_float and not pair.weight.is_float
    weights = [pair.weight, *([pair.activation] if is_unpacked else [])]
    if row.w and not any(_is_alike(row.w, weight) for weight in weights):
        return False
    if row.a and not _is_alike(row.a, pair.activation):
        return False
    return row.compute is None or row.compute.name == pair.compute


def _is_alike(one: NumberFormat, other: NumberFormat) -> bool:
    return (one.bits, one.name in FLOATS) == (other.bits, other.name in FLOATS)


def _is_depthwise(row: RateRow) -> Iterator[bool]:
    return (name.startswith("dw") for name in row.op)


def _field(row: RateRow) -> str:
    return next(name for name in _ROW_FIGURES if getattr(row, name, None) is not None)


def _speed(row: RateRow, clock_hz: float) -> float:
    """More is faster, or takes less energy."""
    field = _field(row)
    value: float = getattr(row, field).value
    if field == "pj_per_mac":
        return -value
    return value * clock_hz if field == "macs_per_cycle" else value


def _named(row: RateRow) -> str:
    kernel = f" {'x'.join(map(str, row.kernel_size))}" if row.kernel_size else ""
    return f"{', '.join(row.op)}{kernel}"


def _specificity(row: RateRow) -> tuple[bool, ...]:
    """A row that names more wins; the operation counts most."""
    return (
        "*" not in row.op,
        row.kernel_size is not None,
        row.w is not None,
        row.a is not None,
        row.compute is not None,
    )
