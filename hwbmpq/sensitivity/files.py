"""Sensitivities as JSON files: ours, and the plain ``{"layer": number}`` of anybody's own measurement."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hwbmpq.errors import HwbmpqError
from hwbmpq.values import Sensitivity, is_width

SCHEMA = "hwbmpq-sensitivity/1"
PLAIN_METHOD = "file"
"""The method of a file that does not say."""

_MOST_BYTES = 64 * 2**20
_FIELDS = {"schema", "method", "layers", "remarks", "facts"}
_LAYER_FIELDS = {"score", "errors"}
_MAY_BE_NEGATIVE = {"hessian_trace"}
"""Methods whose scores have a sign; elsewhere a negative score is a mistake."""


def save_sensitivity(sensitivity: Sensitivity, path: str | os.PathLike[str], **facts: Any) -> None:
    """Write a JSON file. ``facts`` (model, data …) are kept beside the scores for the reader."""
    layers = {
        name: {
            "score": score,
            "errors": {str(bits): error for bits, error in sensitivity.errors.get(name, {}).items()},
        }
        for name, score in sensitivity.scores.items()
    }
    document: dict[str, Any] = {"schema": SCHEMA, "method": sensitivity.method, "layers": layers}
    document |= {"remarks": list(sensitivity.remarks)} | ({"facts": facts} if facts else {})
    try:
        text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
        Path(path).write_text(text + "\n", encoding="utf-8")
    except (TypeError, ValueError) as error:
        raise HwbmpqError(f"{path}: cannot be written as JSON: {error}") from error
    except OSError as error:
        raise HwbmpqError(f"{path}: cannot be written: {error.strerror or error}") from error


def load_sensitivity(path: str | os.PathLike[str]) -> Sensitivity:
    """Read what ``save_sensitivity`` wrote, or an object of layer names and numbers."""
    try:
        document = json.loads(_read(Path(path)), object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise HwbmpqError(f"{path}: is nested too deeply to be a file of sensitivities") from None
    except ValueError as error:
        raise HwbmpqError(f"{path}: is not valid JSON: {error}") from error
    try:
        fields = _mapping(document, "the file")
        return _full(fields) if "schema" in fields else _plain(fields)
    except _FieldError as error:
        raise HwbmpqError(f"{path}: {error}", hint=error.hint) from None


class _FieldError(Exception):
    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _read(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise HwbmpqError(f"{path}: is a folder, not a file of sensitivities")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise HwbmpqError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > _MOST_BYTES:
        raise HwbmpqError(f"{path}: is larger than {_MOST_BYTES // 2**20} MB")
    return content


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _plain(fields: Mapping[str, Any]) -> Sensitivity:
    _not_empty(fields, "the file")
    scores = {name: _number(value, f"layer {name!r}", least=0.0) for name, value in fields.items()}
    return Sensitivity(method=PLAIN_METHOD, scores=scores)


def _full(fields: Mapping[str, Any]) -> Sensitivity:
    if fields["schema"] != SCHEMA:
        raise _FieldError(f"schema is {fields['schema']!r}, not {SCHEMA!r}")
    _only(fields, _FIELDS, "the file")
    method, remarks = fields.get("method", PLAIN_METHOD), fields.get("remarks", [])
    if not isinstance(method, str) or not method:
        raise _FieldError(f"method is {method!r}, not a name")
    if not isinstance(remarks, list) or not all(isinstance(remark, str) for remark in remarks):
        raise _FieldError("remarks is not a list of sentences")
    layers = {
        name: _mapping(entry, f"layers.{name}")
        for name, entry in _mapping(fields.get("layers"), "layers").items()
    }
    _not_empty(layers, "layers")
    for name, entry in layers.items():
        _only(entry, _LAYER_FIELDS, f"layers.{name}")
    least = -math.inf if method in _MAY_BE_NEGATIVE else 0.0
    scores = {
        name: _number(e.get("score"), f"layers.{name}.score", least=least) for name, e in layers.items()
    }
    errors = {
        name: _errors(e["errors"], f"layers.{name}.errors") for name, e in layers.items() if e.get("errors")
    }
    return Sensitivity(method=method, scores=scores, errors=errors, remarks=tuple(remarks))


def _errors(value: Any, field: str) -> dict[int, float]:
    found = {}
    for text, error in _mapping(value, field).items():
        is_number = text.isascii() and text.isdigit() and len(text) <= 2
        if not is_number or not is_width(int(text)) or str(int(text)) != text:
            raise _FieldError(f"{field}: {text!r} is not a weight width", hint="use 2 to 16, or 32 for float")
        found[int(text)] = _number(error, f"{field}.{text}", least=0.0)
    return found


def _number(value: Any, field: str, *, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _FieldError(f"{field} is {value!r:.80}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < least:
        kind = "negative" if math.isfinite(number) else "not finite"
        raise _FieldError(f"{field} is {number}, which is {kind}")
    return number


def _mapping(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _FieldError(f"{field} is not a JSON object" if value is not None else f"{field} is missing")
    return value


def _only(fields: Mapping[str, Any], allowed: set[str], where: str) -> None:
    unknown = sorted(set(fields) - allowed)
    if unknown:
        raise _FieldError(
            f"{where} has no field {unknown[0]!r}", hint=f"its fields: {', '.join(sorted(allowed))}"
        )


def _not_empty(fields: Mapping[str, Any], where: str) -> None:
    if not fields:
        raise _FieldError(f"{where} names no layer")
