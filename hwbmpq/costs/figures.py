"""Figures of a profile as cost models read them: asked for by name, remembered, never replaced by a default."""

from pydantic import BaseModel

from hwbmpq.costs.table import Capacity, FigureUse
from hwbmpq.errors import MissingFigureError
from hwbmpq.hardware.formats import WidthPair
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import Figure, MemoryLevel, RateRow, quantity_of

_ROW_FIGURES = ("macs_per_cycle", "macs_per_s", "pj_per_mac")


class FigureLog:
    """Hands out the figures of one profile to one cost model and keeps the list of what was used."""

    def __init__(self, profile: HardwareProfile, cost_model: str) -> None:
        self.profile = profile
        self.cost_model = cost_model
        self._used: dict[str, FigureUse] = {}

    @property
    def used(self) -> tuple[FigureUse, ...]:
        return tuple(self._used.values())

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
        quantity = quantity_of(type(owner).model_fields[field])
        self._used[path] = FigureUse(
            path=path,
            value=figure.value,
            unit=quantity.dimension.unit if quantity else "",
            kind=figure.kind or "",
            sources=figure.src,
            note=figure.note or "",
            is_doubtful=figure.is_doubtful,
        )
        return figure.value


def _fits(row: RateRow, op: str, kernel_size: tuple[int, ...], pair: WidthPair) -> bool:
    if "*" not in row.op and op not in row.op:
        return False
    if row.kernel_size is not None:
        wanted = row.kernel_size * len(kernel_size) if len(row.kernel_size) == 1 else row.kernel_size
        if wanted != kernel_size:
            return False
    formats = ((row.w, pair.weight), (row.a, pair.activation))
    if any(asked and (asked.bits, asked.is_float) != (has.bits, has.is_float) for asked, has in formats):
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
