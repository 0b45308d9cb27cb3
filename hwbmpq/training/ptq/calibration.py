"""Inputs of layers on a few hundred images without labels: clipping points, and what weights are multiplied with."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hwbmpq.data.inputs import ModelInputs, first_tensor
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import InputQuantizer
from hwbmpq.quant.layers import QuantizedLayer, eval_mode

Batches = Iterable[Tensor | ModelInputs | Sequence[Any]]
"""Images, other inputs as ``ModelInputs``, or tuples that start with inputs: targets are ignored."""


def inputs_of(model: nn.Module, batches: Batches) -> list[ModelInputs]:
    """The inputs of all batches, as the model takes them."""
    found = []
    for number, batch in enumerate(batches):
        given = batch if isinstance(batch, (Tensor, ModelInputs)) else batch[0]
        if not isinstance(given, ModelInputs) and first_tensor(given) is None:
            raise HwbmpqError(f"batch {number} does not hold a tensor of images")
        found.append(ModelInputs.of(given).for_model(model))
    if not found:
        raise HwbmpqError("there are no images to calibrate on", hint="give at least one batch")
    return found


@torch.no_grad()
def calibrate_inputs(model: nn.Module, batches: Batches) -> None:
    """Change ``model`` in place: reset every clipping point α to where the error at the present width is least.

    α is the mean over the first 8 batches, as in training; the range at 16 bits is that of all. Nothing else
    learns: norms keep their statistics, modules their modes.
    """
    inputs = inputs_of(model, batches)
    with eval_mode(model):
        for module in model.modules():
            if isinstance(module, InputQuantizer):
                module.set_extra_state(torch.tensor([0, 0]))  # no batch, no range
                module.alpha.fill_(1.0)  # as at the start: a large α would leave rounding errors
                module.observed.zero_()
                module.train()
        for batch in inputs:
            batch.call(model)


_PRODUCTS = frozenset({F.linear, F.conv1d, F.conv2d, F.conv3d})
_SETTINGS = ("stride", "padding", "dilation", "groups")
_ARGUMENTS = ("input", "weight", "bias", *_SETTINGS)


@dataclass(frozen=True, kw_only=True)
class CapturedInput:
    """One multiplication with a layer's weight."""

    layer: QuantizedLayer
    input: Tensor
    kernel: tuple[int, ...]
    """Empty for linear layers."""
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1

    def columns(self, most: int) -> Tensor:
        """(groups, inputs, n): what each output is made of, the weight being (groups, rows, n).

        At most ``most`` of them, but at least one position of each image; the same ones for equal shapes.
        """
        if not self.kernel:
            rows = self.input.reshape(-1, self.input.shape[-1])
            return rows[_some(len(rows), most)][None]
        values, dilation, reaches = self._padded(), self._each(self.dilation), self._reaches()
        for axis, step in enumerate(self._each(self.stride)):
            values = values.unfold(2 + axis, reaches[axis] + 1, step)[..., :: dilation[axis]]
        batch, channels, *sizes = values.shape[: 2 + len(self.kernel)]
        positions = _some(prod(sizes), max(1, most // batch))
        places: tuple[Any, ...] = (slice(None), slice(None), *torch.unravel_index(positions, sizes))
        windows = values[places]  # (batch, channels, positions, *kernel)
        grouped = windows.reshape(batch, self.groups, channels // self.groups, len(positions), -1)
        return grouped.permute(1, 0, 3, 2, 4).reshape(self.groups, batch * len(positions), -1)

    def _padded(self) -> Tensor:
        values = self.input if self.input.dim() == len(self.kernel) + 2 else self.input[None]
        if self.padding == "same":
            borders = [(reach // 2, reach - reach // 2) for reach in self._reaches()]
        else:
            borders = [(size, size) for size in self._each(0 if self.padding == "valid" else self.padding)]
        return F.pad(values, [size for border in reversed(borders) for size in border])

    def _reaches(self) -> list[int]:
        """How far the last element of the kernel is from the first."""
        return [step * (size - 1) for step, size in zip(self._each(self.dilation), self.kernel, strict=True)]

    def _each(self, value: Any) -> tuple[int, ...]:
        """One number for each axis of the kernel."""
        numbers = (value,) if isinstance(value, int) else tuple(value)
        return numbers * len(self.kernel) if len(numbers) == 1 else numbers


class InputCapture(TorchFunctionMode):
    """While active, ``see`` is called with each ``CapturedInput`` of one of the ``layers``, before it is computed.

    Not seen are transposed convolutions, and weights that a layer computes in the forward pass (timm's ``StdConv2d``).
    """

    def __init__(self, layers: Iterable[QuantizedLayer], see: Callable[[CapturedInput], None]) -> None:
        super().__init__()
        self._layers = list(layers)
        self._see = see
        self._quantized: dict[QuantizedLayer, Tensor] = {}

    def __enter__(self) -> "InputCapture":
        self._hooks = [
            layer.weight_quantizer.register_forward_hook(partial(self._note, layer)) for layer in self._layers
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _note(self, layer: QuantizedLayer, _: nn.Module, args: tuple[Tensor], quantized: Tensor) -> None:
        if args[0] is layer._parameters.get("weight"):
            self._quantized[layer] = quantized

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _PRODUCTS:
            call = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
            owner = next((layer for layer, own in self._quantized.items() if own is call["weight"]), None)
            if owner is not None:
                del self._quantized[owner]
                settings = {name: call[name] for name in _SETTINGS if name in call}
                kernel = tuple(call["weight"].shape[2:])
                self._see(CapturedInput(layer=owner, input=call["input"], kernel=kernel, **settings))
        return func(*args, **kwargs)


def _some(count: int, most: int) -> Tensor:
    """Up to ``most`` of ``count`` positions, spread at random, always the same."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values
