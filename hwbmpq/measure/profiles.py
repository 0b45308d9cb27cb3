"""A measurement as a hardware profile with its table, in two files."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware.load import check_profile, user_folders
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import is_name
from hwbmpq.io import atomic_write
from hwbmpq.measure.findings import findings
from hwbmpq.measure.programs import FLOAT, INTEGER_PROGRAMS, program_of
from hwbmpq.measure.tables import Measurement, checked_table, device_name, table_dict, table_text
from hwbmpq.values import FLOAT_BITS, Precision

_ENDS = tuple(Precision(weight_bits=bits, activation_bits=bits) for bits in (16, 8))
"""What the first and the last layer get, whichever was measured first."""
_MOST_MODELS_NAMED = 6
_PROFILE = """\
schema: hwbmpq/profile/v1
name: {name}
title: {title}
class: cpu
caveats:
{caveats}
sources:
  measured:
    kind: measurement
    title: {source}
precisions:
  src: [measured]
  weights: [{weights}]
  activations: [{activations}]
  pairs:
{pairs}
lookup_tables:
  - id: layers
    file: {file}
    sha256: {sha256}
    miss: interpolated
    kind: measured
    src: [measured]
{constraints}cost_models:
  latency: {{model: lookup_table, table: layers}}
  memory: {{model: weight_memory}}
"""


def write_profile(
    measurement: Measurement, name: str, *, folder: Path | None = None, overwrite: bool = False
) -> HardwareProfile:
    """Write a profile and its table into a folder (default: the user's own), and read them back."""
    folder = user_folders()[0] if folder is None else folder
    check_new(name, folder, overwrite=overwrite)
    table = table_dict(measurement, title=_title(measurement))
    checked_table(table)
    content = table_text(table).encode()
    sha256 = hashlib.sha256(content).hexdigest()
    profile = profile_text(measurement, name, sha256=sha256)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / _table_file(name, sha256), content)
        _replace(folder / f"{name}.yaml", profile.encode())  # last: until now, the old one has its own table
        if overwrite:
            _remove_old_tables(folder, name, sha256)
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


def _table_file(name: str, sha256: str) -> str:
    """Another table has another name, so that a profile never finds one that is not its own."""
    return f"{name}_layers-{sha256[:8]}.json"


def _remove_old_tables(folder: Path, name: str, sha256: str) -> None:
    """Tables of former profiles of that name, but for those that a copy of one still names."""
    pattern = re.compile(rf"{re.escape(name)}_layers(-[0-9a-f]{{8}})?\.json")
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in folder.glob("*.y*ml")]
    for path in list(folder.iterdir()):
        is_old = pattern.fullmatch(path.name) and path.name != _table_file(name, sha256)
        if is_old and not any(path.name in text for text in texts):
            path.unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)


def _title(measurement: Measurement) -> str:
    results = measurement.results
    models = list(results.manifest.models)
    named = ", ".join(models[:_MOST_MODELS_NAMED]) + (
        " and others" if len(models) > _MOST_MODELS_NAMED else ""
    )
    return (
        f"hwbmpq targets measure: {len(measurement.layers)} kernels of {named}; {results.machine.runtime}, "
        f"{results.settings.threads} thread(s), {measurement.rounds} rounds, {results.machine.date}"
    )


def profile_text(measurement: Measurement, name: str, *, sha256: str) -> str:
    """The YAML; texts are written as JSON strings, which YAML reads alike."""
    results = measurement.results
    title = f"{device_name(results.machine)} through {results.machine.runtime}, {results.settings.threads} thread(s)"
    ends = _ends(measurement)
    caveats = "\n".join(f"  - {_quoted(sentence)}" for sentence in findings(measurement))
    pairs = _pairs(measurement)
    return _PROFILE.format(
        name=json.dumps(name),
        title=_quoted(title),
        caveats=caveats,
        source=_quoted(_title(measurement)),
        weights=", ".join(dict.fromkeys(pair["w"] for pair in pairs)),
        activations=", ".join(dict.fromkeys(pair["a"] for pair in pairs)),
        pairs="\n".join(f"    - {_flow(pair)}" for pair in pairs),
        file=json.dumps(_table_file(name, sha256)),
        sha256=json.dumps(sha256),
        constraints="" if ends is None else f"constraints:\n  first_last: {_flow(_formats(ends))}\n",
    )


def _quoted(text: str) -> str:
    return json.dumps(text[:2000], ensure_ascii=False)


def _flow(pair: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in pair.items()) + "}"


def _pairs(measurement: Measurement) -> list[dict[str, Any]]:
    """The widths that were measured; those that some operations lack name the ones that have them."""
    by_op = {op: measurement.precisions(op) for op in measurement.ops}
    found = []
    for precision in measurement.results.manifest.precisions:
        ops = [op for op, precisions in by_op.items() if precision in precisions]
        if ops:
            pair = {**_formats(precision), "compute": _compute(ops[0], precision)}
            found.append(pair if len(ops) == len(by_op) else {**pair, "ops": f"[{', '.join(ops)}]"})
    return found


def _formats(precision: Precision) -> dict[str, str]:
    weight, activation = (
        "fp32" if bits == FLOAT_BITS else f"int{bits}"
        for bits in (precision.weight_bits, precision.activation_bits)
    )
    return {"w": weight, "a": activation}


def _compute(op: str, precision: Precision) -> str:
    program = program_of(op, precision)
    return "int8" if program in INTEGER_PROGRAMS else "fp32" if program is not None else FLOAT.name


def _ends(measurement: Measurement) -> Precision | None:
    def is_everywhere(precision: Precision) -> bool:
        return all(precision in measurement.precisions(op) for op in measurement.ops)

    return next(filter(is_everywhere, _ENDS), None)


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
