"""Whether what a profile predicts for whole networks is what they take."""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from hwbmpq.costs.network import tabulate
from hwbmpq.costs.table import CostTable
from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware.profile import HardwareProfile, first_last_precision, op_of
from hwbmpq.measure import kit_runner
from hwbmpq.measure.operation_graphs import reference_graph
from hwbmpq.measure.summary import middle_mean
from hwbmpq.values import FLOAT_BITS, Layer, Precision

_WARM_UPS = 3

Exporter = Callable[[Mapping[str, Precision]], bytes]
"""From widths by layer to the ONNX graph that would be deployed."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a profile predicts for a network at some widths."""

    model: str
    widths: str
    """``W8A8``: what the layers between the ends have."""
    predicted_ms: float
    layers: int
    measured_layers: int
    """Layers that are in the table as they are; the others are estimated."""


@dataclass(frozen=True, kw_only=True)
class Candidate(Prediction):
    """A prediction, and the graph to time."""

    graph: bytes


@dataclass(frozen=True, kw_only=True)
class Comparison(Prediction):
    """A prediction beside the measured time."""

    measured_ms: float
    """At the clock of the profile's measurement, as the reference kernel tells it."""
    clocked_ms: float
    """As the clock on the wall had it."""
    spread: float
    """Standard deviation of the rounds, as a share."""

    @property
    def ratio(self) -> float:
        return self.predicted_ms / self.measured_ms

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True, kw_only=True)
class Validation:
    """All comparisons of one run."""

    comparisons: tuple[Comparison, ...]
    remarks: tuple[str, ...]

    @property
    def mean_absolute_error(self) -> float:
        """Of the ratios, as a share."""
        return statistics.fmean(abs(comparison.ratio - 1) for comparison in self.comparisons)

    def to_dict(self) -> dict[str, Any]:
        return {
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
            "mean_absolute_error": self.mean_absolute_error,
            "remarks": list(self.remarks),
        }


def allocation_at(
    layers: Sequence[Layer], profile: HardwareProfile, precision: Precision
) -> dict[str, Precision]:
    """Every layer at one precision, the ends at the profile's; all in float if that is asked for."""
    is_float = precision.weight_bits == precision.activation_bits == FLOAT_BITS
    return {
        layer.name: first_last_precision(profile, op_of(layer))
        if layer.is_end and not is_float
        else precision
        for layer in layers
    }


def predict(
    graph: Any, profile: HardwareProfile, allocation: Mapping[str, Precision]
) -> tuple[CostTable, float]:
    """The latency table of a network at exactly these widths, and its total in ms."""
    choices = {name: (precision,) for name, precision in allocation.items()}
    table = tabulate(graph, profile, costs=["latency"], choices=choices).table("latency")
    return table, float(table.total(allocation))


def candidate(
    graph: Any, profile: HardwareProfile, precision: Precision, *, model: str, exported: Exporter
) -> Candidate:
    """Predict a network, and export it."""
    allocation = allocation_at(list(graph), profile, precision)
    table, total = predict(graph, profile, allocation)
    return Candidate(
        model=model,
        widths=str(precision),
        predicted_ms=total,
        layers=len(allocation),
        measured_layers=len(allocation) - len(table.estimated),
        graph=exported(allocation),
    )


def validate(
    candidates: Sequence[Candidate],
    profile: HardwareProfile,
    *,
    rounds: int = 30,
    on_visit: Callable[[int, int], None] | None = None,
) -> Validation:
    """Time the networks in turns, the reference kernel before and after each, on as many threads as the profile has."""
    record = measurement_record(profile)
    with tempfile.TemporaryDirectory(prefix="hwbmpq-validate-") as name:
        (Path(name) / kit_runner.REFERENCE_FILE).write_bytes(reference_graph())
        for index, one in enumerate(candidates):
            (Path(name) / f"{index}.onnx").write_bytes(one.graph)
        with kit_runner.pinned(record["threads"]):
            times = _times(Path(name), len(candidates), record["threads"], rounds, on_visit)
    found = [_comparison(one, times[index], record["reference_us"]) for index, one in enumerate(candidates)]
    return Validation(comparisons=tuple(found), remarks=_remarks(record))


def _times(
    folder: Path, count: int, threads: int, rounds: int, on_visit: Callable[[int, int], None] | None
) -> list[list[tuple[float, float]]]:
    """For each network and round: its microseconds, and the reference's around it."""
    reference = kit_runner.Reference(folder, threads)
    sessions = [kit_runner.open_session(folder / f"{index}.onnx", threads) for index in range(count)]
    feeds = [kit_runner.inputs_of(session) for session in sessions]
    times: list[list[tuple[float, float]]] = [[] for _ in sessions]
    for done in range(-_WARM_UPS, rounds):
        for index, session in enumerate(sessions):
            before = reference.microseconds()
            tries: list[float] = []
            session.run(None, feeds[index])  # others have been in the caches
            least = kit_runner.undisturbed(partial(_timed_run, session, feeds[index], tries))
            around = (before + reference.microseconds()) / 2
            if done >= 0:
                times[index].append((tries[least], around))
                if on_visit is not None:
                    on_visit(done * count + index + 1, rounds * count)
    return times


def _timed_run(session: Any, feed: dict[str, Any], times: list[float]) -> None:
    times.append(kit_runner.wall_microseconds(session, feed))


def _comparison(one: Candidate, times: Sequence[tuple[float, float]], reference_us: float) -> Comparison:
    steady = [taken / around * reference_us / 1e3 for taken, around in times]
    predicted = {entry.name: getattr(one, entry.name) for entry in fields(Prediction)}
    return Comparison(
        **predicted,
        measured_ms=middle_mean(steady),
        clocked_ms=middle_mean([taken / 1e3 for taken, _ in times]),
        spread=statistics.pstdev(steady) / statistics.fmean(steady),
    )


def measurement_record(profile: HardwareProfile) -> dict[str, Any]:
    """How a profile's latencies were measured; an error if it was not by this package."""
    choice = profile.cost_models.get("latency")
    name = None if choice is None else choice.options.get("table")
    tables = [table for ident, table in profile.tables.items() if name in (None, ident)]
    record = tables[0].measurement if tables and choice is not None and choice.model == "lookup_table" else {}
    if not isinstance(record.get("reference_us"), float) or not isinstance(record.get("threads"), int):
        raise HwbmpqError(
            f"profile {profile.target!r} was not written by `hwbmpq targets measure` or `import`",
            hint="measure a profile of your own: hwbmpq targets measure NAME --model SPEC",
        )
    return {**record, "device": tables[0].device}


def measured_on_int32_accumulation(profile: HardwareProfile) -> bool:
    """Whether the processor that a profile was measured on adds products of bytes in 32 bits."""
    machine = measurement_record(profile).get("machine", {})
    return kit_runner.accumulates_in_int32(str(machine.get("machine", "")), list(machine.get("flags", ())))


def _remarks(record: Mapping[str, Any]) -> tuple[str, ...]:
    from_here = kit_runner.machine_facts()
    there = record.get("machine", {})
    names = [there.get(key) == from_here[key] for key in ("cpu", "runtime", "machine")]
    if all(names):
        return ()
    here = f"{from_here['cpu']}, {from_here['runtime']}"
    return (f"the profile was measured on {record['device']}, {there.get('runtime')}; this is {here}",)
