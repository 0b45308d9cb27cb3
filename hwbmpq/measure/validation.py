"""What a profile predicts for whole networks, compared with what they take."""

import copy
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hwbmpq.costs.network import tabulate
from hwbmpq.errors import HwbmpqError
from hwbmpq.export import onnx_graph
from hwbmpq.graph import LayerGraph
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.widths import first_last_precision, op_of
from hwbmpq.measure import kit_runner
from hwbmpq.measure.measurement import middle_mean
from hwbmpq.measure.operation_graphs import reference_graph
from hwbmpq.quant import assign, prepare
from hwbmpq.values import FLOAT_BITS, Precision

_WARM_UPS = 3


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a profile predicts for a network at some widths."""

    model: str
    widths: str
    """``W8A8``: of all layers except the first and the last."""
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
    """Scaled to the clock speed of the profile's measurement, which the reference kernel shows."""
    clocked_ms: float
    """As it was, in wall-clock time."""
    spread: float
    """Relative standard deviation of the rounds."""

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
        """How far the ratios are from 1."""
        return statistics.fmean(abs(comparison.ratio - 1) for comparison in self.comparisons)

    def to_dict(self) -> dict[str, Any]:
        return {
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
            "mean_absolute_error": self.mean_absolute_error,
            "remarks": list(self.remarks),
        }


def candidate(
    graph: LayerGraph,
    profile: HardwareProfile,
    precision: Precision,
    *,
    model: str,
    exported: Callable[[Mapping[str, Precision]], bytes],
) -> Candidate:
    """Predict a network at one precision, its first and last layers at the profile's, and export it.

    ``exported`` makes the ONNX graph that would be deployed from the widths of the layers.
    """
    is_float = precision.weight_bits == precision.activation_bits == FLOAT_BITS
    allocation = {
        layer.name: first_last_precision(profile, op_of(layer))
        if layer.is_end and not is_float
        else precision
        for layer in graph
    }
    choices = {name: (width,) for name, width in allocation.items()}
    table = tabulate(graph, profile, costs=["latency"], choices=choices).table("latency")
    return Candidate(
        model=model,
        widths=str(precision),
        predicted_ms=float(table.total(allocation)),
        layers=len(allocation),
        measured_layers=len(allocation) - len(table.estimates(allocation)),
        graph=exported(allocation),
    )


def deployed_graph(
    network: nn.Module,
    graph: LayerGraph,
    widths: Mapping[str, Precision],
    example_input: Tensor,
    *,
    accumulates_int32: bool = False,
) -> bytes:
    """The graph for ONNX Runtime's integer kernels; the network is left as it was.

    Weights may be random: times do not depend on them.
    """
    quantized = copy.deepcopy(network).eval()
    prepare(quantized, graph, per_channel=True)
    assign(quantized, widths)
    with torch.no_grad():
        quantized(example_input)  # ranges of activations
    return onnx_graph(quantized, example_input, form="int8", accumulates_int32=accumulates_int32).content


def exported_candidate(
    model: Any, graph: LayerGraph, profile: HardwareProfile, precision: Precision
) -> Candidate:
    """A network that ``hwbmpq.models`` loaded, predicted and exported at one precision."""
    example = model.example_input()
    machine = measurement_record(profile).get("machine", {})
    accumulates_int32 = kit_runner.accumulates_in_int32(
        str(machine.get("machine", "")), list(machine.get("flags", ()))
    )

    def exported(widths: Mapping[str, Precision]) -> bytes:
        return deployed_graph(model.network, graph, widths, example, accumulates_int32=accumulates_int32)

    return candidate(graph, profile, precision, model=model.title, exported=exported)


def validate(
    candidates: Sequence[Candidate],
    profile: HardwareProfile,
    *,
    rounds: int = 30,
    on_visit: kit_runner.Progress | None = None,
) -> Validation:
    """Time the networks in turns, each between two runs of the reference kernel, on as many threads as the profile."""
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
    folder: Path, count: int, threads: int, rounds: int, on_visit: kit_runner.Progress | None
) -> list[list[tuple[float, float]]]:
    """For each network and round: its microseconds, and the reference's around it."""
    reference = kit_runner.Reference(folder, threads)
    sessions = [kit_runner.open_session(folder / f"{index}.onnx", threads) for index in range(count)]
    feeds = [kit_runner.inputs_of(session) for session in sessions]
    times: list[list[tuple[float, float]]] = [[] for _ in sessions]
    for done in range(-_WARM_UPS, rounds):
        for index, session in enumerate(sessions):
            before = reference.microseconds()
            session.run(None, feeds[index])  # others have been in the caches
            taken = kit_runner.undisturbed(partial(kit_runner.wall_microseconds, session, feeds[index]))
            around = (before + reference.microseconds()) / 2
            if done >= 0:
                times[index].append((taken, around))
                if on_visit is not None:
                    on_visit(done * count + index + 1, rounds * count)
    return times


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


def _remarks(record: Mapping[str, Any]) -> tuple[str, ...]:
    here, there = kit_runner.machine_facts(), record.get("machine", {})
    if all(there.get(key) == here[key] for key in ("cpu", "runtime", "machine")):
        return ()
    device = f"{record['device']}, {there.get('runtime')}"
    return (f"the profile was measured on {device}; this is {here['cpu']}, {here['runtime']}",)
