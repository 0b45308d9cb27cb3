"""What the history and the result of a run must be like to be shown; others may have written or changed them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

_Amount = Annotated[float, Field(allow_inf_nan=False, gt=-1e30, lt=1e30)]
_Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_NUMBER = TypeAdapter(_Amount)
_PARTS = ("test_", "validation_", "float_")


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
    model_config = ConfigDict(extra="forbid")
    name: str = ""
    higher_is_better: bool = True
    is_share: bool = True


class _Measured(_Block):
    """What was measured is named by the task: ``test_accuracy``, ``validation_loss``, ``float_error``."""

    metric: _Metric | None = None

    @model_validator(mode="after")
    def _numbers(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if name.startswith(_PARTS) and value is not None:
                _NUMBER.validate_python(value)
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
    packed_file: _PackedFile | None = None


_HISTORY, _RESULT = TypeAdapter(list[_Record]), TypeAdapter(_Result | None)


def check_records(history: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None) -> None:
    """``ValueError`` if the lines of ``history.jsonl`` or the content of ``allocation.json`` cannot be shown."""
    _HISTORY.validate_python(history)
    _RESULT.validate_python(result)
