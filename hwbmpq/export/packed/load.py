"""``hwbmpq.load``: from a packed file to a network that computes what the saved one did."""

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError, ModelLoadError, UnknownNameError
from hwbmpq.export.packed.container import DTYPE_NAMES, DTYPES, PackedFileError, short
from hwbmpq.export.packed.file import PackedFile, PackedLayer, read_packed
from hwbmpq.export.packed.save import FILE_NAME
from hwbmpq.export.stored_weights import StoredWeight
from hwbmpq.graph.operations import WEIGHTED_MODULES
from hwbmpq.graph.stored import names_by_tensor, own_state, weight_names
from hwbmpq.models import load_model
from hwbmpq.models.bounded import bytes_to_build
from hwbmpq.quant import assign, quantized_layers
from hwbmpq.quant.layers import MadeClass
from hwbmpq.quant.learned import LearnedStepQuantizer
from hwbmpq.quant.prepare import SharedInput, quantize_layers
from hwbmpq.quant.quantizers import InputQuantizer
from hwbmpq.quant.weights import QuantizedWeight, can_hold

_SAFE_SOURCES = ("timm", "torchvision", "hwbmpq")
"""Kinds of specifications that run code of installed packages only."""
_ANOTHER = "is it the network that was saved, with as many classes?"


@torch.no_grad()
def restore(model: nn.Module, file: PackedFile) -> nn.Module:
    """Change ``model``, a float network, in place: it becomes the quantized one that was saved, in evaluation mode.

    Nothing is changed if the file does not fit. Layers that compute their weight in the forward pass get the
    result as a frozen weight, which is not trained; everything else is. Returns ``model``.
    """
    check_fit(model, file)
    weights, points = file.weights(), file.clipping_points()
    tensors = file.stored
    aliases = {name: tensors[first] for name, first in file.metadata.shared.items() if first in tensors}
    _take_types(model, file)
    weight_only = {
        layer.name: layer.channel_axis for layer in file.metadata.layers if layer.quantizer is None
    }
    quantizers = quantize_layers(model, _inputs(file), weights=weight_only)
    assign(model, {layer.name: (layer.weight_bits, layer.activation_bits) for layer in file.metadata.layers})
    _set_weights(model, file, weights)
    _set_quantizers(file, quantizers, points)
    model.load_state_dict(tensors | aliases, strict=False)  # names were compared; the rest is set already
    _keep_scales(model, weights)
    _lay_out(model, torch.channels_last if file.metadata.channels_last else torch.contiguous_format)
    return model.eval()


def _take_types(model: nn.Module, file: PackedFile) -> None:
    """A network that was saved in half or double precision is loaded in the same precision."""
    types = {name: value.dtype for name, value in file.stored.items()}
    for layer in file.metadata.layers:
        if layer.is_packed:
            names = weight_names(model, [layer.name])
            types |= dict.fromkeys([layer.weight, *names], DTYPES[layer.dtype])
    for name, value in own_state(model).items():
        dtype = types[file.metadata.stored_name(name)]
        if value.is_floating_point() and value.dtype != dtype:
            value.data = value.data.to(dtype)


def _inputs(file: PackedFile) -> list[SharedInput]:
    readers: list[dict[str, int | None]] = [{} for _ in file.metadata.quantizers]
    for layer in file.metadata.layers:
        if layer.quantizer is not None:
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
        if isinstance(module, QuantizedWeight):
            module.weight.copy_(values)
            continue
        own = module._parameters.get("weight")
        if own is not None:
            own.copy_(values)
        if layer.is_computed:
            like: Tensor = module.weight  # type: ignore[assignment]
            module.freeze_weight(values.to(like.device))


def _keep_scales(model: nn.Module, weights: Mapping[str, StoredWeight]) -> None:
    """Give layers a quantizer with the stored scale, unless the paper's finds it in the weights."""
    for name, module in quantized_layers(model):
        if name not in weights:
            continue
        own, stored = module.weight_quantizer, weights[name]
        values = stored.values()
        codes, scale = own.codes_and_scale(values)
        if torch.equal(codes, stored.codes.to(codes.dtype)) and torch.equal(scale, stored.scale):
            continue
        like = values.to(cast(Tensor, module.weight).device)
        learned = LearnedStepQuantizer(channel_axis=own.channel_axis, name=own.name, like=like)
        learned.set_bits(own.bits)
        learned.take_scale(stored.scale)
        module.weight_quantizer = learned


def _set_quantizers(file: PackedFile, quantizers: Iterable[InputQuantizer], points: Tensor) -> None:
    for found, quantizer, row in zip(file.metadata.quantizers, quantizers, points, strict=True):
        alpha, observed = row.to(quantizer.alpha.device, DTYPES[found.dtype])
        quantizer.alpha.data = alpha.clone()
        quantizer.observed = observed.clone()
        quantizer.set_extra_state(torch.tensor([found.batches, found.has_range, found.steps_below]))


def _lay_out(model: nn.Module, form: torch.memory_format) -> None:
    for value in [*model.parameters(), *model.buffers()]:
        if value.dim() == 4:
            value.data = value.data.contiguous(memory_format=form)


def check_fit(model: nn.Module, file: PackedFile) -> None:
    """An error unless the network, which may be on the meta device, is the one that was saved."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for layer in file.metadata.layers:
        path = layer.name.rpartition(".")[0] if layer.is_parameter else layer.name
        _check_layer(modules.get(path), layer, file)
    made = weight_names(model, [layer.name for layer in file.metadata.layers if layer.is_computed])
    state = {name: value for name, value in own_state(model).items() if name not in made}
    _check_names(state, file)
    _check_tensors(state, file)
    _check_sharing(state, file)


def _check_layer(module: nn.Module | None, layer: PackedLayer, file: PackedFile) -> None:
    where = f"{file.path}: layer {short(layer.name)}"
    if isinstance(module, MadeClass):
        raise PackedFileError(f"{where}: the network is quantized already", hint="give it in float")
    if module is None or (layer.quantizer is not None and not isinstance(module, WEIGHTED_MODULES)):
        what = "has no such layer" if module is None else f"has a {type(module).__name__} there"
        raise PackedFileError(f"{where}: the network {what}", hint=_ANOTHER)
    entry = layer.weight.rpartition(".")[2]
    weight = module._parameters.get(entry) if layer.quantizer is None else module.weight
    if not isinstance(weight, Tensor) or not can_hold(module):
        raise PackedFileError(f"{where}: the network has no such parameter", hint=_ANOTHER)
    if tuple(weight.shape) != layer.shape:
        raise PackedFileError(
            f"{where} has a weight of shape {layer.shape}, the network's has {tuple(weight.shape)}",
            hint=_ANOTHER,
        )


def _check_names(state: Mapping[str, Tensor], file: PackedFile) -> None:
    packed = {layer.weight for layer in file.metadata.packed_once() if not layer.is_computed}
    stored = {*file.stored, *file.metadata.shared, *packed}
    if missing := [name for name in state if name not in stored]:
        raise PackedFileError(f"{file.path}: {short(missing[0])} of the network is missing", hint=_ANOTHER)
    if unknown := sorted(stored - set(state)):
        raise PackedFileError(f"{file.path}: the network has no {short(unknown[0])}", hint=_ANOTHER)


def _check_tensors(state: Mapping[str, Tensor], file: PackedFile) -> None:
    stored = file.stored
    for name, value in state.items():
        found = stored.get(file.metadata.stored_name(name))
        if found is None:
            continue  # packed: the layer was checked
        both_float = found.is_floating_point() and value.is_floating_point()
        if found.shape != value.shape or not (both_float or found.dtype == value.dtype):
            raise PackedFileError(
                f"{file.path}: {short(name)} is {DTYPE_NAMES[found.dtype]} {tuple(found.shape)}, the network's is "
                f"{value.dtype} {tuple(value.shape)}",
                hint=_ANOTHER,
            )


def _check_sharing(state: dict[str, Tensor], file: PackedFile) -> None:
    """Of two tensors that are loaded into one, only the second would remain."""
    own = {frozenset(group) for group in names_by_tensor(state)}
    groups: dict[str, set[str]] = {}
    for name in state:
        groups.setdefault(file.metadata.stored_name(name), set()).add(name)
    for group in groups.values():
        if frozenset(group) not in own:
            raise PackedFileError(
                f"{file.path}: {', '.join(map(short, sorted(group)))}: the network shares other tensors than the file",
                hint=_ANOTHER,
            )


def load(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """The quantized network in a packed file, or in the run directory that holds one; in evaluation mode, on the CPU.

    Its outputs are those of the saved network, and it can be trained further, except for the weights of layers that
    compute them in the forward pass (timm's ``StdConv2d``): these are frozen. ``model`` is the float network, which is changed
    in place; without it, the network is built from the specification that was saved, which works for ``timm:``,
    ``torchvision:`` and ``hwbmpq:``. Own modules have to be given, since a file must not say which code to run.
    """
    path = Path(path)
    file = read_packed(path / FILE_NAME if path.is_dir() else path)
    return restore(_network_of(file) if model is None else model, file)


def _network_of(file: PackedFile) -> nn.Module:
    spec = file.metadata.origin.model
    if spec is None or spec.partition(":")[0] not in _SAFE_SOURCES:
        what = "does not say which network it holds" if spec is None else f"names the network {spec!r:.100}"
        raise HwbmpqError(
            f"{file.path} {what}, which load does not build by itself: give the float network, hwbmpq.load(path, model=network)",
            hint="a file must not say which code to run",
        )
    try:
        _check_without_memory(spec, file)
        return _build(spec, file, "cpu")
    except (ModelLoadError, UnknownNameError) as error:
        raise PackedFileError(f"{file.path}: origin: {error}", hint=error.hint) from error


def _check_without_memory(spec: str, file: PackedFile) -> None:
    """Compare shapes before there are tensors: a file that claims a billion classes must hold their weights."""
    origin = file.metadata.origin
    sizes = {size for shape in _shapes(file) if prod(shape) for size in shape}
    if origin.num_classes is not None and origin.num_classes not in sizes:
        raise PackedFileError(f"{file.path}: origin: no tensor has {origin.num_classes} classes")
    try:
        skeleton = _build(spec, file, "meta")
    except ModelLoadError:
        return  # some networks compute with their initial values; what was checked, and the bound, must suffice
    check_fit(skeleton, file)


def _shapes(file: PackedFile) -> list[tuple[int, ...]]:
    """Of the weights that the file holds."""
    stored = [tuple(value.shape) for value in file.stored.values()]
    return stored + [layer.shape for layer in file.metadata.packed_once()]


def _build(spec: str, file: PackedFile, device: str) -> nn.Module:
    origin = file.metadata.origin
    # With a seed, torch's common generator goes on as if nothing had been built.
    return load_model(
        spec,
        num_classes=origin.num_classes,
        input_size=origin.input_size,
        device=device,
        seed=0,
        most_bytes=bytes_to_build(sum(map(prod, _shapes(file)))),
    ).network
