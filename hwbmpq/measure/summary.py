"""From the times of single rounds to one value for each kernel."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hwbmpq.costs.interpolate import fit_nonnegative
from hwbmpq.measure.kit_runner import FEWEST_ROUNDS
from hwbmpq.measure.operation_graphs import CHAINS, WARM_UPS
from hwbmpq.measure.programs import INTEGER_PROGRAMS, LAYOUTS, PROGRAMS
from hwbmpq.measure.results import KernelEntry, Results, ResultsError

DISTURBED = 1.25
"""A round is disturbed if the reference differs by this factor before and after it, or from its median."""
_SMALLEST_US = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTiming:
    """What one kernel takes."""

    us: float
    std: float
    count: int
    kernel: str
    """The node that takes most of it, as the runtime calls it."""


class Summary:
    """Reads the results of one measurement.

    Times are brought to the median speed of the reference kernel. Disturbed rounds are left out unless that leaves too
    few. A value is the mean of the middle half of the rounds: as robust as a median, and finer than the profiler's whole
    microseconds. What the profiler adds to each node is taken off again.
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
        """For each group: the rounds that count, and what brings their times to the median speed."""
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
        """Of all rounds."""
        rounds = [marks for group in self.results.rounds for marks in group]
        return sum(not self._is_steady(marks) for marks in rounds) / len(rounds)

    @cached_property
    def node_us(self) -> float:
        """What the runtime takes for any node, without the profiler."""
        short, long = (self._wall(length) for length in CHAINS)
        return max(0.0, (long - short) / (CHAINS[1] - CHAINS[0]))

    @cached_property
    def run_us(self) -> float:
        """What one call takes, whatever it computes."""
        return max(0.0, self._wall(CHAINS[0]) - CHAINS[0] * self.node_us)

    @cached_property
    def profiler_us(self) -> float:
        """What the profiler adds to a node."""
        entry = self._chain(CHAINS[1], is_wall=False)
        return max(0.0, self._middle(entry, self._rows(entry)) / CHAINS[1] - self.node_us)

    def _wall(self, length: int) -> float:
        entry = self._chain(length, is_wall=True)
        return self._middle(entry, self._rows(entry))

    def _chain(self, length: int, *, is_wall: bool) -> KernelEntry:
        for entry in self.results.manifest.kernels:
            if entry.chain == length and entry.is_wall == is_wall and entry.id in self.results.times:
                return entry
        raise ResultsError("the chains that tell the cost of a node were not measured")

    def _rows(self, entry: KernelEntry, leaves_out: frozenset[str] = frozenset()) -> list[Sequence[float]]:
        ops = self.results.times[entry.id].ops
        return [times.us for op, times in ops.items() if op not in leaves_out]

    def _rounds(self, entry: KernelEntry, rows: Sequence[Sequence[float]]) -> list[float]:
        kept = self._kept[self.results.times[entry.id].group]
        return [sum(row[index] for row in rows) * factor for index, factor in kept]

    def _middle(self, entry: KernelEntry, rows: Sequence[Sequence[float]]) -> float:
        return middle_mean(self._rounds(entry, rows))

    def timing(self, entry: KernelEntry, leaves_out: frozenset[str]) -> KernelTiming | None:
        """What a kernel's nodes take, but for some; None if it was not measured or nothing is left."""
        times = self.results.times.get(entry.id)
        counted = (
            {} if times is None else {op: node for op, node in times.ops.items() if op not in leaves_out}
        )
        if not counted:
            return None
        rounds = self._rounds(entry, [node.us for node in counted.values()])
        added = self.profiler_us * sum(node.nodes for node in counted.values())
        largest = max(counted, key=lambda op: statistics.median(counted[op].us))
        return KernelTiming(
            us=max(_SMALLEST_US, middle_mean(rounds) - added),
            std=statistics.pstdev(rounds),
            count=len(rounds),
            kernel=largest,
        )

    def layer_timing(self, entry: KernelEntry) -> KernelTiming | None:
        """What a layer takes amid others that the same program runs."""
        program = PROGRAMS[str(entry.program)]
        times = self.results.times.get(entry.id)
        if program in INTEGER_PROGRAMS and times is not None and not any(map(is_integer_kernel, times.ops)):
            return self.timing(entry, LAYOUTS)  # no integer kernel: converting is part of it
        return self.timing(entry, program.leaves_out)

    def operation_points(self, name: str, op: str | None = None) -> list[tuple[int, float]]:
        """Elements and microseconds of an operation at each size; of one kind of node if given."""
        points = []
        for entry in self.results.manifest.kernels:
            if entry.operation == name and entry.id in self.results.times:
                others = frozenset(self.results.times[entry.id].ops) - {op} if op else frozenset()
                timing = self.timing(entry, LAYOUTS | set(WARM_UPS) | others)
                if timing is not None:
                    points.append((entry.elements or 1, timing.us))
        return points


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
