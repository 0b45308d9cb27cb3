"""What a device stores beside the layers' weights, and the names of a network's tensors."""

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.quant.layers import FROZEN, QuantizedLayer, weight_entries
from hwbmpq.quant.prepare import shared_inputs
from hwbmpq.quant.quantizers import InputQuantizer, WeightQuantizer
from hwbmpq.quant.weights import QuantizedWeight, find_weight
from hwbmpq.quant.weights import join as join
from hwbmpq.values import CLIPPING, Layer, StoredState

BIASES, NORMS, OTHER = "biases", "norms", "other tensors in float"
CLIPPING_BITS = 64
"""An input quantizer stores its clipping point and the range that it saw."""


def stored_state(model: nn.Module, layers: Sequence[Layer]) -> tuple[StoredState, ...]:
    """What is stored beside the weights of ``layers``: the rest of the network's state, and the clipping points."""
    weights = weight_names(model, (layer.name for layer in layers))
    state = own_state(model)
    rest = {group[0]: state[group[0]] for group in names_by_tensor(state) if not weights & set(group)}
    found = [
        StoredState(name=name, label=label_of(model, name), bits=8 * value.numel() * value.element_size())
        for name, value in rest.items()
    ]
    points = [
        StoredState(name=shared.name, label=CLIPPING, bits=CLIPPING_BITS)
        for shared in shared_inputs(layers, per_channel=False)
    ]
    return (*found, *points)


def label_of(model: nn.Module, name: str) -> str:
    """What a tensor of the network's state is, in the account of a file's bytes."""
    path, _, entry = name.rpartition(".")
    module = model.get_submodule(path)
    if "norm" in type(module).__name__.lower():
        return NORMS
    return BIASES if is_bias(entry) else OTHER


def is_bias(entry: str) -> bool:
    """Whether a parameter of this name is a bias: ``bias``, ``bias_ih_l0``, ``in_proj_bias``."""
    return entry.startswith("bias") or entry.endswith("bias")


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """What the float network has in its state_dict: the very tensors, parameters being parameters."""
    added = {
        join(path, entry)
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, (InputQuantizer, WeightQuantizer, QuantizedLayer, QuantizedWeight))
        for entry in (*module.added_entries, FROZEN)
    }
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if name not in added}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise HwbmpqError(
                f"{name} in the network's state_dict is a {type(value).__name__}: only tensors can be stored"
            )
    return state


def names_by_tensor(state: dict[str, Tensor]) -> list[list[str]]:
    """Names of one and the same tensor, together."""
    groups: dict[int, list[str]] = {}
    for name, value in state.items():
        groups.setdefault(id(value), []).append(name)
    return list(groups.values())


def weight_names(model: nn.Module, layers: Iterable[str]) -> set[str]:
    """The weights of ``layers``, and what they are made from, under all names in the network's state_dict."""
    wanted: dict[int, list[str]] = {}
    for layer in layers:
        module, entry = find_weight(model, layer)
        wanted.setdefault(id(module), []).extend(weight_entries(module, entry))
    return {
        join(path, entry)
        for path, module in model.named_modules(remove_duplicate=False)
        for entry in wanted.get(id(module), ())
    }
