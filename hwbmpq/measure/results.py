"""The results of a runner, checked before they are used. No path in them is ever opened."""

import datetime
import json
import re
import zipfile
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware.document import ProfileError
from hwbmpq.hardware.load import read_bytes
from hwbmpq.hardware.lookup_table import OVERHEAD_OPS, WIDTH_KEYS
from hwbmpq.hardware.schema import known_op
from hwbmpq.measure import kit_runner
from hwbmpq.measure.kit_runner import (
    MANIFEST_SCHEMA,
    MOST_ROUNDS,
    MOST_TEXT,
    PRINTABLE,
    RESULTS_SCHEMA,
    digest,
    printable,
)
from hwbmpq.measure.operation_graphs import CHAINS
from hwbmpq.measure.programs import PROGRAMS
from hwbmpq.values import Precision

MOST_BYTES = 16 << 20
MOST_KERNELS = 4000

_Id = Annotated[str, Field(pattern=r"^(chain|operation|layer)[0-9]{1,6}(_wall)?$")]
_Text = Annotated[str, Field(max_length=MOST_TEXT, pattern=f"^[{PRINTABLE}]*$")]
_Microseconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=2**60)]
_Few = Annotated[int, Field(ge=1, le=10_000)]
_Size = Annotated[int, Field(ge=1, le=2**40)]
_Sides = Annotated[tuple[_Size, ...], Field(min_length=1, max_length=3)]


class ResultsError(HwbmpqError):
    """Results of a measurement that cannot be used."""


def _checked_width(text: str) -> str:
    if not re.fullmatch(r"W[0-9]{1,2}A[0-9]{1,2}", text):
        raise ValueError(f"{text[:20]!r} is not a pair of widths such as W8A8")
    Precision.parse(text)  # raises if there is no such width
    return text


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Geometry(_Block):
    """What distinguishes one layer from another, in the terms of a lookup table."""

    op: Annotated[str, AfterValidator(known_op)]
    in_channels: _Size
    out_channels: _Size
    kernel_size: _Sides
    stride: _Sides
    dilation: _Sides
    groups: _Size
    out_h: _Size
    out_w: _Size
    positions: _Size
    macs: Annotated[int, Field(ge=1, le=2**60)]


KEY = (*(name for name in Geometry.model_fields if name != "macs"), *WIDTH_KEYS)
"""What distinguishes the entries of a measured table."""


class Kernel(_Block):
    """One file of a kit: a layer for a program, an operation, or a chain."""

    id: _Id
    macs: _Count
    copies: Annotated[int, Field(ge=1, le=16)]
    is_wall: bool
    bytes: _Count
    program: Literal[tuple(PROGRAMS)] | None = Field(None, alias="form")  # type: ignore[valid-type]
    geometry: Geometry | None = None
    operation: Literal[OVERHEAD_OPS] | None = None  # type: ignore[valid-type]
    elements: _Count | None = None
    chain: Literal[CHAINS] | None = None  # type: ignore[valid-type]


class Manifest(_Block):
    schema_id: Literal[MANIFEST_SCHEMA] = Field(alias="schema")  # type: ignore[valid-type]
    hwbmpq: _Text
    models: tuple[_Text, ...] = Field(min_length=1, max_length=1000)
    widths: tuple[Annotated[str, AfterValidator(_checked_width)], ...] = Field(min_length=1, max_length=100)
    reference_macs: _Count
    kernels: tuple[Kernel, ...] = Field(min_length=1, max_length=MOST_KERNELS + 1000)

    @property
    def precisions(self) -> tuple[Precision, ...]:
        return tuple(Precision.parse(text) for text in self.widths)


class Machine(_Block):
    cpu: _Text
    board: _Text
    flags: tuple[_Text, ...] = Field(max_length=100)
    cores: _Few
    machine: _Text
    system: _Text
    governor: _Text
    runtime: _Text
    python: _Text
    numpy: _Text
    date: datetime.date
    pinned_to: tuple[_Count, ...] = Field(max_length=10_000)

    @property
    def accumulates_int32(self) -> bool:
        """Whether the processor adds products of bytes in 32 bits."""
        return kit_runner.accumulates_in_int32(self.machine, self.flags)


class Settings(_Block):
    threads: _Few
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]


class NodeTimes(_Block):
    nodes: _Few
    us: tuple[_Microseconds, ...] = Field(max_length=MOST_ROUNDS)


class KernelTimes(_Block):
    group: _Count
    ops: dict[_Text, NodeTimes] = Field(min_length=1, max_length=100)


class Results(_Block):
    """What a runner measured."""

    schema_id: Literal[RESULTS_SCHEMA] = Field(alias="schema")  # type: ignore[valid-type]
    manifest: Manifest
    machine: Machine
    settings: Settings
    rounds: tuple[Annotated[tuple[tuple[_Positive, _Positive], ...], Field(max_length=MOST_ROUNDS)], ...]
    """For each group of kernels and each round: microseconds of the reference before and after it."""
    times: dict[_Id, KernelTimes]
    failed: dict[_Id, _Text]
    """Kernels that the runtime does not have, and its message."""
    is_complete: bool
    sha256: _Text

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.settings.threads > self.machine.cores:
            raise ValueError(f"{self.settings.threads} threads on a machine of {self.machine.cores} cores")
        known = [kernel.id for kernel in self.manifest.kernels]
        if len(set(known)) != len(known):
            raise ValueError("two kernels have one id")
        reported = {*self.times, *self.failed}
        if self.times.keys() & self.failed.keys() or not reported <= set(known):
            raise ValueError("the times are not those of the kernels in the manifest")
        if self.is_complete and reported != set(known):
            raise ValueError("it says that it is complete, but kernels are missing")
        for ident, times in self.times.items():
            count = len(self.rounds[times.group]) if times.group < len(self.rounds) else -1
            if any(len(node.us) != count for node in times.ops.values()):
                raise ValueError(f"{ident}: its times are not one for each round")
        for kernel in self.manifest.kernels:
            if (kernel.program is None) != (kernel.geometry is None):
                raise ValueError(f"{kernel.id}: a program and a geometry belong together")
            if (kernel.geometry is not None or kernel.is_wall) and kernel.id in self.times:
                taken = [us for node in self.times[kernel.id].ops.values() for us in node.us]
                if taken and not any(taken):
                    raise ValueError(f"{kernel.id}: a time of 0 in every round is not plausible")
        return self


def read_results(path: str | Path) -> Results:
    """The results in a file; ``ResultsError`` says what is wrong with it."""
    try:
        content = read_bytes(Path(path), MOST_BYTES)
    except ProfileError as error:
        raise ResultsError(f"{path}: {error.problems[0].message}") from None
    if content.startswith(b"PK\x03\x04"):
        raise _zip_error(Path(path))
    if len(content) > MOST_BYTES:
        raise ResultsError(f"{path} is larger than {MOST_BYTES >> 20} MiB: results of a kit never are")
    try:
        data = json.loads(content.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ResultsError(
            f"{path} is not JSON: {str(error)[:200]}",
            hint="was it copied completely? Copy it again from the device",
        ) from None
    return parse_results(data, str(path))


def _zip_error(path: Path) -> ResultsError:
    try:
        with zipfile.ZipFile(path) as archive:
            is_kit = any(name.endswith("/manifest.json") for name in archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile):
        is_kit = False
    if is_kit:
        return ResultsError(
            f"{path}: this is the kit itself: run it on the device and give its results.json",
            hint="unzip it there, then `python run.py`",
        )
    return ResultsError(f"{path} is a zip file", hint="unpack it and give the results.json")


def parse_results(data: Any, name: str) -> Results:
    """The results in parsed JSON; ``name`` says in errors where it comes from."""
    if not isinstance(data, dict) or data.get("schema") != RESULTS_SCHEMA:
        raise ResultsError(
            f"{name} does not hold the results of a kit",
            hint="bring back the file that `python run.py` wrote",
        )
    try:
        is_unchanged = digest(data) == data.get("sha256")
    except (RecursionError, TypeError, ValueError):
        is_unchanged = False
    if not is_unchanged:
        raise ResultsError(
            f"{name} is not as the kit wrote it: its checksum differs", hint="copy it again from the device"
        )
    try:
        # As JSON once more: strict types that still take lists for tuples.
        return Results.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = printable(".".join(map(str, first["loc"])))[:100]
        what = first["msg"].removeprefix("Value error, ")
        raise ResultsError(f"{name}: {f'{place}: ' if place else ''}{what[:300]}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a measured value")
