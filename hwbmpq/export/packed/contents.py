"""Which tensors of a network a packed file holds, and where its bytes go, predicted and actual."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn

from hwbmpq.export.packed.file import INPUTS, SCALES, PackedMetadata
from hwbmpq.graph.stored import (
    BIASES,
    CLIPPING,
    CLIPPING_BITS,
    NORMS,
    OTHER,
    join,
    label_of,
    names_by_tensor,
    own_state,
    weight_names,
)
from hwbmpq.quant import as_precision
from hwbmpq.quant.prepare import Width, shared_inputs
from hwbmpq.values import FLOAT_BITS, Layer

WEIGHTS, SCALE = "packed weights", "scales"
HEADER = "file header"
LABELS = (WEIGHTS, SCALE, CLIPPING, BIASES, NORMS, OTHER, HEADER)

_SCALE_BYTES = 4
_HEADER_BYTES, _TENSOR_BYTES, _LAYER_BYTES = 450, 68, 140
"""Bytes of the file's header: for itself, for each tensor and for each layer, without their names."""


@dataclass(frozen=True, kw_only=True)
class SizeLine:
    label: str
    predicted_bytes: int
    actual_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class SizeAccount:
    """``packed weights`` is what a memory budget counts, plus the padding of last bytes; the rest comes on top."""

    lines: tuple[SizeLine, ...]

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
    inputs = shared_inputs(layers, per_channel=per_channel)
    axes = {name: axis for shared in inputs for name, axis in shared.readers.items()}
    weights = {
        layer.name: (layer.parameters, 1 if (axis := axes[layer.name]) is None else layer.weight_shape[axis])
        for layer in layers
        if layer.parameters
    }
    return _account(_predict(model, weights, bits, len(inputs)))


def account_for(
    model: nn.Module, metadata: PackedMetadata, tensors: Mapping[str, Tensor], header_bytes: int
) -> SizeAccount:
    """The account of a file that was written."""
    owners = {metadata.stored_name(layer.weight): layer for layer in reversed(metadata.layers)}
    weights = {layer.name: (layer.elements, prod(layer.scale_shape)) for layer in owners.values()}
    bits = {layer.name: layer.weight_bits for layer in metadata.layers}
    predicted = _predict(model, weights, bits, len(metadata.quantizers))
    packed = {layer.weight for layer in metadata.packed_once()}
    labels = dict.fromkeys(packed, WEIGHTS) | {SCALES: SCALE, INPUTS: CLIPPING}
    actual: Counter[str] = Counter({HEADER: header_bytes})
    for name, value in tensors.items():
        actual[labels.get(name) or label_of(model, name)] += value.nbytes
    return _account(predicted, actual)


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
    model: nn.Module, weights: Mapping[str, tuple[int, int]], bits: Mapping[str, int], inputs: int
) -> Counter[str]:
    """Bytes by label. ``weights`` has the elements and scales of each weight, by the first layer that owns it."""
    quantized = {name: counts for name, counts in weights.items() if bits[name] != FLOAT_BITS}
    rest = _rest(model, [name for name, width in bits.items() if width != FLOAT_BITS])
    names = [*rest, *(join(name, "weight") for name in quantized)]
    found = Counter(
        {
            WEIGHTS: ceil(sum(elements * bits[name] for name, (elements, _) in quantized.items()) / 8),
            SCALE: _SCALE_BYTES * sum(scales for _, scales in quantized.values()),
            CLIPPING: CLIPPING_BITS // 8 * inputs,
            HEADER: _HEADER_BYTES
            + sum(len(name) + _TENSOR_BYTES for name in names)
            + sum(2 * len(name) + _LAYER_BYTES for name in bits),
        }
    )
    for name, value in rest.items():
        found[label_of(model, name)] += value.numel() * value.element_size()
    return found


def _rest(model: nn.Module, quantized: Iterable[str]) -> dict[str, Tensor]:
    """What is stored as it is: all but the quantized layers' weights."""
    packed = weight_names(model, map(model.get_submodule, quantized))
    state = own_state(model)
    return {group[0]: state[group[0]] for group in names_by_tensor(state) if not packed & set(group)}


def is_channels_last(model: nn.Module) -> bool:
    """Whether weights are in channels-last order, on which the choice of kernels and their rounding depend."""
    return any(
        value.dim() == 4
        and not value.is_contiguous()
        and value.is_contiguous(memory_format=torch.channels_last)
        for value in model.parameters()
    )
