"""Sensitivities as JSON files: ours, and plain ``{"layer": number}`` files from other tools."""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from hwbmpq.errors import HwbmpqError, cut
from hwbmpq.io import atomic_write, read_json
from hwbmpq.units import shown
from hwbmpq.values import Sensitivity, is_width

SCHEMA = "hwbmpq-sensitivity/1"
PLAIN_METHOD = "file"
"""The method of a file that does not name one."""

_MOST_BYTES = 8 << 20
_MOST_VALUES = 400_000
"""Ten thousand layers with an error for each of their widths are a third of that."""
_MAY_BE_NEGATIVE = {"hessian_trace"}
"""Methods whose scores have a sign; elsewhere a negative score is a mistake."""


def _check_width(text: str) -> str:
    if not text.isascii() or not text.isdigit() or str(int(text[:3])) != text or not is_width(int(text)):
        raise ValueError(f"{shown(text)} is not a weight width: use 2 to 16, or 32 for float")
    return text


_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_NotNegative = Annotated[_Number, Field(ge=0)]
_Errors = dict[Annotated[str, AfterValidator(_check_width)], _NotNegative]
_PLAIN = TypeAdapter(Annotated[dict[str, _NotNegative], Field(min_length=1)])


class _Layer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    score: _Number
    errors: _Errors | None = None
    activation_errors: _Errors | None = None
    """Written where activations have widths to choose from; files of 0.1.0 have none."""


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_name: Literal["hwbmpq-sensitivity/1"] = Field(alias="schema")
    method: str = Field(default=PLAIN_METHOD, min_length=1)
    layers: dict[str, _Layer] = Field(min_length=1)
    remarks: list[str] = []
    facts: Any = None

    @model_validator(mode="after")
    def _check_signs(self) -> "_Document":
        for name, layer in self.layers.items():
            if layer.score < 0 and self.method not in _MAY_BE_NEGATIVE:
                raise ValueError(f"the score of layer {shown(name)} is negative")
        return self


def save_sensitivity(sensitivity: Sensitivity, path: str | os.PathLike[str], **facts: Any) -> None:
    """Write a JSON file. ``facts`` (model, data …) are kept beside the scores for the reader."""
    layers: dict[str, dict[str, Any]] = {
        name: {
            "score": score,
            "errors": {str(bits): error for bits, error in sensitivity.errors.get(name, {}).items()},
        }
        for name, score in sensitivity.scores.items()
    }
    for name, errors in sensitivity.activation_errors.items():
        layers[name]["activation_errors"] = {str(bits): error for bits, error in errors.items()}
    document: dict[str, Any] = {"schema": SCHEMA, "method": sensitivity.method, "layers": layers}
    document |= {"remarks": list(sensitivity.remarks)} | ({"facts": facts} if facts else {})
    try:
        text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
        with atomic_write(Path(path)) as file:
            file.write(f"{text}\n".encode())
    except (TypeError, ValueError) as error:
        raise HwbmpqError(f"{path}: cannot be written as JSON: {error}") from error
    except OSError as error:
        raise HwbmpqError(f"{path}: cannot be written: {error.strerror or error}") from error


def load_sensitivity(path: str | os.PathLike[str]) -> Sensitivity:
    """Read what ``save_sensitivity`` wrote, or an object of layer names and numbers."""
    document = read_json(path, most_bytes=_MOST_BYTES, most_values=_MOST_VALUES)
    try:
        if isinstance(document, dict) and "schema" in document:
            return _sensitivity(_Document.model_validate(document))
        return Sensitivity(method=PLAIN_METHOD, scores=_PLAIN.validate_python(document))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in problem["loc"] if part != "[key]") or "the file"
        message = problem["msg"].removeprefix("Value error, ").partition(" or instance of")[0]
        raise HwbmpqError(
            f"{path}: {cut(field, 100)}: {message} (given: {shown(problem['input'])})"
        ) from None


def _sensitivity(document: _Document) -> Sensitivity:
    def by_width(errors: dict[str, _Errors | None]) -> dict[str, dict[int, float]]:
        return {
            name: {int(bits): error for bits, error in found.items()}
            for name, found in errors.items()
            if found
        }

    layers = document.layers
    return Sensitivity(
        method=document.method,
        scores={name: layer.score for name, layer in layers.items()},
        errors=by_width({name: layer.errors for name, layer in layers.items()}),
        remarks=tuple(document.remarks),
        activation_errors=by_width({name: layer.activation_errors for name, layer in layers.items()}),
    )
