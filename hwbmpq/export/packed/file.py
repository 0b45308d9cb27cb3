"""A packed file, checked for consistency; ``restore`` checks whether it fits a network.

Schema ``hwbmpq/packed/v1``, JSON in the safetensors metadata, says what the tensors are:

==================  ====================================================================================
tensor              content
==================  ====================================================================================
``LAYER.weight``    U8: the codes of the layer's weight (``bitpack``), if the layer ``is_packed``
``LAYER``           the same for a layer that has the name of its parameter (``is_parameter``)
``hwbmpq:scales``   the scales of all packed weights, one after the other, in the order of the layers
``hwbmpq:inputs``   one row for each input quantizer: α, and the largest magnitude observed
all others          entries of the network's state_dict, by their own names
==================  ====================================================================================
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from torch import Tensor

from hwbmpq.export.packed.bitpack import PackingError, packed_length, unpack
from hwbmpq.export.packed.container import (
    DTYPE_NAMES,
    DTYPES,
    Container,
    PackedFileError,
    parse_json,
    read_container,
    short,
)
from hwbmpq.export.stored_weights import StoredWeight, canonical_codes
from hwbmpq.quant import CALIBRATION_BATCHES
from hwbmpq.quant.scales import nearest_codes
from hwbmpq.values import FLOAT_BITS, is_width

SCHEMA: Final = "hwbmpq/packed/v1"
SCALES, INPUTS = "hwbmpq:scales", "hwbmpq:inputs"
"""Tensors of ours: no module or parameter can have such a name."""

FloatType = Literal["F64", "F32", "F16", "BF16"]
Axis = Annotated[int, Field(ge=1, le=1 << 48)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Origin(BaseModel):
    """Where a network came from; anything else that JSON can hold may be added."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    model: str | None = None
    """A specification as ``hwbmpq.models.load_model`` takes it; None for an own module."""
    num_classes: int | None = Field(default=None, ge=1)
    input_size: tuple[Axis, ...] | None = Field(default=None, max_length=8)
    target: str | None = None


class PackedLayer(_Strict):
    name: str
    shape: tuple[Axis, ...] = Field(min_length=1, max_length=8)
    """Of the weight."""
    weight_bits: int
    activation_bits: int
    quantizer: int | None = Field(default=None, ge=0)
    """Position in ``quantizers`` of the one that its input goes through; None if its input stays in float."""
    is_parameter: bool = False
    """Whether it has the name of a parameter, not of a module."""
    channel_axis: int | None = Field(default=None, ge=0)
    is_computed: bool = False
    """The packed weight is what the layer computes from its parameters, not the parameter."""
    is_packed: bool = True
    """False if the weight is stored in float: at 32 bits, or because something else needs the very same tensor."""
    dtype: FloatType = "F32"
    """Of the weight in the network."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not is_width(self.weight_bits) or not is_width(self.activation_bits):
            raise ValueError(
                f"layer {self.name!r}: {self.weight_bits} or {self.activation_bits} is not a width"
            )
        if self.quantizer is None and (self.activation_bits != FLOAT_BITS or self.is_computed):
            raise ValueError(f"layer {self.name!r}: without a quantizer its input stays in float")
        if self.is_parameter and self.quantizer is not None:
            raise ValueError(f"layer {self.name!r}: only a module rounds its input")
        if self.is_packed and self.weight_bits > 16:
            raise ValueError(f"layer {self.name!r}: weights of 32 bits are not packed")
        if self.is_computed and not self.is_packed:
            raise ValueError(f"layer {self.name!r}: a weight that is computed has to be packed")
        if self.channel_axis is not None and self.channel_axis >= len(self.shape):
            raise ValueError(f"layer {self.name!r}: there is no axis {self.channel_axis} for its channels")
        return self

    @property
    def weight(self) -> str:
        """The weight's name in the file and in the state_dict."""
        if self.is_parameter:
            return self.name
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def scale_shape(self) -> tuple[int, ...]:
        return tuple(size if axis == self.channel_axis else 1 for axis, size in enumerate(self.shape))


class PackedQuantizer(_Strict):
    name: str
    signed: bool
    trainable: bool
    batches: int = Field(ge=0, le=CALIBRATION_BATCHES)
    """Batches that α is the mean of; 0 if it was never set."""
    has_range: bool
    steps_below: int = Field(default=0, ge=0, le=127)
    """Of 255 steps, those below zero; 0: half of them if signed."""
    dtype: FloatType = "F32"


class PackedMetadata(_Strict):
    schema_: Literal["hwbmpq/packed/v1"] = Field(alias="schema")
    hwbmpq: str
    """The version that wrote the file."""
    origin: Origin = Origin()
    channels_last: bool = False
    """Whether the convolutions' weights were laid out so; results differ in the last digit."""
    layers: tuple[PackedLayer, ...]
    quantizers: tuple[PackedQuantizer, ...]
    shared: dict[str, str] = {}
    """Further names of stored tensors."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [layer.name for layer in self.layers]
        if len(set(names)) < len(names):
            raise ValueError("two layers have the same name")
        used = {layer.quantizer for layer in self.layers if layer.quantizer is not None}
        if used != set(range(len(self.quantizers))):
            raise ValueError(
                f"the layers use the quantizers {sorted(used)[:8]}, there are {len(self.quantizers)}"
            )
        if set(self.shared) & set(self.shared.values()):
            raise ValueError("a further name of one tensor is the name of another")
        return self

    def stored_name(self, name: str) -> str:
        """The name under which a tensor is stored."""
        return self.shared.get(name, name)

    def packed_once(self) -> list[PackedLayer]:
        """The layers whose weights are packed, one for each weight, in the order of their scales."""
        return [layer for layer in self.layers if layer.is_packed and layer.weight not in self.shared]

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, exclude_defaults=True)


@dataclass(frozen=True, kw_only=True)
class PackedFile:
    """Metadata and tensors of a file."""

    metadata: PackedMetadata
    container: Container

    @property
    def path(self) -> Path:
        return self.container.path

    @property
    def stored(self) -> dict[str, Tensor]:
        """The network's own tensors that are stored as they are, by name."""
        ours = {SCALES, INPUTS, *(layer.weight for layer in self.metadata.packed_once())}
        return {name: value for name, value in self.container.tensors.items() if name not in ours}

    def weights(self) -> dict[str, StoredWeight]:
        """The packed weights by layer; layers that share one get the same."""
        once = self.metadata.packed_once()
        found: dict[str, StoredWeight] = {}
        if once:
            counts = [prod(layer.scale_shape) for layer in once]
            parts = torch.split(self._scales(), counts)
            for layer, scale in zip(once, parts, strict=True):
                found[layer.weight] = self._weight(layer, scale.view(layer.scale_shape))
        return {
            layer.name: found[self.metadata.stored_name(layer.weight)]
            for layer in self.metadata.layers
            if layer.is_packed
        }

    def clipping_points(self) -> Tensor:
        """(quantizers, 2): α, and the largest magnitude observed."""
        points = self.container.tensors[INPUTS]
        if not bool(torch.isfinite(points).all()) or bool((points[:, 1] < 0).any()):
            raise PackedFileError(f"{self.path}: {INPUTS} holds values that are not clipping points")
        return points

    def _scales(self) -> Tensor:
        scales = self.container.tensors[SCALES]
        if not bool((torch.isfinite(scales) & (scales > 0)).all()):
            raise PackedFileError(f"{self.path}: {SCALES} holds values that are not scales")
        return scales

    def _weight(self, layer: PackedLayer, scale: Tensor) -> StoredWeight:
        try:
            codes = unpack(self.container.tensors[layer.weight].numpy(), layer.weight_bits, layer.elements)
        except PackingError as error:
            raise PackedFileError(f"{self.path}: {layer.weight}: {error}") from error
        exact = torch.float64 if layer.dtype == "F64" else torch.float32
        weight = StoredWeight(
            codes=torch.from_numpy(codes).view(layer.shape),
            scale=scale.to(exact),
            bits=layer.weight_bits,
            channel_axis=layer.channel_axis,
            is_computed=layer.is_computed,
        )
        self._check_stable(layer, weight)
        return weight

    def _check_stable(self, layer: PackedLayer, weight: StoredWeight) -> None:
        """The network will quantize these values again, and must find the codes that are stored.

        The paper's quantizer finds the scale in the values; with a learned one it is given.
        """
        values = weight.values().to(DTYPES[layer.dtype])
        codes, scale = canonical_codes(values, weight.bits, weight.channel_axis)
        if torch.equal(codes, weight.codes.to(codes.dtype)) and torch.equal(scale, weight.scale):
            return
        codes = nearest_codes(values.to(weight.scale.dtype), weight.scale, weight.bits)
        if not torch.equal(codes, weight.codes.to(codes.dtype)):
            raise PackedFileError(f"{self.path}: {layer.weight}: codes and scales do not belong together")


def read_packed(path: str | Path) -> PackedFile:
    """Read and check a file that ``save_packed`` wrote. Never runs code from it."""
    container = read_container(Path(path))
    metadata = _metadata(container)
    _check_names(metadata, container)
    _check_ours(metadata, container)
    return PackedFile(metadata=metadata, container=container)


def _metadata(container: Container) -> PackedMetadata:
    content = parse_json(container.metadata, container.path, "metadata")
    if content.get("schema") != SCHEMA:
        raise PackedFileError(
            f"{container.path} has the schema {short(content.get('schema'))}, this hwbmpq reads {SCHEMA}",
            hint="a newer hwbmpq may read it",
        )
    try:
        return PackedMetadata.model_validate_json(container.metadata)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "metadata"
        raise PackedFileError(f"{container.path}: {field[:200]}: {first['msg'][:300]}") from error


def _check_names(metadata: PackedMetadata, container: Container) -> None:
    tensors, path = container.tensors, container.path
    wanted = {INPUTS, *metadata.shared.values()} | {layer.weight for layer in metadata.packed_once()}
    if missing := sorted(wanted - set(tensors)):
        raise PackedFileError(f"{path}: the tensor {short(missing[0])} is missing")
    if twice := sorted(set(metadata.shared) & set(tensors)):
        raise PackedFileError(
            f"{path}: {short(twice[0])} is stored, but also listed as a name of another tensor"
        )
    by_weight = {layer.weight: layer for layer in metadata.layers}
    for layer in metadata.layers:
        owner = by_weight.get(metadata.stored_name(layer.weight), layer)
        if layer.is_packed and _kind(layer) != _kind(owner):
            raise PackedFileError(
                f"{path}: layers {short(layer.name)} and {short(owner.name)} share one weight, "
                "but describe it differently"
            )


def _kind(layer: PackedLayer) -> tuple[object, ...]:
    return layer.shape, layer.weight_bits, layer.channel_axis, layer.is_packed, layer.is_computed, layer.dtype


def _check_ours(metadata: PackedMetadata, container: Container) -> None:
    """Types and lengths of the tensors that are packed, or not the network's own."""
    once = metadata.packed_once()
    expected: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
        layer.weight: ((packed_length(layer.elements, layer.weight_bits),), ("U8",)) for layer in once
    }
    expected[INPUTS] = ((len(metadata.quantizers), 2), ("F32", "F64"))
    if once:
        expected[SCALES] = ((sum(prod(layer.scale_shape) for layer in once),), ("F32", "F64"))
    elif SCALES in container.tensors:
        raise PackedFileError(f"{container.path}: {SCALES} belongs to no weight")
    for name, (shape, dtypes) in expected.items():
        value = container.tensors.get(name)
        if value is None or tuple(value.shape) != shape or DTYPE_NAMES[value.dtype] not in dtypes:
            found = "is missing" if value is None else f"is {DTYPE_NAMES[value.dtype]} {tuple(value.shape)}"
            raise PackedFileError(f"{container.path}: {short(name)} {found}, not {dtypes[0]} {shape}")
