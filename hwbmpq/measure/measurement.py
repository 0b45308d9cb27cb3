"""From the times of single rounds to one value for each kernel and each measured layer."""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hwbmpq.costs.interpolate import fit_nonnegative, leave_one_out
from hwbmpq.hardware.lookup_table import TableEntry
from hwbmpq.measure.kit_runner import FEWEST_ROUNDS
from hwbmpq.measure.operation_graphs import CHAINS, WARM_UPS
from hwbmpq.measure.programs import INTEGER_PROGRAMS, LAYOUTS, PROGRAMS, program_of, widened
from hwbmpq.measure.results import Geometry, Kernel, KernelTimes, NodeTimes, Results, ResultsError
from hwbmpq.values import Precision

DISTURBED = 1.25
"""A round is disturbed if the reference differs by this factor before and after it, or from its median."""
_SMALLEST_US = 0.1
_DIGITS = 4
_MOST_TRIED = 200
"""Entries on which estimates are tried: the time grows with their square."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTiming:
    """What one kernel takes."""

    us: float
    std: float
    count: int
    node: str
    """The node that takes most of it, as the runtime calls it."""


class Summary:
    """The times of one measurement, summed up.

    Times are scaled to the median speed of the reference kernel. Disturbed rounds are left out unless that leaves too
    few. A value is the mean of the middle half of the rounds: as robust as a median, and finer than the profiler's whole
    microseconds. What the profiler adds to each node is subtracted.
    """

    def __init__(self, results: Results) -> None:
        self.results = results
        marks = [us for group in results.rounds for round_ in group for us in round_]
        if not marks or min(map(len, results.rounds)) < FEWEST_ROUNDS:
            raise ResultsError(
                f"fewer than {FEWEST_ROUNDS} rounds were measured", hint="let the runner finish at least some"
            )
        self.reference_us = statistics.median(marks)

    @cached_property
    def _kept(self) -> list[list[tuple[int, float]]]:
        """For each group: the rounds that count, and the factor that scales their times to the median speed."""
        found = []
        for group in self.results.rounds:
            factors = [(index, self.reference_us * 2 / sum(marks)) for index, marks in enumerate(group)]
            steady = [(index, factor) for index, factor in factors if self._is_steady(group[index])]
            found.append(steady if len(steady) >= max(FEWEST_ROUNDS, len(group) // 3) else factors)
        return found

    def _is_steady(self, marks: tuple[float, float]) -> bool:
        extremes = (*marks, self.reference_us)
        return max(extremes) <= DISTURBED * min(extremes)

    @property
    def disturbed_share(self) -> float:
        """The share of all rounds that were disturbed."""
        rounds = [marks for group in self.results.rounds for marks in group]
        return sum(not self._is_steady(marks) for marks in rounds) / len(rounds)

    @cached_property
    def node_us(self) -> float:
        """What the runtime takes for any node, without the profiler."""
        short, long = (self._chain_us(length) for length in CHAINS)
        return max(0.0, (long - short) / (CHAINS[1] - CHAINS[0]))

    @cached_property
    def run_us(self) -> float:
        """What one call takes, whatever it computes."""
        return max(0.0, self._chain_us(CHAINS[0]) - CHAINS[0] * self.node_us)

    @cached_property
    def profiler_us(self) -> float:
        """What the profiler adds to a node."""
        return max(0.0, self._chain_us(CHAINS[1], is_wall=False) / CHAINS[1] - self.node_us)

    def _chain_us(self, length: int, *, is_wall: bool = True) -> float:
        for kernel in self.results.manifest.kernels:
            if kernel.chain == length and kernel.is_wall == is_wall and kernel.id in self.results.times:
                times = self.results.times[kernel.id]
                return middle_mean(self._rounds(times, times.ops.values()))
        raise ResultsError("the chains that the cost of a node follows from were not measured")

    def _rounds(self, times: KernelTimes, nodes: Collection[NodeTimes]) -> list[float]:
        """What some nodes of a kernel take together, in each round that counts."""
        return [sum(node.us[index] for node in nodes) * factor for index, factor in self._kept[times.group]]

    def timing(self, kernel: Kernel, leaves_out: frozenset[str]) -> KernelTiming | None:
        """What a kernel's nodes take, except some; None if it was not measured or nothing is left."""
        times = self.results.times.get(kernel.id)
        counted = {op: node for op, node in times.ops.items() if op not in leaves_out} if times else {}
        if times is None or not counted:
            return None
        rounds = self._rounds(times, counted.values())
        added = self.profiler_us * sum(node.nodes for node in counted.values())
        return KernelTiming(
            us=max(_SMALLEST_US, middle_mean(rounds) - added),
            std=statistics.pstdev(rounds),
            count=len(rounds),
            node=max(counted, key=lambda op: statistics.median(counted[op].us)),
        )

    def layer_timing(self, kernel: Kernel) -> KernelTiming | None:
        """What a layer takes among others that the same program runs."""
        program = PROGRAMS[str(kernel.program)]
        times = self.results.times.get(kernel.id)
        if program in INTEGER_PROGRAMS and times is not None and not any(map(is_integer_kernel, times.ops)):
            return self.timing(kernel, LAYOUTS)  # no integer kernel: converting is part of it
        return self.timing(kernel, program.leaves_out)

    def operation_points(self, name: str, op: str | None = None) -> list[tuple[int, float]]:
        """Elements and microseconds of an operation at each size; of one kind of node if given."""
        points = []
        for kernel in self.results.manifest.kernels:
            if kernel.operation == name and kernel.id in self.results.times:
                others = frozenset(self.results.times[kernel.id].ops) - {op} if op else frozenset()
                timing = self.timing(kernel, LAYOUTS | set(WARM_UPS) | others)
                if timing is not None:
                    points.append((kernel.elements or 1, timing.us))
        return points


@dataclass(frozen=True, kw_only=True)
class MeasuredLayer:
    """A layer that a program ran, and how long it took."""

    program: str
    geometry: Geometry
    timing: KernelTiming

    def table_entry(self, precision: Precision) -> dict[str, Any]:
        """The layer at one of the pairs of widths that its program runs, as a lookup table lists it."""
        note = widened(precision)
        return {
            **self.geometry.model_dump(),
            "w_bits": precision.weight_bits,
            "a_bits": precision.activation_bits,
            "value": rounded(self.timing.us),
            "std": rounded(self.timing.std),
            "count": self.timing.count,
            "kernel": self.timing.node,
            **({"note": note} if note else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All that a table and a profile are made of."""

    results: Results
    summary: Summary
    layers: tuple[MeasuredLayer, ...]

    @classmethod
    def of(cls, results: Results) -> "Measurement":
        """Sum up results; an error if no layer was measured."""
        summary = Summary(results)
        found = []
        for kernel in results.manifest.kernels:
            timing = summary.layer_timing(kernel) if kernel.geometry is not None else None
            if kernel.geometry is not None and timing is not None:
                program = str(kernel.program)
                found.append(MeasuredLayer(program=program, geometry=kernel.geometry, timing=timing))
        if not found:
            failure = next((f"the runtime's message: {text}" for text in results.failed.values()), "")
            raise ResultsError("no layer was measured", hint=failure)
        return cls(results=results, summary=summary, layers=tuple(found))

    def program_name(self, op: str, precision: Precision) -> str:
        """The program that runs an operation at these widths on this machine; "" if none does."""
        accumulates_int32 = self.results.machine.accumulates_int32
        program = program_of(op, precision, accumulates_int32=accumulates_int32)
        return "" if program is None else program.name

    def precisions(self, op: str) -> tuple[Precision, ...]:
        """The requested widths that some layer of this operation was measured at."""
        programs = {layer.program for layer in self.layers if layer.geometry.op == op}
        requested = self.results.manifest.precisions
        return tuple(precision for precision in requested if self.program_name(op, precision) in programs)

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(layer.geometry.op for layer in self.layers))

    @property
    def rounds(self) -> int:
        """The most that any group of kernels has: fewer than requested after an interruption."""
        return max(map(len, self.results.rounds))

    @property
    def fewest_rounds(self) -> int:
        """The fewest that any group of kernels has."""
        return min(map(len, self.results.rounds))

    @property
    def missing(self) -> int:
        """Kernels that an interruption left out."""
        results = self.results
        return len(results.manifest.kernels) - len(results.times) - len(results.failed)

    @cached_property
    def estimate_errors(self) -> dict[str, float]:
        """By program: the median relative error for a layer that is estimated from all others."""
        errors = {}
        for program in PROGRAMS:
            runs = [p for p in self.results.manifest.precisions if self.program_name("linear", p) == program]
            layers = [layer for layer in self.layers if layer.program == program]
            if runs and layers:
                tried = [layers[index] for index in evenly_spaced(len(layers), _MOST_TRIED)]
                unrounded = [{**layer.table_entry(runs[0]), "value": layer.timing.us} for layer in tried]
                misses = leave_one_out([TableEntry.model_validate(entry) for entry in unrounded])
                if misses:
                    errors[program] = rounded(statistics.median(misses))
        return errors


def evenly_spaced(count: int, most: int) -> list[int]:
    """At most ``most`` of the indices below ``count``, the first and the last among them.

    >>> evenly_spaced(7, 3)
    [0, 3, 6]
    """
    if count <= most:
        return list(range(count))
    return [index * (count - 1) // (most - 1) for index in range(most)]


def is_integer_kernel(op: str) -> bool:
    """Whether a node computes in integers: QLinearConv, QGemm, MatMulIntegerToFloat …"""
    return op not in ("QuantizeLinear", "DequantizeLinear") and (op.startswith("Q") or "Integer" in op)


def middle_mean(values: Sequence[float]) -> float:
    """The mean of the middle half.

    >>> middle_mean([1, 2, 4, 900])
    3.0
    """
    ordered = sorted(values)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def fit_line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """``fixed`` and ``per_element``, neither negative, with the least squared relative error."""
    per_element, fixed = fit_nonnegative([((float(elements), 1.0), us) for elements, us in points])
    return fixed, per_element


def rounded(value: float) -> float:
    """As precise as a measured value is."""
    return float(f"{value:.{_DIGITS}g}")
