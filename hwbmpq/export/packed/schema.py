"""What a packed file says about its tensors: schema ``hwbmpq/packed/v1``, JSON in the safetensors metadata.

==================  ====================================================================================
tensor              content
==================  ====================================================================================
``LAYER.weight``    U8: the codes of the layer's weight (``bitpack``), if the layer ``is_packed``
``hwbmpq:scales``   the scales of all packed weights, one after the other, in the order of the layers
``hwbmpq:inputs``   one row for each input quantizer: α, and the largest magnitude observed
all others          entries of the network's state_dict, by their own names
==================  ====================================================================================
"""

from math import prod
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from hwbmpq.quant import CALIBRATION_BATCHES
from hwbmpq.values import is_width

SCHEMA: Final = "hwbmpq/packed/v1"
SCALES, INPUTS = "hwbmpq:scales", "hwbmpq:inputs"
"""Tensors of ours; no module or parameter is called so."""

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
    quantizer: int = Field(ge=0)
    """Position in ``quantizers`` of the one that its input goes through."""
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
        if self.is_packed and self.weight_bits > 16:
            raise ValueError(f"layer {self.name!r}: weights of 32 bits are not packed")
        if self.channel_axis is not None and self.channel_axis >= len(self.shape):
            raise ValueError(f"layer {self.name!r}: there is no axis {self.channel_axis} for its channels")
        return self

    @property
    def weight(self) -> str:
        """The weight's name in the file and in the state_dict."""
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
        used = {layer.quantizer for layer in self.layers}
        if used != set(range(len(self.quantizers))):
            raise ValueError(
                f"the layers use the quantizers {sorted(used)[:8]}, there are {len(self.quantizers)}"
            )
        if set(self.shared) & set(self.shared.values()):
            raise ValueError("a further name of a tensor is taken for the tensor itself")
        return self

    def stored_name(self, name: str) -> str:
        """The name under which a tensor is stored."""
        return self.shared.get(name, name)

    def packed_once(self) -> list[PackedLayer]:
        """The layers whose weights are packed, one for each weight, in the order of their scales."""
        return [layer for layer in self.layers if layer.is_packed and layer.weight not in self.shared]

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, exclude_defaults=True)
