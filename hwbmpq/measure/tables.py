"""A measurement as a lookup table."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from hwbmpq.costs.interpolate import leave_one_out
from hwbmpq.hardware.lookup_table import LookupTable
from hwbmpq.measure.manifest import KEY
from hwbmpq.measure.programs import PROGRAMS, Program, program_of, widened
from hwbmpq.measure.results import KernelEntry, Machine, Results, ResultsError
from hwbmpq.measure.summary import KernelTiming, Summary, fit_line
from hwbmpq.values import Precision

INTEGER_BITS = 8
_DIGITS = 4
MOST_TRIED = 200
"""Entries by which estimates are tried: the time grows with their square."""
_FLAG_NAMES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx_vnni": "VNNI",
    "avx512_vnni": "VNNI",
    "amx_int8": "AMX",
    "asimd": "NEON",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "sve": "SVE",
}


@dataclass(frozen=True, kw_only=True)
class MeasuredLayer:
    """A layer that a program ran, and how long it took."""

    entry: KernelEntry
    timing: KernelTiming

    @property
    def op(self) -> str:
        return str((self.entry.geometry or {})["op"])


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
        for entry in results.manifest.kernels:
            timing = summary.layer_timing(entry) if entry.program is not None else None
            if timing is not None:
                found.append(MeasuredLayer(entry=entry, timing=timing))
        if not found:
            raise ResultsError("no layer was measured", hint=_first_failure(results))
        return cls(results=results, summary=summary, layers=tuple(found))

    def precisions(self, op: str) -> tuple[Precision, ...]:
        """The widths asked for that some layer of this operation was measured at."""
        programs = {layer.entry.program for layer in self.layers if layer.op == op}
        pairs = [
            (precision, self.program_of(op, precision)) for precision in self.results.manifest.precisions
        ]
        return tuple(
            precision for precision, program in pairs if program is not None and program.name in programs
        )

    def program_of(self, op: str, precision: Precision) -> Program | None:
        """The program that runs an operation at these widths on this machine."""
        return program_of(op, precision, accumulates_int32=self.results.machine.accumulates_int32)

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(layer.op for layer in self.layers))

    @property
    def rounds(self) -> int:
        """As many as were measured, if it was interrupted."""
        return max(map(len, self.results.rounds))

    @property
    def fewest_rounds(self) -> int:
        """Of any group of kernels."""
        return min(map(len, self.results.rounds))

    @property
    def missing(self) -> int:
        """Kernels that an interruption left out."""
        results = self.results
        return len(results.manifest.kernels) - len(results.times) - len(results.failed)

    @cached_property
    def estimate_errors(self) -> dict[str, float]:
        """By program: the median share by which a layer is missed if it is estimated from all others."""
        widths = {program.name: _some_width(program.name, self) for program in PROGRAMS.values()}
        errors = {}
        for name, precision in widths.items():
            layers = [layer for layer in self.layers if layer.entry.program == name]
            if precision is None or not layers:
                continue
            tried = [layers[index] for index in evenly_spaced(len(layers), MOST_TRIED)]
            misses = leave_one_out([layer.entry.entry(precision, layer.timing.us) for layer in tried])
            if misses:
                errors[name] = _rounded(statistics.median(misses))
        return errors


def evenly_spaced(count: int, most: int) -> list[int]:
    """At most so many of the indices below a count, the first and the last among them.

    >>> evenly_spaced(7, 3)
    [0, 3, 6]
    """
    if count <= most:
        return list(range(count))
    return [index * (count - 1) // (most - 1) for index in range(most)]


def _first_failure(results: Results) -> str:
    return next((f"the runtime said: {reason}" for reason in results.failed.values()), "")


def table_dict(measurement: Measurement, *, title: str) -> dict[str, Any]:
    """The table, ready for JSON; ``LookupTable`` accepts it."""
    results, summary = measurement.results, measurement.summary
    return {
        "schema": "hwbmpq/lut/v1",
        "device": device_name(results.machine),
        "runtime": f"{results.machine.runtime}, CPU, {results.settings.threads} thread(s)",
        "source": {"title": title},
        "measurement": _record(measurement),
        "batch": 1,
        "unit": "us",
        "key": list(KEY),
        "notes": _notes(measurement),
        "overheads": {
            "per_run": _rounded(summary.run_us),
            "integer_bits": INTEGER_BITS,
            "operations": [
                {"op": op, "fixed": _rounded(max(fixed, summary.node_us)), "per_element": _rounded(slope)}
                for op, (fixed, slope) in _operations(summary).items()
            ],
        },
        "entries": _entries(measurement),
    }


def table_text(content: Mapping[str, Any]) -> str:
    """As a file: one entry a line."""
    head = {key: value for key, value in content.items() if key != "entries"}
    rows = ",\n  ".join(json.dumps(entry) for entry in content["entries"])
    return json.dumps(head, indent=1)[:-2] + f',\n "entries": [\n  {rows}\n ]\n}}\n'


def device_name(machine: Machine) -> str:
    """The processor and what matters of it: ``AMD EPYC (AVX2, no VNNI)``."""
    has = list(dict.fromkeys(_FLAG_NAMES[flag] for flag in machine.flags if flag in _FLAG_NAMES))
    telling = "VNNI" if "AVX2" in has else "dotprod" if "NEON" in has else ""
    if telling and telling not in has:
        has.append(f"no {telling}")
    return f"{machine.cpu} ({', '.join(has)})" if has else machine.cpu


def _entries(measurement: Measurement) -> list[dict[str, Any]]:
    """One for each pair of widths that was asked for; pairs that one kernel runs have the same value."""
    found: dict[str, dict[str, Any]] = {}
    for layer in measurement.layers:
        for precision in measurement.results.manifest.precisions:
            program = measurement.program_of(layer.op, precision)
            if program is None or program.name != layer.entry.program:
                continue
            note = widened(precision)
            entry = {
                **(layer.entry.geometry or {}),
                "w_bits": precision.weight_bits,
                "a_bits": precision.activation_bits,
                "value": _rounded(layer.timing.us),
                "std": _rounded(layer.timing.std),
                "count": layer.timing.count,
                "kernel": layer.timing.kernel,
                **({"note": note} if note else {}),
            }
            # Paddings that differ make two kernels of one key: the first stands for both.
            found.setdefault(json.dumps([entry[name] for name in KEY]), entry)
    return list(found.values())


def _operations(summary: Summary) -> dict[str, tuple[float, float]]:
    names = dict.fromkeys(entry.operation for entry in summary.results.manifest.kernels if entry.operation)
    points = {name: summary.operation_points(name) for name in names if name != "quantize"}
    for name, op in (("quantize", "QuantizeLinear"), ("dequantize", "DequantizeLinear")):
        points[name] = summary.operation_points("quantize", op)
    return {name: fit_line(found) for name, found in points.items() if len(found) > 1}


def _record(measurement: Measurement) -> dict[str, Any]:
    """How it was measured, for people."""
    results, summary = measurement.results, measurement.summary
    spreads = [layer.timing.std / layer.timing.us for layer in measurement.layers]
    return {
        "date": results.machine.date,
        "machine": results.machine.model_dump(),
        "threads": results.settings.threads,
        "rounds": measurement.rounds,
        "models": list(results.manifest.models),
        "widths": list(results.manifest.widths),
        "kernels": len(results.times),
        "layer_kernels": sum(
            entry.program is not None and entry.id in results.times for entry in results.manifest.kernels
        ),
        "missing_kernels": measurement.missing,
        "is_complete": results.is_complete,
        "failed": dict(list(results.failed.items())[:20]),
        "reference_us": _rounded(summary.reference_us),
        "disturbed_rounds": _rounded(summary.disturbed_share),
        "spread": {"median": _rounded(statistics.median(spreads)), "worst": _rounded(max(spreads))},
        "profiler_us_per_node": _rounded(summary.profiler_us),
        "leave_one_out_error": measurement.estimate_errors,
    }


def _some_width(program: str, measurement: Measurement) -> Precision | None:
    def runs(precision: Precision) -> bool:
        found = measurement.program_of("linear", precision)
        return found is not None and found.name == program

    return next(filter(runs, measurement.results.manifest.precisions), None)


def _notes(measurement: Measurement) -> list[str]:
    notes = ["layers timed inside small graphs, by the runtime's own profiler; the middle half of all rounds"]
    if not measurement.results.is_complete:
        done, total = len(measurement.results.times), len(measurement.results.manifest.kernels)
        rounds = f"{measurement.fewest_rounds} of {measurement.results.settings.rounds} rounds"
        notes.append(f"interrupted: {done} of {total} kernels were measured, the last of them in {rounds}")
    if measurement.results.failed:
        notes.append(f"{len(measurement.results.failed)} kernels do not exist in this runtime")
    return notes


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def checked_table(content: Mapping[str, Any]) -> LookupTable:
    """The table as hwbmpq reads it back."""
    try:
        return LookupTable.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ResultsError(f"the results make no table: {place}: {first['msg'][:300]}") from None
