"""Whether a packed file belongs to a network; said of the first thing that does not fit."""

from collections.abc import Mapping

from torch import Tensor, nn

from hwbmpq.export.packed.container import DTYPES, PackedFileError
from hwbmpq.export.packed.container_reader import short
from hwbmpq.export.packed.file import PackedFile
from hwbmpq.export.packed.network_state import names_by_tensor, own_state, weight_names
from hwbmpq.export.packed.schema import PackedLayer
from hwbmpq.graph.operations import WEIGHTED_MODULES
from hwbmpq.quant.layers import QuantizedLayer

_ANOTHER = "is it the network that was saved, with as many classes?"


def check_fit(model: nn.Module, file: PackedFile) -> None:
    """An error unless the network, which may be on the meta device, is the one that was saved."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for layer in file.metadata.layers:
        _check_layer(modules.get(layer.name), layer, file)
    computed = [modules[layer.name] for layer in file.metadata.layers if layer.is_computed]
    made = weight_names(model, computed)
    state = {name: value for name, value in own_state(model).items() if name not in made}
    _check_names(state, file)
    _check_tensors(state, file)
    _check_sharing(state, file)


def _check_layer(module: nn.Module | None, layer: PackedLayer, file: PackedFile) -> None:
    where = f"{file.path}: layer {short(layer.name)}"
    if isinstance(module, QuantizedLayer):
        raise PackedFileError(f"{where}: the network is quantized already", hint="give it in float")
    if not isinstance(module, WEIGHTED_MODULES):
        what = "has no such layer" if module is None else f"has a {type(module).__name__} there"
        raise PackedFileError(f"{where}: the network {what}", hint=_ANOTHER)
    weight: Tensor = module.weight
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
            continue  # packed: the layer was looked at
        dtype = DTYPES[found.dtype]
        both_float = dtype.is_floating_point and value.is_floating_point()
        if found.shape != tuple(value.shape) or not (both_float or dtype == value.dtype):
            raise PackedFileError(
                f"{file.path}: {short(name)} is {found.dtype} {found.shape}, the network's is {value.dtype} "
                f"{tuple(value.shape)}",
                hint=_ANOTHER,
            )


def _check_sharing(state: dict[str, Tensor], file: PackedFile) -> None:
    """Loading two tensors into one would leave the second."""
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
