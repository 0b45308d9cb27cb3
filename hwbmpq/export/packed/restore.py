"""From a packed file back to a network."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from hwbmpq.export.packed.container import DTYPES
from hwbmpq.export.packed.file import PackedFile
from hwbmpq.export.packed.fit import check_fit
from hwbmpq.export.packed.network_state import own_state, weight_names
from hwbmpq.export.stored_weights import StoredWeight
from hwbmpq.quant import assign, quantized_layers
from hwbmpq.quant.input_quantizer import InputQuantizer
from hwbmpq.quant.prepare import SharedInput, quantize_layers


@torch.no_grad()
def restore(model: nn.Module, file: PackedFile) -> nn.Module:
    """Change ``model``, a float network, in place: it becomes the quantized one that was saved, in evaluation mode.

    Nothing is changed if the file does not fit. Layers that compute their weight on the way get the result of that
    as a frozen weight, which does not train; all else does. Returns ``model``.
    """
    check_fit(model, file)
    weights, points = file.weights(), file.clipping_points()
    tensors = {name: file.tensor(name) for name in file.stored}
    aliases = {name: tensors[first] for name, first in file.metadata.shared.items() if first in tensors}
    _take_types(model, file)
    quantizers = quantize_layers(model, _inputs(file))
    assign(model, {layer.name: (layer.weight_bits, layer.activation_bits) for layer in file.metadata.layers})
    _set_weights(model, file, weights)
    _set_quantizers(file, quantizers, points)
    model.load_state_dict(tensors | aliases, strict=False)  # names were compared; the rest is set already
    _lay_out(model, torch.channels_last if file.metadata.channels_last else torch.contiguous_format)
    return model.eval()


def _take_types(model: nn.Module, file: PackedFile) -> None:
    """A network that was saved in half or double precision is loaded so."""
    types = {name: where.dtype for name, where in file.stored.items()}
    modules = dict(model.named_modules(remove_duplicate=False))
    for layer in file.metadata.layers:
        if layer.is_packed:
            names = weight_names(model, [modules[layer.name]])
            types |= dict.fromkeys([layer.weight, *names], layer.dtype)
    for name, value in own_state(model).items():
        dtype = DTYPES[types[file.metadata.stored_name(name)]]
        if value.is_floating_point() and value.dtype != dtype:
            value.data = value.data.to(dtype)


def _inputs(file: PackedFile) -> list[SharedInput]:
    readers: list[dict[str, int | None]] = [{} for _ in file.metadata.quantizers]
    for layer in file.metadata.layers:
        readers[layer.quantizer][layer.name] = layer.channel_axis
    return [
        SharedInput(name=found.name, signed=found.signed, trainable=found.trainable, readers=names)
        for found, names in zip(file.metadata.quantizers, readers, strict=True)
    ]


def _set_weights(model: nn.Module, file: PackedFile, weights: Mapping[str, StoredWeight]) -> None:
    modules = dict(quantized_layers(model))
    for layer in file.metadata.layers:
        if not layer.is_packed:
            continue
        module, values = modules[layer.name], weights[layer.name].values().to(DTYPES[layer.dtype])
        own = module._parameters.get("weight")
        if own is not None:
            own.copy_(values)
        if layer.is_computed:
            like: Tensor = module.weight  # type: ignore[assignment]
            module.freeze_weight(values.to(like.device))


def _set_quantizers(file: PackedFile, quantizers: Iterable[InputQuantizer], points: Tensor) -> None:
    for found, quantizer, row in zip(file.metadata.quantizers, quantizers, points, strict=True):
        alpha, observed = row.to(quantizer.alpha.device, DTYPES[found.dtype])
        quantizer.alpha.data = alpha.clone()
        quantizer.observed = observed.clone()
        quantizer.set_extra_state(torch.tensor([found.batches, found.has_range]))


def _lay_out(model: nn.Module, form: torch.memory_format) -> None:
    for value in [*model.parameters(), *model.buffers()]:
        if value.dim() == 4:
            value.data = value.data.contiguous(memory_format=form)
