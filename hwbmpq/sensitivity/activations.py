"""What rounding a layer's input is expected to cost: the loss that each activation width adds.

Collected in the passes that collect bit gradients anyway, from the gradient of what the layer multiplies with.
"""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from hwbmpq.data.inputs import first_tensor
from hwbmpq.distributed import is_distributed
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import InputQuantizer, quantized_layers
from hwbmpq.quant.functional import fake_quantize_activation, input_codes
from hwbmpq.quant.layers import QuantizedLayer
from hwbmpq.quant.scales import best_clip
from hwbmpq.values import FLOAT_BITS


class ActivationErrorMeter:
    """½·Σ E[g²·(a - Q(a))²] by layer and activation width, the mean over images.

    g is the gradient of an image's loss by what the layer multiplies with, Q rounds at the width with the clipping point
    that is best for it. ``widths`` are the activation widths of the layers to look at. ``watch`` the passes of a step,
    then call ``add_step``; other steps cost nothing. Sums stay on the network's device until ``close``.
    """

    def __init__(self, model: nn.Module, widths: Mapping[str, Sequence[int]]) -> None:
        layers = dict(quantized_layers(model))
        self._layers = {name: layer for name in widths if isinstance(layer := layers[name], QuantizedLayer)}
        self._entries = {
            (name, bits): index
            for index, (name, bits) in enumerate(
                (name, bits) for name in self._layers for bits in sorted(set(widths[name]))
            )
        }
        self._widths = {name: sorted(set(widths[name])) for name in self._layers}
        self._of_step: dict[tuple[str, int], Tensor] = {}
        self._sums: Tensor | None = None
        """By entry the sum over the steps that were watched, then their number."""
        self._is_scaled = False
        self.leaves: list[Tensor] = []
        """Inputs of the watched passes that need no gradient themselves, and get one for this."""

    def watch(self, on: bool = True) -> None:
        """Look at what the layers read from now on, or no longer."""
        self._of_step.clear()
        self.leaves.clear()
        self._is_scaled = False
        for name, layer in self._layers.items():
            layer.on_input = _InputWatch(self, name) if on else None

    def see(self, name: str, values: Tensor, rounded: Tensor) -> Tensor:
        """What a layer reads and multiplies with; the latter, to be gone on with."""
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return rounded  # evaluation; or activation checkpointing, which runs the forward pass again
        if rounded.requires_grad:
            rounded = rounded.view_as(
                rounded
            )  # readers at one width share the tensor, but not their gradients
        else:
            rounded = rounded.detach().requires_grad_()
            self.leaves.append(rounded)
        seen, this = values.detach(), weakref.ref(self)

        def add(gradient: Tensor) -> None:
            if (meter := this()) is not None:
                meter._add(name, seen, gradient)

        rounded.register_hook(add)  # type: ignore[no-untyped-call]
        return rounded

    @torch.no_grad()
    def _add(self, name: str, values: Tensor, gradient: Tensor) -> None:
        self._is_scaled = self._is_scaled or gradient.dtype == torch.float16
        values, squares = values.float(), gradient.float().square()
        quantizer = self._layers[name].input_quantizer
        for bits in self._widths[name]:
            error = values - _rounded(values, bits, quantizer)
            found = (error.square_() * squares).sum(
                dtype=None if values.device.type == "mps" else torch.float64
            )
            known = self._of_step.get((name, bits))
            self._of_step[name, bits] = found if known is None else known + found.to(known.device)

    @torch.no_grad()
    def add_step(self, images: int, scaler: Any = None) -> None:
        """The step that was watched is complete; it saw ``images`` images on this rank.

        The loss is a mean over them: an image's own gradient is that many times as large as it was seen, and the mean of
        its squares over the images is the sum of those seen, times their number. ``scaler``: the GradScaler that the loss
        was scaled by.
        """
        if not self._of_step:
            return
        if self._is_scaled and scaler is None:
            raise HwbmpqError(
                "activations have gradients in float16, and nothing says what the loss was scaled by",
                hint="call allocator.step(scaler), or allocator.step(scaler, is_unscaled=True) after scaler.unscale_(…)",
            )
        like = next(iter(self._of_step.values()))
        zero = like.new_zeros(())
        found = torch.stack([self._of_step.get(entry, zero).to(like.device) for entry in self._entries])
        found = found * (0.5 * images)
        if scaler is not None and scaler.is_enabled():
            found = found / scaler.scale(torch.ones((), device=found.device)).square()
        found = torch.cat([found, found.new_ones(1)])
        found = torch.where(torch.isfinite(found).all(), found, torch.zeros_like(found))
        self._sums = found if self._sums is None else self._sums.to(found.device) + found
        self._of_step.clear()
        self.leaves.clear()

    def close(self) -> dict[str, dict[int, float]]:
        """The mean over the watched steps and over ranks, by layer and width; nothing if there were none. Resets it."""
        if self._sums is not None and is_distributed():
            distributed.all_reduce(self._sums)
        sums = [] if self._sums is None else self._sums.tolist()
        self._sums = None
        if not sums or not sums[-1]:
            return {}
        return {
            name: {bits: sums[self._entries[name, bits]] / sums[-1] for bits in widths}
            for name, widths in self._widths.items()
        }

    def state_dict(self) -> dict[str, Any]:
        return {"sums": None if self._sums is None else self._sums.cpu().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums = None if state["sums"] is None else state["sums"].clone()


class _InputWatch:
    """What a layer calls with its input; a copy of the network calls nothing."""

    def __init__(self, meter: ActivationErrorMeter, name: str) -> None:
        self._meter = weakref.ref(meter)  # the network must not keep an unused meter alive
        self._name = name

    def __call__(self, values: Tensor, rounded: Tensor) -> Tensor:
        meter = self._meter()
        return rounded if meter is None else meter.see(self._name, values, rounded)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def _rounded(values: Tensor, bits: int, quantizer: InputQuantizer) -> Tensor:
    if bits == FLOAT_BITS:
        return values
    signed, below = quantizer.signed, quantizer.steps_below
    alpha = best_clip(values, bits, signed=signed, below=below)
    codes = input_codes(bits, signed=signed, below=below)
    return fake_quantize_activation(values, alpha, bits, signed=signed, codes=codes)


def is_sampled(step: int) -> bool:
    """Whether the activations of an epoch's ``step``, counted from 1, are looked at: the 1st, 2nd, 4th, 8th …

    A look at all widths takes about as long as a step; so it adds little to an epoch, however long that is.
    """
    return step & (step - 1) == 0


def mean_of_errors(epochs: Sequence[Mapping[str, Mapping[int, float]]]) -> dict[str, dict[int, float]]:
    """The mean over the epochs that saw any."""
    seen = [epoch for epoch in epochs if epoch]
    if not seen:
        return {}
    return {
        name: {bits: sum(epoch[name][bits] for epoch in seen) / len(seen) for bits in errors}
        for name, errors in seen[0].items()
    }


class ImageCounter:
    """Counts the images that pass through a network with gradients between two calls of ``take``."""

    def __init__(self, model: nn.Module) -> None:
        self._images = 0
        weakref.finalize(self, model.register_forward_pre_hook(_CallWatch(self), with_kwargs=True).remove)

    def see(self, inputs: Tensor | None) -> None:
        """One call of the network."""
        self._images += len(inputs) if inputs is not None and inputs.ndim else 1

    def take(self) -> int:
        """At least 1: compiled networks do not tell."""
        images, self._images = self._images, 0
        return max(1, images)


class _CallWatch:
    """A hook that a copy of the network does not have."""

    def __init__(self, counter: ImageCounter) -> None:
        self._counter = weakref.ref(counter)

    def __call__(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        counter = None if torch.compiler.is_compiling() else self._counter()
        if counter is not None and torch.is_grad_enabled():
            counter.see(first_tensor((args, kwargs)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _without_counter, ()


def _without_counter() -> Any:
    return _ignore


def _ignore(_: nn.Module, args: Any, kwargs: Any) -> None:
    pass
