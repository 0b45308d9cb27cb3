"""Writing ``model.safetensors``: a quantized network, each weight stored at exactly its bits."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import ValidationError
from torch import Tensor, nn

import hwbmpq
from hwbmpq.data.inputs import Inputs
from hwbmpq.errors import HwbmpqError
from hwbmpq.export.packed.bitpack import pack
from hwbmpq.export.packed.container import DTYPE_NAMES, write_container
from hwbmpq.export.packed.contents import SizeAccount, account_for, is_channels_last
from hwbmpq.export.packed.file import (
    INPUTS,
    SCALES,
    SCHEMA,
    FloatType,
    Origin,
    PackedLayer,
    PackedMetadata,
    PackedQuantizer,
)
from hwbmpq.export.stored_weights import StoredWeight, stored_weights
from hwbmpq.graph.stored import join, names_by_tensor, own_state, weight_names
from hwbmpq.quant import quantized_layers
from hwbmpq.quant.layers import FROZEN, QuantizedLayer
from hwbmpq.quant.prepare import input_quantizers
from hwbmpq.quant.quantizers import InputQuantizer
from hwbmpq.quant.weights import QuantizedWeight, is_parameter
from hwbmpq.search.loop_checks import warn_if_undecided
from hwbmpq.values import FLOAT_BITS

Layers = Mapping[str, QuantizedLayer | QuantizedWeight]

FILE_NAME = "model.safetensors"
"""In a run directory."""


def save_packed(
    model: nn.Module, path: str | Path, *, example_input: Inputs, origin: Mapping[str, Any] | None = None
) -> SizeAccount:
    """Write a quantized network atomically, for ``hwbmpq.load`` to read.

    ``origin`` is what the network came from: ``model`` (a specification such as ``timm:resnet18``), ``num_classes``,
    ``input_size``, ``target``, and whatever else JSON can hold. Without ``model``, loading needs the network as well.
    ``example_input`` (a tensor, a tuple of arguments or a dict of keyword arguments) is used only if layers compute their
    weights in the forward pass. The network is not changed.
    """
    warn_if_undecided(model)
    metadata, tensors = _content(model, example_input, origin or {})
    header_bytes = write_container(Path(path), tensors, metadata.to_json())
    return account_for(model, metadata, tensors, header_bytes)


def _content(
    model: nn.Module, example_input: Inputs, origin: Mapping[str, Any]
) -> tuple[PackedMetadata, dict[str, Tensor]]:
    layers = _layers_of(model)
    weights = stored_weights(model, example_input)
    state = own_state(model)
    packed = _packable(model, layers, weights, state)
    rest, shared = _stored_once(model, weights, packed, state)
    quantizers = input_quantizers(layers.values())
    metadata = PackedMetadata(
        schema=SCHEMA,
        hwbmpq=hwbmpq.__version__,
        origin=_checked_origin(origin),
        channels_last=is_channels_last(model),
        layers=tuple(
            _describe(model, layer, weights.get(name), quantizers, is_packed=name in packed)
            for name, layer in layers.items()
        ),
        quantizers=tuple(map(_describe_quantizer, quantizers)),
        shared=shared,
    )
    ours = _packed_tensors(metadata, weights) | {INPUTS: _clipping_points(quantizers)}
    return metadata, ours | rest


def _packed_tensors(metadata: PackedMetadata, weights: Mapping[str, StoredWeight]) -> dict[str, Tensor]:
    once = {layer.weight: weights[layer.name] for layer in metadata.packed_once()}
    tensors = {
        name: torch.from_numpy(pack(weight.codes.numpy(), weight.bits)) for name, weight in once.items()
    }
    if once:
        # All in one: a header entry of its own is longer than most layers' scales. torch.cat takes the widest type.
        tensors[SCALES] = torch.cat([weight.scale.flatten() for weight in once.values()])
    return tensors


def _layers_of(model: nn.Module) -> Layers:
    layers = dict(quantized_layers(model))
    if not layers:
        raise HwbmpqError(
            "the network has no quantized layers", hint="prepare it first: hwbmpq.quant.prepare"
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, layer in layers.items():
        holder = layer.owner if isinstance(layer, QuantizedWeight) else layer
        path = name.rpartition(".")[0] if isinstance(layer, QuantizedWeight) and name not in modules else name
        if modules.get(path) is not holder:
            raise HwbmpqError(
                f"layer '{name}' is not at this place in the network",
                hint="save the network that was prepared, not one that wraps it (model.module, model._orig_mod)",
            )
        if FROZEN in layer._buffers and layer.weight_bits == FLOAT_BITS:
            raise HwbmpqError(
                f"layer '{name}' has a frozen weight, which cannot be stored in float",
                hint="assign it 16 bits or fewer",
            )
    return layers


def _checked_origin(origin: Mapping[str, Any]) -> Origin:
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in origin.items()}
    try:
        return Origin.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise HwbmpqError(f"origin: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _packable(
    model: nn.Module,
    layers: Layers,
    weights: Mapping[str, StoredWeight],
    state: dict[str, Tensor],
) -> set[str]:
    """Layers whose weight can be rebuilt from codes: its tensor is not needed in float, or at another width."""
    groups = {name: group for group in names_by_tensor(state) for name in group}
    layer_of = {entry: layer for layer in weights for entry in weight_names(model, [layer])}

    def use_of(name: str) -> object:
        """What a tensor is needed for; equal for uses that one set of codes serves."""
        layer = layer_of.get(name)
        if layer is None:
            return name
        weight = weights[layer]
        return layer if weight.is_computed else (weight.bits, weight.channel_axis)

    def is_packable(name: str) -> bool:
        own = weight_names(model, [name])
        return FROZEN in layers[name]._buffers or all(
            len(set(map(use_of, groups[entry]))) == 1 for entry in own
        )

    return {name for name in weights if is_packable(name)}


def _stored_once(
    model: nn.Module,
    weights: Mapping[str, StoredWeight],
    packed: set[str],
    state: dict[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to be stored as they are, and the further names of all that is stored."""
    left_out = weight_names(model, [name for name in packed if weights[name].is_computed])
    codes = {
        name if is_parameter(model, name) else join(name, "weight")
        for name in packed
        if not weights[name].is_computed
    }
    rest: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    kept = {name: value for name, value in state.items() if name not in left_out}
    for group in names_by_tensor(kept):
        first = next((name for name in group if name in codes), group[0])
        if first not in codes:
            rest[first] = kept[first]
        shared |= {name: first for name in group if name != first}
    return rest, shared


def _describe(
    model: nn.Module,
    layer: QuantizedLayer | QuantizedWeight,
    weight: StoredWeight | None,
    quantizers: list[InputQuantizer],
    *,
    is_packed: bool,
) -> PackedLayer:
    own: Tensor = layer.weight  # type: ignore[assignment]
    if weight is not None and weight.codes.shape != own.shape:
        raise HwbmpqError(
            f"layer '{layer.layer_name}' computes a weight of shape {tuple(weight.codes.shape)} from one of "
            f"{tuple(own.shape)}: it cannot be stored",
            hint="leave the layer in float (32 bits)",
        )
    return PackedLayer(
        name=layer.layer_name,
        shape=tuple(own.shape),
        weight_bits=layer.weight_bits,
        activation_bits=layer.activation_bits,
        quantizer=quantizers.index(layer.input_quantizer) if isinstance(layer, QuantizedLayer) else None,
        is_parameter=is_parameter(model, layer.layer_name),
        channel_axis=layer.channel_axis,
        is_computed=is_packed and weight is not None and weight.is_computed,
        is_packed=is_packed,
        dtype=_float_type(own),
    )


def _describe_quantizer(quantizer: InputQuantizer) -> PackedQuantizer:
    return PackedQuantizer(
        name=quantizer.name,
        signed=quantizer.signed,
        trainable=quantizer.trainable,
        batches=quantizer.calibration.batches or int(quantizer.calibration.has_alpha),
        has_range=quantizer.calibration.has_range,
        steps_below=quantizer.steps_below,
        dtype=_float_type(quantizer.alpha),
    )


def _float_type(values: Tensor) -> FloatType:
    if not values.is_floating_point() or values.dtype not in DTYPE_NAMES:
        raise HwbmpqError(f"weights of type {values.dtype} cannot be stored")
    return cast(FloatType, DTYPE_NAMES[values.dtype])


def _clipping_points(quantizers: Iterable[InputQuantizer]) -> Tensor:
    rows = [torch.stack([quantizer.alpha.detach(), quantizer.observed]) for quantizer in quantizers]
    if not rows:
        return torch.empty(0, 2)
    dtype = torch.float64 if any(row.dtype == torch.float64 for row in rows) else torch.float32
    return torch.stack([row.to(dtype).cpu() for row in rows])
