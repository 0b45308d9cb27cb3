"""Used by both integrations: checks, and input quantizers that work with how other trainers evaluate and save."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import InputQuantizer
from hwbmpq.search.allocator import BitAllocator


def check_network(allocator: BitAllocator, trained: nn.Module, name: str) -> None:
    """Raise unless the allocator's network is part of what is trained, which the message calls ``name``."""
    if not any(module is allocator.model for module in trained.modules()):
        raise HwbmpqError(
            f"the allocator's network is not part of {name}",
            hint="make the allocator from the network that is trained, after it was built",
        )


def check_epochs(allocator: BitAllocator, epochs: int) -> None:
    """Raise unless training takes as many epochs as the allocator decides for."""
    schedule = allocator.schedule
    if schedule is not None and epochs != schedule.epochs:
        raise HwbmpqError(
            f"the Trainer trains {epochs} epochs, the allocator decides for {schedule.epochs}",
            hint=f"BitAllocator(..., epochs={epochs})",
        )


def _input_quantizers(model: nn.Module) -> list[InputQuantizer]:
    return [module for module in model.modules() if isinstance(module, InputQuantizer)]


def keep_calibration(model: nn.Module) -> Callable[[], None]:
    """Returns a function that restores the present state of the input quantizers of ``model``.

    A quantizer that has never seen a batch takes its range from the first one, in evaluation too. With trainers that
    evaluate before they train, that would be validation images.
    """
    quantizers = _input_quantizers(model)
    states = [deepcopy(quantizer.state_dict()) for quantizer in quantizers]

    def restore() -> None:
        for quantizer, state in zip(quantizers, states, strict=True):
            quantizer.load_state_dict(state)

    return restore


def save_without_sharing(model: nn.Module) -> None:
    """Changes ``model`` in place: in its state_dict, layers that share a quantizer have copies of its entries.

    safetensors refuses one tensor under two names.
    """
    for quantizer in _input_quantizers(model):
        quantizer.register_state_dict_post_hook(_copy_entries)  # type: ignore[no-untyped-call]


def _copy_entries(module: nn.Module, state: dict[str, Tensor], prefix: str, _: Mapping[str, Any]) -> None:
    for name in ("alpha", "observed"):
        state[prefix + name] = state[prefix + name].clone()
