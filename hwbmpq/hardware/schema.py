"""The blocks of a profile: number formats, fields, types, units and meaning.

A *figure* is a number about the device with its origin. ``normalise.py`` brings every figure to the
form ``{value, kind, src}`` in the unit of its key before these models see it.
"""

import re
from dataclasses import dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo

from hwbmpq import units as u  # a block has a field called `units`
from hwbmpq.values import FLOAT_BITS, MAX_BITS, MIN_BITS, Precision

_INTEGER = re.compile(r"u?int(\d{1,2})")
FLOATS = {"fp16": 16, "bf16": 16, "fp32": 32}


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How a number is stored."""

    name: str
    bits: int

    @property
    def is_float(self) -> bool:
        return self.name in FLOATS

    def __str__(self) -> str:
        return self.name


def parse_format(name: str) -> NumberFormat:
    """The format of that name; ``ValueError`` if hwbmpq has no quantizer for it.

    >>> parse_format("uint4").bits, parse_format("fp16").is_float
    (4, True)
    """
    if name in FLOATS:
        return NumberFormat(name, FLOATS[name])
    match = _INTEGER.fullmatch(name)
    if match and MIN_BITS <= int(match[1]) <= MAX_BITS:
        return NumberFormat(name, int(match[1]))
    raise ValueError(
        f"{name!r} is not a number format: use int{MIN_BITS} to int{MAX_BITS}, uint{MIN_BITS} to uint{MAX_BITS}, "
        f"{', '.join(FLOATS)}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class WidthPair:
    """A weight and an activation format that the device runs together."""

    weight: NumberFormat
    activation: NumberFormat
    compute: str
    """The arithmetic that executes it: the format both are brought to."""
    kernel: str = "vendor"
    """``vendor``: a kernel exists. ``user``: you have to write it. ``none``: storage only."""
    ops: tuple[str, ...] = ()
    """Operations that have it; empty means all."""

    @property
    def precision(self) -> Precision:
        """The widths as they are stored, which is what costs count."""
        return Precision(weight_bits=self.weight.bits, activation_bits=self.activation.bits)

    @property
    def training(self) -> Precision:
        """The widths to quantize to while training: narrow weights beside float activations leave those in float."""
        return self.trained(self.precision)

    def trained(self, precision: Precision) -> Precision:
        """The same for a precision that this pair runs, be it a narrower one that is promoted to it."""
        weight_only = self.activation.is_float and not self.weight.is_float
        return replace(precision, activation_bits=FLOAT_BITS) if weight_only else precision

    def __str__(self) -> str:
        return f"{self.weight}×{self.activation}"


def common_compute(weight: NumberFormat, activation: NumberFormat) -> str:
    """Where a pair does not say how it is computed: in the wider of its formats, in float if one is."""
    floats = [fmt for fmt in (weight, activation) if fmt.is_float]
    return max(floats or [weight, activation], key=lambda fmt: fmt.bits).name.removeprefix("u")


OPS = (
    *(f"{prefix}conv{n}d" for prefix in ("", "dw") for n in (1, 2, 3)),
    *(f"{prefix}conv_transpose{n}d" for prefix in ("", "dw") for n in (1, 2, 3)),
    "linear",
)
"""Operations that a profile can tell apart; ``dw`` is depthwise, ``*`` means any."""
QUANTITIES = ("latency", "energy", "memory")
DOUBTFUL_KINDS = ("uncertain", "assumed")
Kind = Literal[
    "measured", "datasheet", "literature", "simulated", "derived", "reported", "board", "uncertain", "assumed"
]


def _listed(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


def _sides(value: Any) -> Any:
    return value.split("x") if isinstance(value, str) else _listed(value)


def _format(value: Any) -> NumberFormat:
    return value if isinstance(value, NumberFormat) else parse_format(str(value))


def known_op(value: str) -> str:
    """The operation itself; ``ValueError`` if there is none of that name."""
    if value != "*" and value not in OPS:
        raise ValueError(f"{value[:40]!r} is not an operation: use *, {', '.join(OPS)}")
    return value


def known_quantity(value: str) -> str:
    """A quantity that a profile can choose a cost model for."""
    if value not in QUANTITIES:
        raise ValueError(f"{value[:40]!r} is not a quantity: use {', '.join(QUANTITIES)}")
    return value


SourceIds = Annotated[tuple[str, ...], BeforeValidator(_listed, json_schema_input_type=str | list[str])]
Op = Annotated[str, AfterValidator(known_op), WithJsonSchema({"enum": ["*", *OPS]})]
Ops = Annotated[tuple[Op, ...], BeforeValidator(_listed, json_schema_input_type=Op | list[Op])]
KernelSize = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...],
    BeforeValidator(_sides, json_schema_input_type=int | str | list[int]),
]
Format = Annotated[
    NumberFormat, BeforeValidator(_format, json_schema_input_type=str), PlainSerializer(str, return_type=str)
]
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
Name = Annotated[str, Field(pattern=_NAME, max_length=80)]
QuantityName = Annotated[str, AfterValidator(known_quantity)]
Text = Annotated[str, Field(min_length=1, max_length=2000)]


def is_name(text: str) -> bool:
    """Whether a text can be the name of a profile."""
    return re.fullmatch(_NAME, text) is not None and len(text) <= 80


class Block(BaseModel):
    """A group of keys. Unknown keys are refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        arbitrary_types_allowed=True,
        use_attribute_docstrings=True,
    )


class Sourced(Block):
    """A block whose ``kind`` and ``src`` hold for the bare numbers in it."""

    kind: Kind | None = None
    """Origin of the bare numbers in this block."""
    src: SourceIds = ()
    """Ids in `sources` of the bare numbers in this block."""
    note: Text | None = None

    @property
    def is_doubtful(self) -> bool:
        return self.kind in DOUBTFUL_KINDS


class Figure(Sourced):
    """A number about the device, and where it comes from."""

    value: float = Field(allow_inf_nan=False)
    kind: Kind | None = None
    """How the figure was obtained."""
    src: SourceIds = ()
    """Ids in `sources`; may be left out for `kind: assumed`."""
    uncertainty: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """± in the figure's unit."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """Marks a field as a figure with a dimension."""

    dimension: u.Dimension
    may_be_zero: bool = False


def quantity_of(info: FieldInfo) -> Quantity | None:
    """The mark of a field that is a figure."""
    return next((mark for mark in info.metadata if isinstance(mark, Quantity)), None)


def fields_by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a block by the key that files give them."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def block_of(info: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a block or a list of blocks."""
    waiting = [info.annotation]
    while waiting:
        annotation = waiting.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
        if get_origin(annotation) in (tuple, list, Union, UnionType):
            waiting += get_args(annotation)
    return None


def short_keys(model: type[BaseModel]) -> dict[str, str]:
    """Keys without their unit (``bandwidth``), whose value must then carry it, and the full ones."""
    found = {}
    for name, info in model.model_fields.items():
        quantity = quantity_of(info)
        suffix = quantity.dimension.suffix if quantity else ""
        if quantity and suffix and name.endswith(suffix) and name != suffix:
            found[name.removesuffix(suffix) + quantity.dimension.short_suffix] = name
    return found


class Source(Block):
    """Where figures come from."""

    kind: Text
    """vendor_doc, paper, code, spec_page, measurement, …"""
    title: Text
    url: Text | None = None
    commit: Text | None = None
    licence: Text | None = None
    note: Text | None = None


class PairSpec(Block):
    """A weight and an activation format that run together."""

    w: Format
    a: Format
    compute: Format | None = None
    """The arithmetic that executes it (int4 weights may run as int8)."""
    kernel: Literal["vendor", "user", "none"] = "vendor"
    """vendor: a kernel exists; user: you write it; none: storage only."""
    ops: Ops = ()
    """Operations that have it; all if left out."""


class Precisions(Sourced):
    """Which widths the device stores and runs."""

    weights: tuple[Format, ...] = ()
    """Formats that weights are stored in."""
    activations: tuple[Format, ...] = ()
    """Formats that activations are stored in."""
    pairs: tuple[PairSpec, ...] | None = None
    """Supported (weight, activation) pairs; the product of the two lists if left out."""
    promote: dict[int, int] = Field(default_factory=dict)
    """A width without a kernel is stored and run at this one: {3: 4}."""
    simd_channels: dict[Name, Annotated[int, Field(ge=1, le=4096)]] = Field(default_factory=dict)
    """Output channels are padded to a multiple of this, by weight format."""
    bias_bits: int | None = Field(default=None, ge=1, le=64)
    accumulator_bits: int | None = Field(default=None, ge=8, le=64)


class Clock(Sourced):
    core_hz: Annotated[Figure | None, Quantity(u.HERTZ)] = None
    """Clock of the compute units."""
    accel_hz: Annotated[Figure | None, Quantity(u.HERTZ)] = None
    """Clock of the accelerator, if its own."""


class RateRow(Sourced):
    """A figure for the layers and widths that it names; what is left out matches anything."""

    op: Ops = ("*",)
    w: Format | None = None
    a: Format | None = None
    compute: Format | None = None
    kernel_size: KernelSize | None = None


class ComputeRow(RateRow):
    """How fast the device multiplies."""

    macs_per_cycle: Annotated[Figure | None, Quantity(u.MACS_PER_CYCLE)] = None
    """Per unit."""
    macs_per_s: Annotated[Figure | None, Quantity(u.MACS_PER_SECOND)] = None
    """Per unit, where no clock is known: 4 TOPS are 2 TMAC/s."""


class Array(Sourced):
    """A multiplier array whose speed follows from its size."""

    type: Literal["bit_serial", "bit_fusion"]
    dims: tuple[Annotated[int, Field(ge=1, le=10**6)], ...] = Field(min_length=2, max_length=3)
    """bit_serial: Dm, Dk, Dn; bit_fusion: rows, columns."""


class Compute(Sourced):
    units: int = Field(default=1, ge=1, le=10**6)
    """How many units work side by side."""
    efficiency: Annotated[Figure | None, Quantity(u.PLAIN)] = None
    """Share of the peak that real kernels reach, 0 to 1."""
    table: tuple[ComputeRow, ...] = ()
    array: Array | None = None


class MemoryLevel(Sourced):
    """One memory. List them from the nearest to the farthest."""

    name: Name
    size_bytes: Annotated[Figure | None, Quantity(u.BYTES)] = None
    bandwidth_bytes_per_s: Annotated[Figure | None, Quantity(u.BYTES_PER_SECOND)] = None
    bytes_per_cycle: Annotated[Figure | None, Quantity(u.BYTES_PER_CYCLE)] = None
    """Bandwidth where it follows the clock."""
    latency_cycles: Annotated[Figure | None, Quantity(u.CYCLES, may_be_zero=True)] = None
    energy_pj_per_bit: Annotated[Figure | None, Quantity(u.PICOJOULES_PER_BIT, may_be_zero=True)] = None
    holds: tuple[Literal["weights", "activations", "tile"], ...] = ()
    """What lives here; of several levels that hold the weights, the last one stores them."""
    on_chip: bool = False
    """Feeds the compute units at their own pace: no bandwidth limit."""


class EnergyRow(RateRow):
    """What one multiply-accumulate takes."""

    pj_per_mac: Annotated[Figure, Quantity(u.PICOJOULES_PER_MAC, may_be_zero=True)]


class EnergyFigures(Sourced):
    technology_nm: Annotated[Figure | None, Quantity(u.NANOMETRES)] = None
    voltage_v: Annotated[Figure | None, Quantity(u.VOLTS)] = None
    table: tuple[EnergyRow, ...] = ()


class Power(Sourced):
    budget_w: Annotated[Figure | None, Quantity(u.WATTS)] = None
    """What the board may draw."""
    active_w: Annotated[Figure | None, Quantity(u.WATTS)] = None
    """While it computes."""
    idle_w: Annotated[Figure | None, Quantity(u.WATTS, may_be_zero=True)] = None
    energy_pj_per_op: Annotated[Figure | None, Quantity(u.PICOJOULES_PER_OPERATION)] = None


class LookupTableRef(Sourced):
    """Measured costs of layers, in a JSON file beside the profile."""

    id: Name
    file: Text
    """Relative to the profile's folder."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    miss: Literal["error", "nearest", "macs_scaled", "interpolated"] = "error"
    """A layer that is not in the table: refuse, take the nearest, scale that by MACs, or interpolate between several."""


class FirstLast(Block):
    w: Format
    a: Format


class Constraints(Block):
    first_last: FirstLast | None = None
    """Formats of the first and the last layer."""
    pin: dict[Annotated[str, Field(min_length=1, max_length=200)], int | Text] = Field(default_factory=dict)
    """Layers with a width of their own, by patterns of their names: {"*.head": 8, "stem": W4A8}."""
    keep_float: tuple[Text, ...] = ()
    """Layers that are not quantized, by patterns of their names."""


class CostChoice(BaseModel):
    """Which cost model answers for a quantity; further keys are its options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    model: Name

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})
