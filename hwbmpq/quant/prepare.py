"""Turn a float network into a quantized one, in place, and switch its widths."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
from torch import nn

from hwbmpq.deprecated import renamed_arguments
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant.layers import QuantizedLayer, quantized_class
from hwbmpq.quant.quantizers import InputQuantizer, WeightQuantizer
from hwbmpq.quant.weights import QuantizedWeight, find_weight, hold_weight
from hwbmpq.registry import QUANTIZERS
from hwbmpq.values import Layer, Precision

FIRST_LAST_PRECISION = Precision(weight_bits=16, activation_bits=16)
"""Precision of the first and the last layer, as in the paper."""

PAPER = "paper"
"""The default weight quantizer."""

Width = int | tuple[int, int] | Precision
"""One width for weights and input, a (weight, activation) pair, or a ``Precision``."""


@renamed_arguments(end_precision="first_last_precision")
def prepare(
    model: nn.Module,
    layers: Iterable[Layer],
    *,
    precision: Width = 4,
    first_last_precision: Width | None = FIRST_LAST_PRECISION,
    per_channel: bool = False,
    quantizer: str = PAPER,
) -> nn.Module:
    """Change ``model`` in place: its ``layers`` quantize their weights and inputs from now on.

    ``layers`` come from ``hwbmpq.describe(model, example_input)``. The module objects, their parameters,
    attributes, hooks and state_dict keys stay; float checkpoints still load. Each layer gains a
    ``weight_quantizer`` of the kind that ``quantizer`` names, and an ``input_quantizer``, shared by
    all layers that read the same tensor. Where a layer is ``weight_only`` (LSTM, attention, embedding …), what it reads stays
    in float, and reading the parameter as an attribute (``model.embedding.weight``) gives the quantized weight. ``precision`` is set everywhere, ``first_last_precision`` on the first and
    the last layer (None: ``precision`` there too). ``per_channel`` gives every output channel of a weight its own scale.

    Create the optimizer afterwards, so that it holds the clipping points α and the weight quantizers' parameters
    (``parameter_groups`` separates them). Returns ``model``.
    """
    layers = list(layers)
    ends = as_precision(precision if first_last_precision is None else first_last_precision)
    inner = as_precision(precision)
    weights = {layer.name: _scale_axis(layer, per_channel) for layer in layers if layer.weight_only}
    quantize_layers(model, shared_inputs(layers, per_channel=per_channel), quantizer, weights)
    return assign(model, {layer.name: ends if layer.is_end else inner for layer in layers})


@dataclass(frozen=True, kw_only=True)
class SharedInput:
    """A tensor that layers read: how it is quantized, and for which layers."""

    name: str
    """What error messages call it."""
    signed: bool
    trainable: bool
    readers: Mapping[str, int | None]
    """By layer name: the axis of its weight that has a scale for each index; None for a single scale."""


def shared_inputs(layers: Iterable[Layer], *, per_channel: bool) -> list[SharedInput]:
    """The tensors that ``layers`` read and round, each once."""
    return [
        SharedInput(
            name=f"layer '{readers[0].name}'",
            signed=any(layer.input_signed for layer in readers),
            trainable=not any(layer.reads_network_input for layer in readers),
            readers={layer.name: _scale_axis(layer, per_channel) for layer in readers},
        )
        for readers in _layers_by_tensor([layer for layer in layers if not layer.weight_only])
    ]


def quantize_layers(
    model: nn.Module,
    inputs: Iterable[SharedInput],
    quantizer: str = PAPER,
    weights: Mapping[str, int | None] | None = None,
) -> list[InputQuantizer]:
    """Change ``model`` in place: the readers of ``inputs`` become quantized layers, their weights still in float.

    ``weights`` are the layers of which only the weight is quantized, with the axes as in ``SharedInput.readers``.
    Returns the input quantizers, one for each input.
    """
    inputs, weight_quantizer, weights = list(inputs), QUANTIZERS.get(quantizer), weights or {}
    modules = {name: model.get_submodule(name) for shared in inputs for name in shared.readers}
    holders = {name: find_weight(model, name) for name in weights}
    quantized = {name for name, _ in quantized_layers(model)}
    for name in (*modules, *holders):
        if name in quantized:
            raise HwbmpqError(f"layer {name!r} is quantized already", hint="use assign() to change widths")
    found = []
    for shared in inputs:
        readers = [modules[name] for name in shared.readers]
        like: Any = readers[0].weight
        input_quantizer = InputQuantizer(
            signed=shared.signed,
            trainable=shared.trainable,
            name=shared.name,
            like=like,
            learns_step=weight_quantizer.learns_inputs,
        ).train(readers[0].training)
        for module, (name, axis) in zip(readers, shared.readers.items(), strict=True):
            _quantize_in_place(module, name, axis, input_quantizer, weight_quantizer)
        found.append(input_quantizer)
    for name, (owner, entry) in holders.items():
        like = owner._parameters[entry]
        weight = weight_quantizer(channel_axis=weights[name], name=f"layer '{name}'", like=like)
        hold_weight(name, owner, entry, weight)
    _switch_off_fused_paths(model)
    return found


def assign(model: nn.Module, allocation: Any) -> nn.Module:
    """Change ``model`` in place: set its layers' widths; parameters and optimizer state stay.

    ``allocation`` maps layer names to widths, or has such a mapping as its ``bits``. Layers that it
    does not name keep theirs. Returns ``model``.
    """
    widths: Mapping[str, Width] = getattr(allocation, "bits", allocation)
    layers = dict(quantized_layers(model))
    unknown = sorted(set(widths) - set(layers))
    if unknown:
        raise HwbmpqError(
            f"the model has no quantized layer named {', '.join(unknown)}; it has: {', '.join(layers)}"
        )
    # Check all before setting any.
    precisions = {name: as_precision(width) for name, width in widths.items()}
    for name, precision in precisions.items():
        layers[name].set_precision(precision)
    return model


def quantized_layers(model: nn.Module) -> Iterator[tuple[str, QuantizedLayer | QuantizedWeight]]:
    """The layers that ``prepare`` changed, by the names they have in ``model``'s ``LayerGraph``."""
    for module in model.modules():
        if isinstance(module, (QuantizedLayer, QuantizedWeight)):
            yield module.layer_name, module


def input_quantizers(layers: Iterable[QuantizedLayer | QuantizedWeight]) -> list[InputQuantizer]:
    """What rounds the inputs of ``layers``, each once."""
    return list(dict.fromkeys(layer.input_quantizer for layer in layers if isinstance(layer, QuantizedLayer)))


def parameter_groups(
    model: nn.Module, *, weight_decay: float, alpha_weight_decay: float
) -> list[dict[str, Any]]:
    """Groups for an optimizer: the network's own parameters, the clipping points α, the weight quantizers' parameters.

    The last group exists if they have any; it has no weight decay.
    """
    modules = list(model.modules())
    alphas = [module.alpha for module in modules if isinstance(module, InputQuantizer)]
    learned = [p for module in modules if isinstance(module, WeightQuantizer) for p in module.parameters()]
    others = {id(parameter) for parameter in (*alphas, *learned)}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if id(p) not in others], "weight_decay": weight_decay},
        {"params": alphas, "weight_decay": alpha_weight_decay},
    ]
    return groups + ([{"params": learned, "weight_decay": 0.0}] if learned else [])


def as_precision(width: Width) -> Precision:
    """Accept a width as ``4``, ``(4, 8)`` or a ``Precision``."""
    if isinstance(width, Precision):
        return width
    weight_bits, activation_bits = width if isinstance(width, (tuple, list)) else (width, width)
    return Precision(weight_bits=weight_bits, activation_bits=activation_bits)


def _layers_by_tensor(layers: list[Layer]) -> list[list[Layer]]:
    """Layers grouped by the tensors they read; a layer that runs twice joins the readers of both."""
    graph = nx.Graph()
    for layer in layers:
        graph.add_node(layer.name)
        graph.add_edges_from((layer.name, ("tensor", tensor)) for tensor in layer.reads)
    groups = nx.connected_components(graph)
    group_of = {name: index for index, group in enumerate(groups) for name in group}
    found: dict[int, list[Layer]] = {}
    for layer in layers:
        found.setdefault(group_of[layer.name], []).append(layer)
    return list(found.values())


def _quantize_in_place(
    module: nn.Module,
    name: str,
    channel_axis: int | None,
    input_quantizer: InputQuantizer,
    weight_quantizer: type[WeightQuantizer],
) -> None:
    like: Any = module.weight
    module.__class__ = quantized_class(type(module))
    assert isinstance(module, QuantizedLayer)
    module.layer_name = name
    module.input_quantizer = input_quantizer
    module.weight_quantizer = weight_quantizer(
        channel_axis=channel_axis, name=f"layer '{name}'", like=like
    ).train(module.training)


def _switch_off_fused_paths(model: nn.Module) -> None:
    """In evaluation, torch's transformer layer passes its weights to one fused kernel and bypasses the quantizers."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # which makes the kernel inapplicable


def scale_count(layer: Layer, per_channel: bool) -> int:
    """Scales that a layer's weight has: one, or one per index of its output axis."""
    axis = _scale_axis(layer, per_channel)
    return 1 if axis is None else layer.weight_shape[axis]


def _scale_axis(layer: Layer, per_channel: bool) -> int | None:
    """Transposed convolutions hold their output channels (of one group) on the second axis."""
    if not per_channel:
        return None
    return 1 if layer.is_transposed else layer.scale_axis
