"""A network's own tensors, quantizers apart, by the names of its state_dict."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.quant.layers import FROZEN, QuantizedLayer, weight_entries
from hwbmpq.quant.quantizers import InputQuantizer


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """What the float network has in its state_dict: the very tensors, parameters being parameters."""
    added = set(_added_names(model))
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if name not in added}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise HwbmpqError(
                f"{name} in the network's state_dict is a {type(value).__name__}: only tensors can be stored"
            )
    return state


def _added_names(model: nn.Module) -> list[str]:
    added = []
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (InputQuantizer, QuantizedLayer)):
            added += [join(path, entry) for entry in (*module.added_entries, FROZEN)]
    return added


def names_by_tensor(state: dict[str, Tensor]) -> list[list[str]]:
    """Names of one and the same tensor, together."""
    groups: dict[int, list[str]] = {}
    for name, value in state.items():
        groups.setdefault(id(value), []).append(name)
    return list(groups.values())


def weight_names(model: nn.Module, layers: Iterable[nn.Module]) -> set[str]:
    """The weights of ``layers``, and what they are made from, under all names in the network's state_dict."""
    wanted = {id(layer) for layer in layers}
    return {
        join(path, entry)
        for path, module in model.named_modules(remove_duplicate=False)
        if id(module) in wanted
        for entry in weight_entries(module)
    }


def join(path: str, entry: str) -> str:
    """The name of an entry of the module at ``path``, which is "" for the network itself."""
    return f"{path}.{entry}" if path else entry


def is_channels_last(model: nn.Module) -> bool:
    """Whether weights are laid out so; which kernels run, and how they round, depends on it."""
    return any(
        value.dim() == 4
        and not value.is_contiguous()
        and value.is_contiguous(memory_format=torch.channels_last)
        for value in model.parameters()
    )
