"""Lookup tables: measured costs of layers by their geometry, in a JSON file."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from hwbmpq.hardware.document import Place, ProfileError, ProfileProblem, unknown_key
from hwbmpq.hardware.schema import known_op

MOST_BYTES = 8 << 20
"""Of all tables of a profile together."""
UNITS: Mapping[str, tuple[str, float]] = {
    "s": ("latency", 1e3),
    "ms": ("latency", 1.0),
    "us": ("latency", 1e-3),
    "ns": ("latency", 1e-6),
    "cycles": ("latency", 1.0),  # per clock of the profile
    "J": ("energy", 1e6),
    "mJ": ("energy", 1e3),
    "uJ": ("energy", 1.0),
    "nJ": ("energy", 1e-3),
    "pJ": ("energy", 1e-6),
}
"""Units of a table: what they measure, and their multiple of ms or uJ."""
WIDTH_KEYS = ("w_bits", "a_bits")
CLASS_KEYS = ("op", "kernel_size", "dilation", "groups")
"""Keys that must agree even for a neighbour: another kernel is another program."""
SIZE_KEYS = ("in_channels", "out_channels", "in_h", "in_w", "out_h", "out_w", "positions")
KEYS = ("stride", *CLASS_KEYS, *SIZE_KEYS, *WIDTH_KEYS)

OVERHEAD_OPS = tuple(
    "quantize dequantize add multiply clip sigmoid silu hardswish gelu softmax layernorm batchnorm max_pool average_pool "
    "global_pool copy product".split()
)
"""Operations without weights that a table can have times for; ``copy`` moves a tensor (concatenation, padding,
transposition), ``product`` multiplies two activations, by their multiply-accumulates."""

KeyValue = str | int | tuple[int, ...]
_Count = Annotated[int, Field(ge=0, le=2**40)]
_Number = Annotated[float, Field(gt=0, lt=1e30, allow_inf_nan=False)]
_Op = Annotated[str, AfterValidator(known_op)]


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TableSource(_Block):
    """Where a table comes from."""

    title: str | None = None
    repository: str | None = None
    url: str | None = None
    commit: str | None = None
    path: str | None = None
    licence: str | None = None
    note: str | None = None


class TableEntry(_Block):
    """One measured layer. Fields that are not in the table's ``key`` are for people."""

    op: _Op
    in_channels: _Count | None = None
    out_channels: _Count | None = None
    kernel_size: tuple[_Count, ...] | None = None
    stride: tuple[_Count, ...] | None = None
    dilation: tuple[_Count, ...] | None = None
    groups: _Count | None = None
    in_h: _Count | None = None
    in_w: _Count | None = None
    out_h: _Count | None = None
    out_w: _Count | None = None
    positions: _Count | None = None
    w_bits: Annotated[int, Field(ge=1, le=64)]
    a_bits: Annotated[int, Field(ge=1, le=64)]
    macs: Annotated[int, Field(ge=1, le=2**60)]
    """Of one input, whatever the batch."""
    value: _Number
    std: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    kernel: str | None = None
    note: str | None = None


_Amount = Annotated[float, Field(ge=0, lt=1e30, allow_inf_nan=False)]


class Overhead(_Block):
    """What one operation without weights costs: ``fixed`` + ``per_element`` * elements, in the table's unit."""

    op: Literal[OVERHEAD_OPS]  # type: ignore[valid-type]
    fixed: _Amount
    per_element: _Amount


class Overheads(_Block):
    """What is between the layers of a network, in the table's unit."""

    per_run: _Amount = 0.0
    """One call of the runtime, whatever it computes."""
    integer_bits: Annotated[int, Field(ge=1, le=64)] | None = None
    """Layers whose widths are both at most this exchange integers: tensors are quantized and dequantized only where
    something else makes or reads them. The entries of wider pairs have it all in their own times."""
    operations: tuple[Overhead, ...] = ()

    def model_post_init(self, context: Any) -> None:
        names = [overhead.op for overhead in self.operations]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two overheads for {twice!r}")


class LookupTable(_Block):
    """Costs by layer geometry and widths."""

    schema_id: Literal["hwbmpq/lut/v1"] = Field(alias="schema")
    device: str
    runtime: str
    source: TableSource
    measurement: dict[str, Any] = Field(default_factory=dict)
    batch: Annotated[int, Field(ge=1, le=2**20)] = 1
    unit: Literal[tuple(UNITS)]  # type: ignore[valid-type]
    key: tuple[Literal[KEYS], ...] = Field(min_length=3)  # type: ignore[valid-type]
    notes: tuple[str, ...] = ()
    overheads: Overheads | None = None
    entries: tuple[TableEntry, ...] = Field(min_length=1, max_length=200_000)

    _index: dict[tuple[KeyValue, ...], TableEntry] = PrivateAttr(default_factory=dict)
    _classes: dict[tuple[KeyValue, ...], list[TableEntry]] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        for name in ("op", *WIDTH_KEYS):
            if name not in self.key:
                raise ValueError(f"the table's key lacks {name!r}")
        for entry in self.entries:
            values = {name: getattr(entry, name) for name in self.key}
            key = tuple(values.values())
            if None in key:
                raise ValueError(f"an entry lacks {self.key[key.index(None)]!r}, which is in the table's key")
            if self._index.setdefault(key, entry) is not entry:
                raise ValueError(f"two entries for {self.shown(values)}")
            self._classes.setdefault(self._class_of(values), []).append(entry)

    @property
    def quantity(self) -> str:
        """``latency`` or ``energy``."""
        return UNITS[self.unit][0]

    @property
    def factor(self) -> float:
        """From a value to ms or uJ; for cycles, to cycles."""
        return UNITS[self.unit][1]

    def _class_of(self, geometry: Mapping[str, KeyValue]) -> tuple[KeyValue, ...]:
        is_depthwise = str(geometry["op"]).startswith("dw")  # its groups are its channels
        names = [name for name in (*CLASS_KEYS, *WIDTH_KEYS) if name in self.key]
        return tuple(geometry[name] for name in names if not (is_depthwise and name == "groups"))

    def exact(self, geometry: Mapping[str, KeyValue]) -> TableEntry | None:
        """The entry for exactly this layer."""
        return self._index.get(tuple(geometry[name] for name in self.key))

    def neighbours(self, geometry: Mapping[str, KeyValue]) -> list[TableEntry]:
        """Entries of the same operation, kernel, groups and widths."""
        return self._classes.get(self._class_of(geometry), [])

    def nearest(self, geometry: Mapping[str, KeyValue]) -> TableEntry | None:
        """Of the neighbours, the one whose sizes are nearest on a logarithmic scale, of the same stride if any."""
        sizes = {name: math.log(int(geometry[name]) + 1) for name in SIZE_KEYS if name in self.key}  # type: ignore[arg-type]
        stride = geometry["stride"] if "stride" in self.key else None

        def distance(entry: TableEntry) -> tuple[bool, float]:
            apart = sum(abs(math.log(getattr(entry, name) + 1) - size) for name, size in sizes.items())
            return stride is not None and entry.stride != stride, apart

        return min(self.neighbours(geometry), key=distance, default=None)

    def shown(self, geometry: Mapping[str, KeyValue]) -> str:
        """The key of a layer as a person reads it."""
        parts = []
        for name in self.key:
            value = geometry[name]
            parts.append(f"{name}={'x'.join(map(str, value)) if isinstance(value, tuple) else value}")
        return " ".join(parts)


def parse_lookup_table(content: bytes, file: str, *, sha256: str | None = None) -> LookupTable:
    """The table that a JSON text holds; ``ProfileError`` with every problem otherwise."""
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise ProfileError.at(
            Place(file=file), "the file is not the one that the profile names: its sha256 differs"
        )
    try:
        data = json.loads(content.decode("utf-8-sig"), parse_constant=_refuse)
    except json.JSONDecodeError as error:
        place = Place(file=file, line=error.lineno, column=error.colno)
        raise ProfileError.at(place, f"not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, NaN, endless digits, nested too deep
        raise ProfileError.at(Place(file=file), f"not a JSON table: {str(error)[:200]}") from None
    try:
        return LookupTable.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        if any(item["loc"][:1] == ("entries",) and len(item["loc"]) > 1 for item in found):
            found = [item for item in found if item["type"] != "too_short"]  # wrong entries are there
        raise ProfileError([_problem(file, item) for item in found]) from None
    except ValueError as error:
        raise ProfileError.at(Place(file=file), str(error)) from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a measured value")


def _problem(file: str, error: Any) -> ProfileProblem:
    *path, last = error["loc"] or ("",)
    message = "is missing" if error["type"] == "missing" else error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = unknown_key(
            str(last), [info.alias or name for name, info in LookupTable.model_fields.items()]
        )
    return ProfileProblem(
        place=Place(file=file), field=".".join(map(str, [*path, last])).strip("."), message=message
    )
