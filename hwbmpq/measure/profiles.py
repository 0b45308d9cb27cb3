"""A measurement as a hardware profile with its table, in two files."""

import hashlib
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware.load import check_profile, user_folders
from hwbmpq.hardware.lookup_table import parse_lookup_table
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import is_name
from hwbmpq.io import atomic_write
from hwbmpq.measure.findings import findings
from hwbmpq.measure.measurement import Measurement, Summary, fit_line, rounded
from hwbmpq.measure.programs import INTEGER_PROGRAMS, program_of
from hwbmpq.measure.results import KEY, Machine
from hwbmpq.values import FLOAT_BITS, Precision

_INTEGER_BITS = 8
_ENDS = tuple(Precision(weight_bits=bits, activation_bits=bits) for bits in (16, 8))
"""What the first and the last layer get: the first of these that was measured for every operation."""
_MOST_MODELS_NAMED = 6
_MOST_TEXT = 2000
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


def write_profile(
    measurement: Measurement, name: str, *, folder: Path | None = None, overwrite: bool = False
) -> HardwareProfile:
    """Write a profile and its table into a folder (default: the user's own), and read them back."""
    folder = user_folders()[0] if folder is None else folder
    check_new(name, folder, overwrite=overwrite)
    content = table_text(measurement).encode()
    sha256 = hashlib.sha256(content).hexdigest()
    table_file = f"{name}_layers-{sha256[:8]}.json"  # no profile ever reads the table of another
    parse_lookup_table(content, table_file)  # before anything is written
    profile = profile_dict(measurement, name, table_file=table_file, sha256=sha256)
    text = yaml.safe_dump(profile, sort_keys=False, allow_unicode=True, width=120)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / table_file, content)
        _replace(folder / f"{name}.yaml", text.encode())  # last: until now, the old one has its own table
        if overwrite:
            _remove_old_tables(folder, name, table_file)
    except OSError as error:
        raise HwbmpqError(f"cannot write into {folder}: {error.strerror or error}") from None
    return check_profile(folder / f"{name}.yaml")


def check_new(name: str, folder: Path | None = None, *, overwrite: bool) -> None:
    """Before anything slow: whether a profile of that name can be written."""
    folder = user_folders()[0] if folder is None else folder
    if not is_name(name):
        raise HwbmpqError(f"{name!r} is not a valid name for a profile: use letters, digits, _, - and .")
    path = folder / f"{name}.yaml"
    if path.exists() and not overwrite:
        raise HwbmpqError(f"{path} exists", hint="give another name, or --overwrite to replace it")


def _remove_old_tables(folder: Path, name: str, table_file: str) -> None:
    """Tables of earlier profiles of that name, except those that a copy of one still names."""
    pattern = re.compile(rf"{re.escape(name)}_layers(-[0-9a-f]{{8}})?\.json")
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in folder.glob("*.y*ml")]
    for path in list(folder.iterdir()):
        is_old = pattern.fullmatch(path.name) and path.name != table_file
        if is_old and not any(path.name in text for text in texts):
            path.unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)


def _title(measurement: Measurement) -> str:
    results = measurement.results
    models = results.manifest.models
    others = " and others" if len(models) > _MOST_MODELS_NAMED else ""
    named = ", ".join(models[:_MOST_MODELS_NAMED]) + others
    return (
        f"hwbmpq targets measure: {len(measurement.layers)} kernels of {named}; {results.machine.runtime}, "
        f"{results.settings.threads} thread(s), {measurement.rounds} rounds, {results.machine.date}"
    )


def profile_dict(measurement: Measurement, name: str, *, table_file: str, sha256: str) -> dict[str, Any]:
    """The content of the YAML file."""
    results = measurement.results
    title = f"{device_name(results.machine)} through {results.machine.runtime}, {results.settings.threads} thread(s)"
    by_op = [measurement.precisions(op) for op in measurement.ops]
    ends = next((precision for precision in _ENDS if all(precision in found for found in by_op)), None)
    pairs = _pairs(measurement)
    return {
        "schema": "hwbmpq/profile/v1",
        "name": name,
        "title": title[:_MOST_TEXT],
        "class": "cpu",
        "caveats": [sentence[:_MOST_TEXT] for sentence in findings(measurement)],
        "sources": {"measured": {"kind": "measurement", "title": _title(measurement)[:_MOST_TEXT]}},
        "precisions": {
            "src": ["measured"],
            "weights": list(dict.fromkeys(pair["w"] for pair in pairs)),
            "activations": list(dict.fromkeys(pair["a"] for pair in pairs)),
            "pairs": pairs,
        },
        "lookup_tables": [
            {
                "id": "layers",
                "file": table_file,
                "sha256": sha256,
                "miss": "interpolated",
                "kind": "measured",
                "src": ["measured"],
            }
        ],
        **({} if ends is None else {"constraints": {"first_last": _formats(ends)}}),
        "cost_models": {
            "latency": {"model": "lookup_table", "table": "layers"},
            "memory": {"model": "stored_memory"},
        },
    }


def _pairs(measurement: Measurement) -> list[dict[str, Any]]:
    """The widths that were measured; those that some operations lack name the ones that have them."""
    by_op = {op: measurement.precisions(op) for op in measurement.ops}
    found = []
    for precision in measurement.results.manifest.precisions:
        ops = [op for op, precisions in by_op.items() if precision in precisions]
        if ops:
            compute = "int8" if program_of(ops[0], precision) in INTEGER_PROGRAMS else "fp32"
            pair = {**_formats(precision), "compute": compute}
            found.append(pair if len(ops) == len(by_op) else {**pair, "ops": ops})
    return found


def _formats(precision: Precision) -> dict[str, Any]:
    widths = {"w": precision.weight_bits, "a": precision.activation_bits}
    return {name: "fp32" if bits == FLOAT_BITS else f"int{bits}" for name, bits in widths.items()}


def table_text(measurement: Measurement) -> str:
    """The lookup table as JSON, one entry per line."""
    rows = ",\n  ".join(json.dumps(entry) for entry in _entries(measurement))
    return json.dumps(_table_head(measurement), indent=1)[:-2] + f',\n "entries": [\n  {rows}\n ]\n}}\n'


def _table_head(measurement: Measurement) -> dict[str, Any]:
    results, summary = measurement.results, measurement.summary
    return {
        "schema": "hwbmpq/lut/v1",
        "device": device_name(results.machine),
        "runtime": f"{results.machine.runtime}, CPU, {results.settings.threads} thread(s)",
        "source": {"title": _title(measurement)},
        "measurement": _record(measurement),
        "batch": 1,
        "unit": "us",
        "key": list(KEY),
        "notes": _notes(measurement),
        "overheads": {
            "per_run": rounded(summary.run_us),
            "integer_bits": _INTEGER_BITS,
            "operations": [
                {"op": op, "fixed": rounded(max(fixed, summary.node_us)), "per_element": rounded(slope)}
                for op, (fixed, slope) in _operations(summary).items()
            ],
        },
    }


def device_name(machine: Machine) -> str:
    """The processor and the features that matter here: ``AMD EPYC (AVX2, no VNNI)``."""
    has = list(dict.fromkeys(_FLAG_NAMES[flag] for flag in machine.flags if flag in _FLAG_NAMES))
    telling = "VNNI" if "AVX2" in has else "dotprod" if "NEON" in has else ""
    if telling and telling not in has:
        has.append(f"no {telling}")
    return f"{machine.cpu} ({', '.join(has)})" if has else machine.cpu


def _entries(measurement: Measurement) -> list[dict[str, Any]]:
    """One for each requested pair of widths; pairs that one kernel runs have the same value."""
    found: dict[str, dict[str, Any]] = {}
    for layer in measurement.layers:
        for precision in measurement.results.manifest.precisions:
            if measurement.program_name(layer.geometry.op, precision) == layer.program:
                entry = layer.table_entry(precision)
                # Layers that differ only in their padding have one key: the first stands for both.
                found.setdefault(json.dumps([entry[name] for name in KEY]), entry)
    return list(found.values())


def _operations(summary: Summary) -> dict[str, tuple[float, float]]:
    names = dict.fromkeys(one.operation for one in summary.results.manifest.kernels if one.operation)
    points = {name: summary.operation_points(name) for name in names if name != "quantize"}
    for name, op in (("quantize", "QuantizeLinear"), ("dequantize", "DequantizeLinear")):
        points[name] = summary.operation_points("quantize", op)
    return {name: fit_line(found) for name, found in points.items() if len(found) > 1}


def _record(measurement: Measurement) -> dict[str, Any]:
    """How it was measured."""
    results, summary = measurement.results, measurement.summary
    spreads = [layer.timing.std / layer.timing.us for layer in measurement.layers]
    return {
        "date": str(results.machine.date),
        "machine": results.machine.model_dump(mode="json"),
        "threads": results.settings.threads,
        "rounds": measurement.rounds,
        "models": list(results.manifest.models),
        "widths": list(results.manifest.widths),
        "kernels": len(results.times),
        "layer_kernels": sum(
            kernel.program is not None and kernel.id in results.times for kernel in results.manifest.kernels
        ),
        "missing_kernels": measurement.missing,
        "is_complete": results.is_complete,
        "failed": dict(list(results.failed.items())[:20]),
        "reference_us": rounded(summary.reference_us),
        "disturbed_rounds": rounded(summary.disturbed_share),
        "spread": {"median": rounded(statistics.median(spreads)), "worst": rounded(max(spreads))},
        "profiler_us_per_node": rounded(summary.profiler_us),
        "leave_one_out_error": measurement.estimate_errors,
    }


def _notes(measurement: Measurement) -> list[str]:
    notes = ["layers timed inside small graphs, by the runtime's own profiler; the middle half of all rounds"]
    if not measurement.results.is_complete:
        done, total = len(measurement.results.times), len(measurement.results.manifest.kernels)
        rounds = f"{measurement.fewest_rounds} of {measurement.results.settings.rounds} rounds"
        notes.append(f"interrupted: {done} of {total} kernels were measured, the last of them in {rounds}")
    if measurement.results.failed:
        notes.append(f"{len(measurement.results.failed)} kernels do not exist in this runtime")
    return notes


def parse_widths(texts: Sequence[str]) -> tuple[Precision, ...]:
    """``["W8A8", "W4A8"]`` as precisions; ``HwbmpqError`` for what is not one or has no kernel."""
    found = []
    for text in texts:
        try:
            precision = Precision.parse(text.strip().upper())
        except ValueError:
            raise HwbmpqError(
                f"{text!r} is not a pair of widths",
                hint="write W8A8, W4A8, W16A16, W32A32 (float) and the like",
            ) from None
        if program_of("linear", precision) is None:
            raise HwbmpqError(
                f"ONNX Runtime has no kernel for {precision}",
                hint="weights and activations of at most 8 bits, or of at most 16, or both 32 (float); beside float "
                "activations, weights of linear layers of at most 8",
            )
        found.append(precision)
    return tuple(dict.fromkeys(found))
