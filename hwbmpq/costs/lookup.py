"""Costs looked up in a table of measurements."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from hwbmpq.costs.between_layers import BetweenLayers
from hwbmpq.costs.geometry import calls_of, positions, repeats
from hwbmpq.costs.interpolate import Interpolator, shape_of
from hwbmpq.costs.model import MS_PER_SECOND, CostOptions, FigureLog, register, sourced_use
from hwbmpq.costs.per_layer import cost_layers, over_calls, with_estimates, with_work_outside
from hwbmpq.costs.table import Candidates, CostTable, Layers, Number
from hwbmpq.errors import UnsupportedLayerError
from hwbmpq.hardware.lookup_table import KeyValue, LookupTable, TableEntry
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import LookupTableRef, WidthPair, parse_format
from hwbmpq.hardware.widths import op_of
from hwbmpq.values import Layer, Precision

Miss = Literal["error", "nearest", "macs_scaled", "interpolated"]


@dataclass(frozen=True, slots=True)
class _Found:
    """A value for one call of a layer, and how far it is a measurement of that layer."""

    value: float
    origin: str
    is_neighbour: bool = False
    is_other_width: bool = False
    is_extrapolated: bool = False


@register("lookup_table")
class LookupTableCost(CostOptions):
    """Milliseconds (or microjoules) for one input, measured layer by layer in a table that the profile names.

    A layer that is not in the table has no figure (``error``), takes the value of its nearest neighbour, or that value
    scaled by MACs; the neighbour has the same operation, kernel, groups and widths. ``interpolated``: from several
    of the same operation and widths, which is also what happens without such a neighbour. If no entry has the
    operation, the one of the same widths with the nearest number of MACs is scaled. A pair whose weights are unpacked
    (``compute``) is timed as what it is unpacked to if it has no entry of its own. A table with ``overheads`` adds
    what is between the layers.
    """

    unit: ClassVar[str] = "ms or uJ"
    formula: ClassVar[str] = (
        "the entry for op, channels, kernel, stride, groups, output size, w and a; / batch"
    )
    needs: ClassVar[tuple[str, ...]] = ("lookup_tables", "clock.core_hz (for a table in cycles)")
    table: str | None = None
    """Id of the table (default: the profile's only one)."""
    miss: Miss | None = None
    """What to do without an entry (default: what the profile says of the table)."""
    per: Literal["input", "batch"] = "input"
    """A table measured with a batch: its share for one input, or the whole batch."""

    def tabulate(self, layers: Layers, profile: HardwareProfile, precisions: Candidates) -> CostTable:
        layers = layers if isinstance(layers, Collection) else list(layers)
        figures = FigureLog(profile, "lookup_table")
        ref, table = self._find(figures)
        origin = f"{table.device}; {table.runtime}"
        figures.constant(sourced_use(f"lookup_tables.{ref.id}", ref, len(table.entries), "entries", origin))
        unit = "uJ" if table.quantity == "energy" else "ms"
        factor = MS_PER_SECOND / figures.need("clock", "core_hz") if table.unit == "cycles" else table.factor
        factor /= table.batch if self.per == "input" else 1
        reader = _Reader(table, self.miss or ref.miss)
        between = BetweenLayers.of(table, layers, precisions)

        measured = over_calls(lambda call, pair: reader.look_up(call, pair) * repeats(call))

        def cost(layer: Layer, pair: WidthPair) -> Number:
            more = between.boundary(layer, pair) if between else 0.0
            return (measured(layer, pair) + more) * factor

        costs = cost_layers(
            *("lookup_table", unit, layers, profile, precisions, cost, reader.origin), needs_kernel=True
        )
        if not (between and between.knows_products):
            costs = with_work_outside(costs, layers, profile, None)
        notes = [*table.notes, *self._batch_note(table), *reader.notes]
        if between:
            row = replace(costs.rows[0], constant=between.constant * factor)
            amount = f"{row.constant:.3g} {unit}"
            findings = _equal_widths(row.costs)
            notes += [f"{amount} of every total is for the call and for operations between the layers"]
            notes += [*between.notes, *findings]
            estimated = between.estimated_constant * factor
            costs = replace(costs, rows=(row,), findings=findings, estimated_constant=estimated)
        costs = with_estimates(costs, layers, profile, precisions, reader.is_estimate)
        return replace(costs, figures=figures.used, notes=tuple(notes))

    def _find(self, figures: FigureLog) -> tuple[LookupTableRef, LookupTable]:
        refs = figures.profile.lookup_tables
        chosen = [ref for ref in refs if self.table in (None, ref.id)]
        if not chosen:
            raise figures.missing(f"lookup table {self.table!r}" if self.table else "lookup_tables")
        if len(chosen) > 1:
            names = ", ".join(ref.id for ref in refs)
            raise figures.missing(f"choice of a lookup table (`table:` one of {names})")
        return chosen[0], figures.profile.tables[chosen[0].id]

    def _batch_note(self, table: LookupTable) -> tuple[str, ...]:
        if table.batch == 1:
            return ()
        if self.per == "batch":
            return (f"measured and given for a batch of {table.batch}",)
        return (
            f"measured with a batch of {table.batch}, given for one input of it; alone, an input takes longer",
        )


def _equal_widths(costs: Mapping[str, Mapping[Precision, Number]]) -> tuple[str, ...]:
    """Widths that one kernel runs, in all layers that have a choice."""
    by_precision: dict[Precision, list[Number]] = {}
    for choices in (choices for choices in costs.values() if len(choices) > 1):
        for precision, value in choices.items():
            by_precision.setdefault(precision, []).append(value)
    alike: dict[tuple[Number, ...], list[Precision]] = {}
    for precision, values in sorted(by_precision.items()):
        alike.setdefault(tuple(values), []).append(precision)
    return tuple(
        f"{' and '.join(map(str, same))} take the same time in every layer: between them, fewer bits buy size, not time"
        for same in alike.values()
        if len(same) > 1
    )


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
        "dilation": layer.dilation or (1, 1),
        "groups": layer.groups,
        "in_h": in_h,
        "in_w": in_w,
        "out_h": out_h,
        "out_w": out_w,
        "positions": positions(layer),
        "w_bits": pair.weight.bits,
        "a_bits": pair.activation.bits,
    }


class _Reader:
    """Looks layers up in one table and counts what it had to estimate."""

    def __init__(self, table: LookupTable, miss: Miss) -> None:
        self._table = table
        self._miss = miss
        self._seen: dict[tuple[object, ...], _Found] = {}  # networks repeat their layers
        self._interpolators: dict[tuple[KeyValue, KeyValue], Interpolator] = {}
        self._given: list[_Found] = []

    def look_up(self, layer: Layer, pair: WidthPair) -> float:
        """The value for one call of a layer; counted in the notes."""
        found = self._remembered(layer, pair)
        self._given.append(found)
        return found.value

    def origin(self, layer: Layer, pair: WidthPair) -> str:
        """Where the values of its calls come from."""
        return "; ".join(dict.fromkeys(self._remembered(call, pair).origin for call, _ in calls_of(layer)))

    def _remembered(self, layer: Layer, pair: WidthPair) -> _Found:
        shape = (layer.kind, layer.weight_shape, layer.input_shape, layer.output_shape, layer.stride)
        key = (*shape, layer.dilation, layer.groups, layer.macs, layer.calls, pair)
        if key not in self._seen:
            self._seen[key] = self._find(layer, pair)
        return self._seen[key]

    def is_estimate(self, layer: Layer, pair: WidthPair) -> bool:
        """Whether one of its values is not a measurement of the layer itself."""
        return any(self._remembered(call, pair).is_neighbour for call, _ in calls_of(layer))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not a measurement of the layer itself."""
        given = self._given
        counts = {
            "are taken from neighbours in the table": sum(found.is_neighbour for found in given),
            "lie beyond the measured sizes": sum(found.is_extrapolated for found in given),
            "are timed at another width, as the kernel that unpacks them": sum(
                found.is_other_width for found in given
            ),
        }
        return tuple(f"{count} of {len(given)} numbers {what}" for what, count in counts.items() if count)

    def _find(self, layer: Layer, pair: WidthPair) -> _Found:
        own = geometry(layer, pair)
        compute_bits = parse_format(pair.compute).bits
        unpacked: dict[str, KeyValue] = {**own, "w_bits": compute_bits, "a_bits": compute_bits}
        # A kernel of the user's own takes the time that it takes: only existing ones are known to unpack.
        keys = [own] if unpacked == own or pair.kernel == "user" else [own, unpacked]
        for search in (self._measured, self._estimated):
            for key in keys:
                found = search(layer, key)
                if found is not None and key is own:
                    return found
                if found is not None:
                    origin = f"{found.origin}, timed as {pair.compute}: weights are unpacked"
                    return replace(found, origin=origin, is_other_width=True)
        advice = "add a measured entry, or set `miss: macs_scaled` or `nearest` for the table"
        if self._miss != "error":
            advice = "the table has no entry of this kind and these widths at all"
        raise UnsupportedLayerError(
            f"layer {layer.name!r} is not in the lookup table of {self._table.device}: {self._table.shown(own)}",
            hint=advice,
        )

    def _measured(self, layer: Layer, key: dict[str, KeyValue]) -> _Found | None:
        entry = self._table.exact(key)
        # A key that leaves out tokens, batch or dilation would otherwise match a larger or slower layer.
        is_plain = "dilation" in self._table.key or set(layer.dilation) <= {1}
        if entry is None or not is_plain or entry.macs != layer.macs // layer.calls:
            return None
        return _Found(entry.value, f"measured, {entry.note}" if entry.note else "measured")

    def _estimated(self, layer: Layer, key: dict[str, KeyValue]) -> _Found | None:
        if self._miss == "error":
            return None
        entry = None if self._miss == "interpolated" else self._table.nearest(key)
        if entry is not None:
            return self._scaled(layer, key, entry)
        return self._interpolated(layer, key) or self._of_another_kind(layer, key)

    def _interpolated(self, layer: Layer, key: dict[str, KeyValue]) -> _Found | None:
        shape = shape_of(key, layer.macs // layer.calls)
        widths = (key["w_bits"], key["a_bits"])
        if widths not in self._interpolators:
            same = [entry for entry in self._table.entries if (entry.w_bits, entry.a_bits) == widths]
            self._interpolators[widths] = Interpolator(same)
        found = None if shape is None else self._interpolators[widths].estimate(shape)
        if found is None:
            return None
        near = found.nearest
        how = f"interpolated, the nearest has {near.in_channels}→{near.out_channels} channels"
        if near.kernel_size is not None and near.kernel_size != key["kernel_size"]:
            how += f" and a kernel of {'x'.join(map(str, near.kernel_size))}"
        how += f", {found.nearest.note}" if found.nearest.note else ""
        how += ", far from what was measured" if found.is_far else ""
        return _Found(found.value, how, is_neighbour=True, is_extrapolated=found.is_far)

    def _of_another_kind(self, layer: Layer, key: dict[str, KeyValue]) -> _Found | None:
        """Scaled by MACs from the entry of the same widths with about as many, of the same operation if there is one.

        Depthwise layers take longer for their MACs than others, and are scaled from their like only.
        """
        widths = (key["w_bits"], key["a_bits"])
        same = [entry for entry in self._table.entries if (entry.w_bits, entry.a_bits) == widths]
        is_depthwise = str(key["op"]).startswith("dw")
        same = [entry for entry in same if entry.op.startswith("dw") or not is_depthwise]
        same = [entry for entry in same if entry.op == key["op"]] or same
        macs = layer.macs // layer.calls
        if not same or not macs:
            return None
        entry = min(same, key=lambda entry: abs(math.log(entry.macs / macs)))
        how = f"scaled by MACs from {entry.op} {'x'.join(map(str, entry.kernel_size or (1, 1)))}"
        return _Found(entry.value * macs / entry.macs, how, is_neighbour=True, is_extrapolated=True)

    def _scaled(self, layer: Layer, key: dict[str, KeyValue], entry: TableEntry) -> _Found:
        macs = layer.macs // layer.calls
        sizes = [other.macs for other in self._table.neighbours(key)]
        is_beyond = not min(sizes) <= macs <= max(sizes)
        like = f"{entry.in_channels}→{entry.out_channels} channels"
        if "stride" in self._table.key and entry.stride != key["stride"]:
            like += " of another stride"
        if self._miss == "nearest":
            value, how = entry.value, f"nearest: {like}"
        else:
            value, how = entry.value * macs / entry.macs, f"scaled by MACs from {like}"
        beyond = ", extrapolated beyond the measured sizes" if is_beyond else ""
        return _Found(value, how + beyond, is_neighbour=True, is_extrapolated=is_beyond)
