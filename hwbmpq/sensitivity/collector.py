"""Bit gradients gathered while a network trains, at next to no cost."""

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn

from hwbmpq.distributed import is_distributed, mean
from hwbmpq.quant import quantized_layers
from hwbmpq.quant.layers import QuantizedLayer
from hwbmpq.sensitivity.enbg import bit_gradient_norm


class BitGradientCollector:
    """NBG of every layer, averaged over the steps of an epoch.

    ``with_squares`` also averages squared gradients, which takes another pass over them. Call ``add_step`` once per
    optimizer step, when the gradients are complete. All sums stay on the network's device: nothing waits for it
    before ``close_epoch``. A step with an infinite or NaN gradient does not count; a gradient scaler skips it as well.
    """

    def __init__(self, model: nn.Module, widest: Mapping[str, int], *, with_squares: bool = False) -> None:
        layers = dict(quantized_layers(model))
        self._layers = {name: layers[name] for name in widest}
        self._widest = widest
        self._with_squares = with_squares
        holders = Counter(id(layer.weight) for layer in self._layers.values())
        self._holders = {name: holders[id(layer.weight)] for name, layer in self._layers.items()}
        self._computed = {name: _ComputedWeight(layer) for name, layer in self._layers.items()}
        self._sums: Tensor | None = None
        """Per layer NBG, then per layer the mean squared gradient, then the number of steps."""

    def add_step(self, scaler: Any = None) -> None:
        """Read the gradients. ``scaler``: a GradScaler whose ``unscale_`` was not called for this step."""
        norms, squares = [], []
        for name, layer in self._layers.items():
            own = cast(Tensor, layer.weight)
            weight, gradient = self._computed[name].take() or (own.detach(), own.grad)
            if gradient is None:  # frozen, or not part of this loss
                gradient = weight.new_zeros(())
            # Layers that hold one weight are tied: together they count its gradient once.
            norms.append(bit_gradient_norm(gradient, weight, self._widest[name]) / self._holders[name])
            squares.append(_mean_square(gradient) if self._with_squares else norms[-1])
        self._add(torch.stack(norms), torch.stack(squares), scaler)

    @torch.no_grad()
    def _add(self, norms: Tensor, squares: Tensor, scaler: Any) -> None:
        if scaler is not None and scaler.is_enabled():
            # Its value without waiting for the device.
            scale = scaler.scale(torch.ones((), device=norms.device))
            norms, squares = norms / scale, squares / scale.square()
        found = torch.cat([norms, squares, norms.new_ones(1)])
        # MPS has no float64.
        found = found.to(torch.float32 if found.device.type == "mps" else torch.float64)
        found = torch.where(torch.isfinite(found).all(), found, torch.zeros_like(found))
        self._sums = found if self._sums is None else self._sums.to(found.device).add_(found)

    def weights(self) -> dict[str, Tensor]:
        """What entered each layer's quantizer last."""
        return {
            name: self._computed[name].weight_or(cast(Tensor, layer.weight).detach())
            for name, layer in self._layers.items()
        }

    def running(self) -> dict[str, float]:
        """Mean NBG by layer over the steps of the epoch so far; nothing before the first."""
        return self._means()[0]

    def close_epoch(self) -> tuple[dict[str, float], dict[str, float]]:
        """NBG and mean squared gradient by layer, averaged over the epoch's steps and over ranks; starts anew."""
        if self._sums is not None and is_distributed():
            # DDP has averaged the gradients already; this leaves no room for a difference in the last digit.
            distributed.all_reduce(self._sums)
        means = self._means()
        self._sums = None
        return means

    def _means(self) -> tuple[dict[str, float], dict[str, float]]:
        sums = [] if self._sums is None else self._sums.tolist()
        if not sums or not sums[-1]:
            return {}, {}
        means = [total / sums[-1] for total in sums[:-1]]
        count = len(self._layers)
        return (
            dict(zip(self._layers, means[:count], strict=True)),
            dict(zip(self._layers, means[count:], strict=True)),
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "layers": list(self._layers),
            "sums": None if self._sums is None else self._sums.cpu().clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        device = next(cast(Tensor, layer.weight).device for layer in self._layers.values())
        self._sums = None if state["sums"] is None else state["sums"].clone().to(device)


class _ComputedWeight:
    """The weight that enters a layer's quantizer and its gradient, where that is not the parameter itself."""

    def __init__(self, layer: QuantizedLayer) -> None:
        self._parameter = cast(Tensor, layer.weight)
        self._weight: Tensor | None = None
        self._gradient: Tensor | None = None
        this = weakref.ref(self)  # the network must not keep a collector that nobody else has any more

        def see(_: nn.Module, args: tuple[Tensor]) -> None:
            if not torch.compiler.is_compiling() and (watch := this()) is not None:
                watch._see(args[0])

        weakref.finalize(self, layer.weight_quantizer.register_forward_pre_hook(see).remove)

    def _see(self, weight: Tensor) -> None:
        if weight.requires_grad and weight is not self._parameter:
            self._weight = weight.detach()
            if self._parameter.grad is None:
                self._gradient = None  # what there was belongs to gradients that were thrown away
            weight.register_hook(self._add)  # type: ignore[no-untyped-call]

    def _add(self, gradient: Tensor) -> None:
        self._gradient = gradient.detach() if self._gradient is None else self._gradient + gradient.detach()

    def weight_or(self, parameter: Tensor) -> Tensor:
        return parameter if self._weight is None else self._weight

    def take(self) -> tuple[Tensor, Tensor] | None:
        """What came since the last call, averaged over ranks: DDP averages gradients of parameters only."""
        weight, gradient, self._gradient = self._weight, self._gradient, None
        if weight is None or gradient is None:
            return None
        return weight, mean(gradient) if is_distributed() else gradient


def _mean_square(gradient: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(gradient.float() if gradient.dtype in _HALVES else gradient, 2)
    return norm.square() / gradient.numel()


_HALVES = (torch.float16, torch.bfloat16)  # squares overflow there


def mean_over_epochs(epochs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """ENBG: the mean of the epochs' NBGs; epochs without a step that counts are left out."""
    seen = [epoch for epoch in epochs if epoch]
    return {name: sum(epoch[name] for epoch in seen) / len(seen) for name in seen[0]} if seen else {}
