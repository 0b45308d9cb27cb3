"""What the history and the result of a run must be like to be shown; others may have written or changed them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from hwbmpq.values import Metric

_Amount = Annotated[float, Field(allow_inf_nan=False, gt=-1e30, lt=1e30)]
_Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]


class _Block(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Scores(_Block):
    method: str
    scores: dict[str, _Amount]


class _Move(BaseModel):
    model_config = ConfigDict(extra="forbid")
    layer: str
    before: str
    after: str
    why: str


class _Decision(_Block):
    decided_by: _Scores
    moves: list[_Move]
    after: dict[str, str] | None = None


class _Metric(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    higher_is_better: bool
    is_share: bool


class _Measured(_Block):
    """What was measured on test or validation images; other metrics than accuracy may be any number."""

    metric: _Metric | None = None
    test_accuracy: _Share | None = None
    test_metric: _Amount | None = None
    test_loss: _Amount | None = None
    validation_accuracy: _Share | None = None
    validation_metric: _Amount | None = None
    validation_loss: _Amount | None = None

    @model_validator(mode="after")
    def _has_figures(self) -> "_Measured":
        key = Metric(**({} if self.metric is None else self.metric.model_dump())).key
        if all(getattr(self, f"{part}_{key}") is None for part in ("test", "validation")):
            raise ValueError(f"has neither test_{key} nor validation_{key}")
        return self


class _Record(_Measured):
    epoch: _Count
    loss: _Amount | None = None
    train_accuracy: _Share | None = None
    bits: dict[str, str]
    decision: _Decision | None = None


class _PackedLine(_Block):
    label: str
    predicted_bytes: _Count
    actual_bytes: _Count | None


class _PackedFile(_Block):
    actual_bytes: _Count | None
    lines: list[_PackedLine]


class _Result(_Measured):
    float_accuracy: _Share | None = None
    float_metric: _Amount | None = None
    packed_file: _PackedFile | None = None


_HISTORY, _RESULT = TypeAdapter(list[_Record]), TypeAdapter(_Result | None)


def check_records(history: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None) -> None:
    """``ValueError`` if the lines of ``history.jsonl`` or the content of ``allocation.json`` cannot be shown."""
    _HISTORY.validate_python(history)
    _RESULT.validate_python(result)
