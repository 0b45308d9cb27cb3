"""Input quantizers among trainers that evaluate before they train, and that save no tensor twice."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from hwbmpq.quant import InputQuantizer


def _input_quantizers(model: nn.Module) -> list[InputQuantizer]:
    return [module for module in model.modules() if isinstance(module, InputQuantizer)]


def keep_calibration(model: nn.Module) -> Callable[[], None]:
    """Gives what puts the input quantizers of ``model`` back to where they are now.

    A quantizer that has never seen a batch takes its range from the first, in evaluation too. Trainers that evaluate
    before they train would so start from validation images.
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
