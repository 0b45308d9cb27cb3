"""Which tensors of a network a packed file holds, and where its bytes go, predicted and actual."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from hwbmpq.costs.stored import SCALES as SCALE
from hwbmpq.costs.stored import WEIGHTS, stored_weight
from hwbmpq.export.packed.container import DTYPES
from hwbmpq.export.packed.file import INPUTS, SCALES, PackedMetadata
from hwbmpq.export.stored_weights import StoredWeight
from hwbmpq.graph.stored import (
    BIASES,
    CLIPPING_BITS,
    NORMS,
    OTHER,
    join,
    label_of,
    names_by_tensor,
    own_state,
    weight_names,
)
from hwbmpq.quant import as_precision, quantized_layers
from hwbmpq.quant.prepare import Width, scale_count, shared_inputs
from hwbmpq.quant.weights import is_parameter
from hwbmpq.values import CLIPPING, OVERHEAD, Layer

HEADER = "file header"
LABELS = (WEIGHTS, SCALE, CLIPPING, BIASES, NORMS, OTHER, HEADER)

_HEADER_BYTES, _TENSOR_BYTES, _LAYER_BYTES = 450, 68, 140
"""Bytes of the file's header: for itself, for each tensor and for each layer, without their names."""


@dataclass(frozen=True, kw_only=True)
class SizeLine:
    label: str
    predicted_bytes: int
    actual_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class SizeAccount:
    """Where the bytes of a file go. All but the ``file header`` is what a memory budget counts."""

    lines: tuple[SizeLine, ...]

    @property
    def on_device(self) -> SizeLine:
        """What the network takes without the file's own overhead."""
        kept = [line for line in self.lines if line.label not in OVERHEAD]
        actual = [line.actual_bytes for line in kept if line.actual_bytes is not None]
        return SizeLine(
            label="on the device",
            predicted_bytes=sum(line.predicted_bytes for line in kept),
            actual_bytes=sum(actual) if actual else None,
        )

    @property
    def predicted_bytes(self) -> int:
        return sum(line.predicted_bytes for line in self.lines)

    @property
    def actual_bytes(self) -> int | None:
        """The size of the file; None if there is none yet."""
        found = [line.actual_bytes for line in self.lines if line.actual_bytes is not None]
        return sum(found) if found else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "predicted_bytes": self.predicted_bytes,
            "actual_bytes": self.actual_bytes,
            "on_device": asdict(self.on_device),
            "lines": [asdict(line) for line in self.lines],
        }


def predicted_size(
    model: nn.Module, layers: Iterable[Layer], precisions: Mapping[str, Width], *, per_channel: bool = False
) -> SizeAccount:
    """What the packed file will take, before there is one.

    ``layers`` are the network's (``hwbmpq.describe``), ``precisions`` the widths of all of them. The network may be
    float or quantized, or on the meta device.
    """
    layers = list(layers)
    bits = {layer.name: as_precision(precisions[layer.name]).weight_bits for layer in layers}
    stored = [
        stored_weight(
            layer.parameters,
            bits[layer.name],
            scales=scale_count(layer, per_channel),
            float_bits=layer.float_bits,
        )
        for layer in layers
    ]
    inputs = shared_inputs(layers, per_channel=per_channel)
    owners = [layer.name for layer in layers if layer.parameters]
    return _account(_predict(model, stored, bits, owners, len(inputs)))


def account_for(
    model: nn.Module, metadata: PackedMetadata, tensors: Mapping[str, Tensor], header_bytes: int
) -> SizeAccount:
    """The account of a file that was written."""
    owners = {metadata.stored_name(layer.weight): layer for layer in reversed(metadata.layers)}
    bits = {layer.name: layer.weight_bits for layer in metadata.layers}
    stored = [
        stored_weight(
            layer.elements,
            layer.weight_bits,
            scales=prod(layer.scale_shape),
            float_bits=8 * DTYPES[layer.dtype].itemsize,
        )
        for layer in owners.values()
    ]
    names = [layer.name for layer in owners.values()]
    predicted = _predict(model, stored, bits, names, len(metadata.quantizers))
    packed = {layer.weight for layer in metadata.packed_once()}
    labels = dict.fromkeys(packed, WEIGHTS) | {SCALES: SCALE, INPUTS: CLIPPING}
    actual: Counter[str] = Counter({HEADER: header_bytes})
    for name, value in tensors.items():
        actual[labels.get(name) or label_of(model, name)] += value.nbytes
    return _account(predicted, actual)


def stored_bytes(model: nn.Module, weights: Mapping[str, StoredWeight]) -> Counter[str]:
    """What a quantized network takes on a device, by label: what a memory budget counts. ``weights`` are those stored."""
    layers = dict(quantized_layers(model))
    owners = {
        id(layer.weight): name for name, layer in reversed(layers.items())
    }  # a shared weight counts once
    stored = [
        stored_weight(
            own.numel(),
            layers[name].weight_bits,
            scales=weights[name].scale.numel() if name in weights else 0,
            float_bits=8 * own.element_size(),
        )
        for name in owners.values()
        for own in [cast(Tensor, layers[name].weight)]
    ]
    inputs = {id(layer.input_quantizer) for layer in layers.values()}
    found = _predict(
        model, stored, {name: layer.weight_bits for name, layer in layers.items()}, (), len(inputs)
    )
    del found[HEADER]
    return found


def _account(predicted: Mapping[str, int], actual: Mapping[str, int] | None = None) -> SizeAccount:
    return SizeAccount(
        lines=tuple(
            SizeLine(
                label=label,
                predicted_bytes=predicted.get(label, 0),
                actual_bytes=None if actual is None else actual.get(label, 0),
            )
            for label in LABELS
        )
    )


def _predict(
    model: nn.Module,
    stored: Iterable[Mapping[str, int]],
    bits: Mapping[str, int],
    owners: Iterable[str],
    inputs: int,
) -> Counter[str]:
    """Bytes by label. ``stored`` has the bits of each weight, ``owners`` the first layer that owns each."""
    found: Counter[str] = Counter()
    for lines in stored:
        found.update({label: size // 8 for label, size in lines.items()})
    found[CLIPPING] += CLIPPING_BITS // 8 * inputs
    rest = _rest(model, bits)
    for name, value in rest.items():
        found[label_of(model, name)] += value.numel() * value.element_size()
    names = [*rest, *(name if is_parameter(model, name) else join(name, "weight") for name in owners)]
    found[HEADER] = (
        _HEADER_BYTES
        + sum(len(name) + _TENSOR_BYTES for name in names)
        + sum(2 * len(name) + _LAYER_BYTES for name in bits)
    )
    return found


def _rest(model: nn.Module, layers: Iterable[str]) -> dict[str, Tensor]:
    """What is stored as it is: all but the layers' weights."""
    weights = weight_names(model, layers)
    state = own_state(model)
    return {group[0]: state[group[0]] for group in names_by_tensor(state) if not weights & set(group)}


def is_channels_last(model: nn.Module) -> bool:
    """Whether weights are in channels-last order, on which the choice of kernels and their rounding depend."""
    return any(
        value.dim() == 4
        and not value.is_contiguous()
        and value.is_contiguous(memory_format=torch.channels_last)
        for value in model.parameters()
    )
