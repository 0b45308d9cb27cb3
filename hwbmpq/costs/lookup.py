"""Costs looked up in a table of measurements."""

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from hwbmpq.costs.figures import FigureLog
from hwbmpq.costs.geometry import positions, repeats
from hwbmpq.costs.latency import MS_PER_SECOND
from hwbmpq.costs.registry import register
from hwbmpq.costs.table import Candidates, CostRow, CostTable, FigureUse, Number, candidates_of
from hwbmpq.errors import UnsupportedLayerError
from hwbmpq.hardware.formats import WidthPair, parse_format
from hwbmpq.hardware.lookup_table import Entry, KeyValue, LookupTable
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import LookupTableRef
from hwbmpq.hardware.widths import WidthFinder, op_of
from hwbmpq.values import Layer, Precision

Miss = Literal["error", "nearest", "macs_scaled"]


@register("lookup_table")
class LookupTableCost(BaseModel):
    """Milliseconds (or microjoules) measured for each layer, from a table that the profile names.

    A layer that is not in the table is an error, takes the value of its nearest neighbour, or that value
    scaled by MACs; the neighbour has the same operation, kernel, groups and widths. A pair whose
    weights are unpacked (``compute``) is timed as what it is unpacked to if it has no entry of its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    unit: ClassVar[str] = "ms or uJ"
    formula: ClassVar[str] = "the entry for op, channels, kernel, stride, groups, output size, w and a"
    needs: ClassVar[tuple[str, ...]] = ("lookup_tables", "clock.core_hz (for a table in cycles)")
    table: str | None = None
    """Id of the table (default: the profile's only one)."""
    miss: Miss | None = None
    """What to do without an entry (default: what the profile says of the table)."""

    def tabulate(
        self, layers: Iterable[Layer], profile: HardwareProfile, precisions: Candidates
    ) -> CostTable:
        figures = FigureLog(profile, "lookup_table")
        ref, table = self._find(figures)
        factor = table.factor
        if table.unit == "cycles":
            factor = MS_PER_SECOND / figures.need("clock", "core_hz")
        miss = self.miss or ref.miss
        finder = WidthFinder(profile)
        costs: dict[str, dict[Precision, Number]] = {}
        origins: dict[str, dict[Precision, str]] = {}
        seen: dict[tuple[object, ...], tuple[float, str]] = {}  # networks repeat their layers
        for layer in layers:
            for precision in candidates_of(layer, precisions):
                runs = finder.execution(op_of(layer), precision)
                shape = (
                    layer.kind,
                    layer.weight_shape,
                    layer.input_shape,
                    layer.output_shape,
                    layer.stride,
                    layer.groups,
                )
                key = (*shape, layer.macs, layer.calls, runs.pair)
                if key not in seen:
                    seen[key] = _look_up(table, layer, runs.pair, miss)
                value, origin = seen[key]
                costs.setdefault(layer.name, {})[precision] = value * factor * repeats(layer)
                if runs.is_promoted:
                    origin = f"runs as {runs.pair.precision}; {origin}"
                origins.setdefault(layer.name, {})[precision] = origin
        use = FigureUse(
            path=f"lookup_tables.{ref.id}",
            value=len(table.entries),
            unit="entries",
            kind=ref.kind or "measured",
            sources=ref.src,
            note=f"{table.device}; {table.runtime}",
        )
        return CostTable(
            name="lookup_table",
            model="lookup_table",
            unit="uJ" if table.quantity == "energy" else "ms",
            rows=(CostRow(costs=costs),),
            figures=(use, *figures.used),
            origins=origins,
            notes=_notes(table, origins),
        )

    def _find(self, figures: FigureLog) -> tuple[LookupTableRef, LookupTable]:
        refs = figures.profile.lookup_tables
        chosen = [ref for ref in refs if self.table in (None, ref.id)]
        if not chosen:
            raise figures.missing(f"lookup table {self.table!r}" if self.table else "lookup_tables")
        if len(chosen) > 1:
            names = ", ".join(ref.id for ref in refs)
            raise figures.missing(f"choice of a lookup table (`table:` one of {names})")
        return chosen[0], figures.profile.tables[chosen[0].id]


def _notes(table: LookupTable, origins: dict[str, dict[Precision, str]]) -> tuple[str, ...]:
    notes = list(table.notes)
    if table.batch > 1:
        notes.append(f"measured and given for a batch of {table.batch}")
    guessed = sum(not origin.startswith("measured") for row in origins.values() for origin in row.values())
    total = sum(len(row) for row in origins.values())
    if guessed:
        notes.append(f"{guessed} of {total} numbers are not measured but taken from neighbours in the table")
    return tuple(notes)


def geometry(layer: Layer, pair: WidthPair) -> dict[str, KeyValue]:
    """What a table may key a layer by."""
    is_image = layer.kind.endswith("2d")
    in_h, in_w = layer.input_shape[-2:] if is_image else (1, 1)
    out_h, out_w = layer.output_shape[-2:] if is_image else (1, 1)
    return {
        "op": op_of(layer),
        "in_channels": layer.in_channels,
        "out_channels": layer.out_channels,
        "kernel_size": layer.kernel_size or (1, 1),
        "stride": layer.stride or (1, 1),
        "groups": layer.groups,
        "in_h": in_h,
        "in_w": in_w,
        "out_h": out_h,
        "out_w": out_w,
        "positions": positions(layer),
        "w_bits": pair.weight.bits,
        "a_bits": pair.activation.bits,
    }


def _look_up(table: LookupTable, layer: Layer, pair: WidthPair, miss: Miss) -> tuple[float, str]:
    """The value for one call of the layer, and where it comes from."""
    keys = [geometry(layer, pair)]
    compute_bits = parse_format(pair.compute).bits
    unpacked: dict[str, KeyValue] = {**keys[0], "w_bits": compute_bits, "a_bits": compute_bits}
    if unpacked != keys[0]:
        keys.append(unpacked)
    for key in keys:
        entry = table.exact(key)
        if entry is not None:
            return entry.value, "measured" + _timed_as(key, keys[0], pair)
    for key in keys:
        entry = table.nearest(key) if miss != "error" else None
        if entry is not None:
            value, how = _estimate(table, layer, key, entry, miss)
            return value, how + _timed_as(key, keys[0], pair)
    advice = "add a measured entry, or set `miss: macs_scaled` or `nearest` for the table"
    if miss != "error":
        advice = "the table has no entry of this operation, kernel, groups and widths at all"
    raise UnsupportedLayerError(
        f"layer {layer.name!r} is not in the lookup table of {table.device}: {table.shown(keys[0])}",
        hint=advice,
    )


def _timed_as(key: dict[str, KeyValue], own: dict[str, KeyValue], pair: WidthPair) -> str:
    return "" if key is own else f", timed as {pair.compute}: weights are unpacked"


def _estimate(
    table: LookupTable, layer: Layer, key: dict[str, KeyValue], entry: Entry, miss: Miss
) -> tuple[float, str]:
    macs = layer.macs // layer.calls
    sizes = [other.macs for other in table.neighbours(key)]
    beyond = "" if min(sizes) <= macs <= max(sizes) else ", extrapolated beyond the measured sizes"
    like = f"{entry.in_channels}→{entry.out_channels} channels"
    if "stride" in table.key and entry.stride != key["stride"]:
        like += " of another stride"
    if miss == "nearest":
        return entry.value, f"nearest: {like}{beyond}"
    return entry.value * macs / entry.macs, f"scaled by MACs from {like}{beyond}"
