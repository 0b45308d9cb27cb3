"""Every layer at every candidate, and what is computed outside of layers: numbers, or that there is no figure."""

from collections.abc import Callable, Collection
from dataclasses import replace

from hwbmpq.costs.geometry import calls_of
from hwbmpq.costs.outside import IN_FLOAT, float_work, outside, uncosted_outside
from hwbmpq.costs.table import Candidates, CostRow, CostTable, Number, Uncosted, candidates_of
from hwbmpq.errors import HwbmpqError, MissingFigureError, UnsupportedLayerError, UnsupportedPrecisionError
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import WidthPair
from hwbmpq.hardware.widths import Execution, WidthFinder, op_of
from hwbmpq.values import Layer, Precision

LayerCost = Callable[[Layer, WidthPair], Number]
IsEstimate = Callable[[Layer, WidthPair], object]
"""Whether a number is an estimate: anything true, such as a text that says how."""
NO_FIGURE = (MissingFigureError, UnsupportedLayerError, UnsupportedPrecisionError)
_MEMORY, _WORK = "bit", ("ms", "uJ")


def over_calls(cost: LayerCost) -> LayerCost:
    """The cost of a layer from that of its calls, each at its own size; one that computes nothing costs nothing."""

    def add(layer: Layer, pair: WidthPair) -> Number:
        return sum(count * cost(call, pair) for call, count in calls_of(layer)) if layer.macs else 0

    return add


def cost_layers(
    name: str,
    unit: str,
    layers: Collection[Layer],
    profile: HardwareProfile,
    precisions: Candidates,
    cost: LayerCost,
    origin_of: Callable[[Layer, WidthPair], str],
    *,
    needs_kernel: bool = False,
) -> CostTable:
    """Every layer at every candidate: a number, and where it comes from, for the pair that really runs.

    A layer that has no figure at one of its candidates is left out altogether: the solver would otherwise prefer the
    width without a cost. If that is so of all layers, the first reason is raised. ``needs_kernel``: a pair that is
    only stored has no figure.
    """
    finder = WidthFinder(profile)
    found = CostTable(name=name, model=name, unit=unit, rows=())
    costs: dict[str, dict[Precision, Number]] = {}
    origins: dict[str, dict[Precision, str]] = {}
    promotions: dict[Precision, Precision] = {}
    missing: dict[str, HwbmpqError] = {}
    for layer in layers:
        try:
            runs = {p: finder.execution_of(layer, p) for p in candidates_of(layer, precisions)}
            if needs_kernel and layer.macs:
                _check_kernels(layer, runs, profile)
            costs[layer.name] = {precision: cost(layer, run.pair) for precision, run in runs.items()}
        except NO_FIGURE as error:
            if unit == _MEMORY:
                raise
            missing[layer.name] = error
            continue
        origins |= _origins(layer, runs, origin_of)
        promotions |= {precision: run.pair.precision for precision, run in runs.items() if run.is_promoted}
    if missing and not any(layer.macs and layer.name in costs for layer in layers):
        raise next(iter(missing.values()))
    return replace(
        found,
        rows=(CostRow(costs=costs),),
        origins=origins,
        promotions=promotions,
        uncosted=_uncosted(layers, missing),
    )


def with_estimates(
    table: CostTable,
    layers: Collection[Layer],
    profile: HardwareProfile,
    precisions: Candidates,
    is_estimate: IsEstimate,
) -> CostTable:
    """The same with the layers and precisions whose number is an estimate."""
    finder = WidthFinder(profile)
    found: dict[str, tuple[Precision, ...]] = {}
    for layer in (layer for layer in layers if layer.macs and layer.name in table.rows[0].costs):
        choices = candidates_of(layer, precisions)
        at = tuple(p for p in choices if is_estimate(layer, finder.execution_of(layer, p).pair))
        if at:
            found[layer.name] = at
    return replace(table, estimated=tuple(found), estimated_at=found)


def _check_kernels(layer: Layer, runs: dict[Precision, Execution], profile: HardwareProfile) -> None:
    stored = [str(precision) for precision, run in runs.items() if run.is_stored_only]
    if stored:
        raise UnsupportedPrecisionError(
            f"layer {layer.name!r}: profile {profile.target!r} has no kernel for {op_of(layer)} at {', '.join(stored)}"
        )


def _origins(
    layer: Layer, runs: dict[Precision, Execution], origin_of: Callable[[Layer, WidthPair], str]
) -> dict[str, dict[Precision, str]]:
    found = {}
    for precision, run in runs.items():
        promoted = f"{precision} runs as {run.pair.precision}" if run.is_promoted else ""
        origin = "; ".join(filter(None, [promoted, origin_of(layer, run.pair)]))
        if origin:
            found[precision] = origin
    return {layer.name: found} if found else {}


def _uncosted(layers: Collection[Layer], missing: dict[str, HwbmpqError]) -> tuple[Uncosted, ...]:
    macs = network_macs(layers)
    return tuple(
        Uncosted(
            name=layer.name, why=_reason(missing[layer.name]), macs=layer.macs, share=_share(layer.macs, macs)
        )
        for layer in layers
        if layer.name in missing
    )


def _reason(error: HwbmpqError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


def _share(macs: int, of: int) -> float:
    return macs / of if of else 0.0


def network_macs(layers: Collection[Layer]) -> int:
    """All that the network computes, as far as that is known."""
    found: int = getattr(layers, "macs", 0)
    return found or sum(layer.macs for layer in layers)


def with_work_outside(
    table: CostTable,
    layers: Collection[Layer],
    profile: HardwareProfile,
    cost: LayerCost | None,
    is_estimate: IsEstimate = lambda layer, pair: False,
) -> CostTable:
    """The same with what is computed outside of layers, in float, if ``cost`` has a figure for that.

    Without a cost function the model knows layers only; of time and energy the rest is then uncosted.
    """
    work = float_work(layers)
    if work is None or (cost is None and table.unit not in _WORK):
        return table
    try:
        if cost is None:
            raise UnsupportedLayerError(f"the cost model {table.name!r} knows layers only")
        run = WidthFinder(profile).execution(op_of(work), IN_FLOAT)
        if run.is_stored_only and table.unit in _WORK:
            raise UnsupportedPrecisionError(f"profile {profile.target!r} has no kernel in float")
        amount = cost(work, run.pair)
    except NO_FIGURE as error:
        more = uncosted_outside(layers, _reason(error), network_macs(layers))
        return replace(table, uncosted=(*table.uncosted, *more))
    places = ", ".join(entry.name for entry in outside(layers)[:3])
    note = f"computed outside of layers, in float: {work.macs / network_macs(layers):.1%} of the MACs ({places}…)"
    row = replace(table.rows[0], constant=table.rows[0].constant + amount)
    estimated = amount if is_estimate(work, run.pair) else 0
    return replace(table, rows=(row,), notes=(*table.notes, note), estimated_constant=estimated)
