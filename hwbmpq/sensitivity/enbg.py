"""Bit gradients: how much the loss changes with the bits of a layer's weights (BMPQ's ENBG).

``BitGradientCollector`` gathers them during training at almost no cost.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn

from hwbmpq.distributed import is_distributed, mean
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import WeightQuantizer, quantize_weight, quantized_layers
from hwbmpq.quant.functional import HALVES, TERNARY_BITS, largest_code
from hwbmpq.quant.layers import QuantizedLayer
from hwbmpq.quant.weights import QuantizedWeight
from hwbmpq.sensitivity.activations import ActivationErrorMeter
from hwbmpq.sensitivity.measure import SensitivityInputs, run_steps
from hwbmpq.sensitivity.registry import register
from hwbmpq.values import Sensitivity


@torch.no_grad()
def bit_gradient_norm(gradient: Tensor, weight: Tensor, q_max: int) -> Tensor:
    """Mean over the weights of the sum over their ``q_max`` bits of |∂L/∂b_i| (NBG), a scalar tensor.

    ``gradient`` is the loss's by ``weight``, the tensor that enters the quantizer. In two's complement
    ∂w/∂b_i = ±S·2^i, so the sum over the bits is |∂L/∂w|·S·(2^q_max - 1). S is that of ``q_max`` and of the
    whole tensor, whatever width the layer has now. Weights that are all zero give zero.
    """
    if weight.dtype in HALVES:
        gradient, weight = gradient.float(), weight.float()
    return gradient.abs().mean() * _step_size(weight, q_max) * float(2**q_max - 1)


def _step_size(weight: Tensor, bits: int) -> Tensor:
    if bits == TERNARY_BITS:
        _, scale = quantize_weight(weight, bits)
        return scale.reshape(()) * weight.any()  # the quantizer's scale of zeros is 1
    # This runs at every training step, and torch's infinity norm takes thirty times as long on a CPU.
    return torch.maximum(weight.amax(), -weight.amin()) / largest_code(bits, signed=True)


class _LayerGradients:
    """Sums of one layer's gradients over the steps."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.fisher: Tensor | None = None
        """Sum over the steps of the batch's size times its squared gradient, by weight."""
        self.weight = torch.empty(0)

    def add(self, gradient: Tensor, weight: Tensor, q_max: int, images: int) -> None:
        self.norms.append(float(bit_gradient_norm(gradient, weight, q_max)))
        squares = gradient.float().square().mul_(images)
        self.fisher = squares if self.fisher is None else self.fisher.add_(squares)
        self.weight = weight

    def score(self) -> float:
        return sum(self.norms) / len(self.norms)

    def expected_loss(self, quantizer: WeightQuantizer, bits: int) -> float:
        """½ Σ F·(W - Q(W))²: the loss to second order, its curvature from squared gradients (empirical Fisher).

        Batch size times the squared mean gradient of a batch estimates the mean squared gradient of an
        image, as gradients of single images have almost no mean in a trained network. On a trained ResNet-20
        this predicts the loss of quantizing one layer better than Σ |g|·|W - Q(W)|, which at 2 bits is
        hardly related to it: errors of many weights cancel to first order.
        """
        assert self.fisher is not None
        error = quantizer.rounding_error(self.weight, bits).float()
        return float((self.fisher * error.square()).sum(dtype=torch.float64)) / (2 * len(self.norms))


@register("enbg", needs_data=True)
def measure_enbg(measurement: SensitivityInputs) -> Sensitivity:
    """ENBG as the score; as errors, the loss that each width is expected to add, of weights and of activations."""
    network = measurement.quantized_copy(measurement.precisions)
    meter = ActivationErrorMeter(network, measurement.activation_widths)
    meter.watch()
    found = {layer.name: _LayerGradients() for layer in measurement.layers}
    for step in run_steps(measurement, network):
        for name, gradient in step.gradients(meter.leaves).items():
            q_max = max(measurement.widths[name])
            found[name].add(gradient, step.leaves[name][0].detach(), q_max, step.images)
        meter.add_step(step.images)
    layers = dict(quantized_layers(network))
    return Sensitivity(
        method="enbg",
        scores={name: sums.score() for name, sums in found.items()},
        errors={
            name: {
                bits: sums.expected_loss(layers[name].weight_quantizer, bits)
                for bits in sorted(measurement.widths[name])
            }
            for name, sums in found.items()
        },
        remarks=_remarks(found),
        activation_errors=meter.close(),
    )


def _remarks(found: dict[str, _LayerGradients]) -> tuple[str, ...]:
    idle = [name for name, sums in found.items() if not sums.score()]
    names = ", ".join(idle[:3]) + (f" and {len(idle) - 3} more" if len(idle) > 3 else "")
    return (f"no influence on the loss, score 0: {names}",) if idle else ()


ORDER_OF_CALLS = (
    "the order of calls is loss.backward(), allocator.step(), optimizer.step(), optimizer.zero_grad(), and some layer "
    "must be trained (requires_grad)"
)


class BitGradientCollector:
    """NBG of every layer, averaged over the steps of an epoch.

    ``with_squares`` also averages squared gradients, which takes another pass over them. Call ``add_step`` once per
    optimizer step, when the gradients are complete. All sums stay on the network's device: nothing waits for it
    before ``close_epoch``. A step with an infinite or NaN gradient does not count; a gradient scaler skips it as well.
    A step without any gradient is an error.
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
        self._steps = 0
        self._left_out: Tensor | None = None
        """How many steps were not finite, and minus the number of the first."""

    def add_step(self, scaler: Any = None, *, images: int = 1) -> None:
        """Read the gradients. ``scaler``: a GradScaler whose ``unscale_`` was not called for this step.

        ``images`` are those of the step on all ranks: that many times the squared mean gradient of a batch estimates the
        mean squared gradient of an image.
        """
        norms, squares, found = [], [], False
        for name, layer in self._layers.items():
            own = cast(Tensor, layer.weight)
            weight, gradient = self._computed[name].take() or (own.detach(), own.grad)
            found = found or gradient is not None
            if gradient is None:  # frozen, or not part of this loss
                gradient = weight.new_zeros(())
            # Layers that hold one weight are tied: together they count its gradient once.
            norms.append(bit_gradient_norm(gradient, weight, self._widest[name]) / self._holders[name])
            squares.append(_mean_square(gradient) * images if self._with_squares else norms[-1])
        if not found:
            raise HwbmpqError(
                "no layer has a gradient, so there is nothing to learn from", hint=ORDER_OF_CALLS
            )
        self._add(torch.stack(norms), torch.stack(squares), scaler)

    @torch.no_grad()
    def _add(self, norms: Tensor, squares: Tensor, scaler: Any) -> None:
        if scaler is not None and scaler.is_enabled():
            # The scale as a tensor: reading it as a number would wait for the device.
            scale = scaler.scale(torch.ones((), device=norms.device))
            norms, squares = norms / scale, squares / scale.square()
        found = torch.cat([norms, squares, norms.new_ones(1)])
        # MPS has no float64.
        found = found.to(torch.float32 if found.device.type == "mps" else torch.float64)
        is_finite = torch.isfinite(found).all()
        self._steps += 1
        self._leave_out(is_finite)
        found = torch.where(is_finite, found, torch.zeros_like(found))
        self._sums = found if self._sums is None else self._sums.to(found.device).add_(found)

    def _leave_out(self, is_finite: Tensor) -> None:
        known = torch.tensor([0.0, -torch.inf]) if self._left_out is None else self._left_out
        known = known.to(is_finite.device)
        first = torch.maximum(known[1], known.new_tensor(-self._steps))
        self._left_out = torch.where(is_finite, known, torch.stack([known[0] + 1, first]))

    def left_out(self) -> str:
        """Which steps of the running epoch do not count because a gradient was infinite or NaN; empty if none."""
        count, first = (0, 0) if self._left_out is None else self._left_out.tolist()
        if not count:
            return ""
        return (
            f"infinite or NaN gradients in {count:.0f} of {self._steps} steps, which do not count for the widths; "
            f"first in step {-first:.0f}"
        )

    def weights(self) -> dict[str, Tensor]:
        """The weight that last entered each layer's quantizer."""
        return {
            name: self._computed[name].weight_or(cast(Tensor, layer.weight).detach())
            for name, layer in self._layers.items()
        }

    def running(self) -> dict[str, float]:
        """Mean NBG by layer over the steps of the epoch so far; nothing before the first."""
        return self._means()[0]

    def close_epoch(self) -> tuple[dict[str, float], dict[str, float]]:
        """NBG and mean squared gradient by layer, averaged over the epoch's steps and over ranks; resets the sums."""
        if self._sums is not None and is_distributed():
            # DDP has averaged the gradients already; this removes differences in the last digit.
            distributed.all_reduce(self._sums)
        means = self._means()
        self._sums = self._left_out = None
        self._steps = 0
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
            "steps": self._steps,
            "left_out": None if self._left_out is None else self._left_out.cpu().clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        device = next(cast(Tensor, layer.weight).device for layer in self._layers.values())
        self._sums = None if state["sums"] is None else state["sums"].clone().to(device)
        self._steps = state.get("steps", 0)  # 0.1.0 kept neither
        self._left_out = state.get("left_out")


class _ComputedWeight:
    """The weight that enters a layer's quantizer and its gradient, where that is not the parameter itself."""

    def __init__(self, layer: QuantizedLayer | QuantizedWeight) -> None:
        self._parameter = cast(Tensor, layer.weight)
        self._weight: Tensor | None = None
        self._gradient: Tensor | None = None
        this = weakref.ref(self)  # the network must not keep an unused collector alive

        def see(_: nn.Module, args: tuple[Tensor]) -> None:
            if not torch.compiler.is_compiling() and (watch := this()) is not None:
                watch._see(args[0])

        weakref.finalize(self, layer.weight_quantizer.register_forward_pre_hook(see).remove)

    def _see(self, weight: Tensor) -> None:
        if weight.requires_grad and weight is not self._parameter:
            self._weight = weight.detach()
            if self._parameter.grad is None:
                self._gradient = None  # it belonged to gradients that were discarded
            weight.register_hook(self._add)  # type: ignore[no-untyped-call]

    def _add(self, gradient: Tensor) -> None:
        self._gradient = gradient.detach() if self._gradient is None else self._gradient + gradient.detach()

    def weight_or(self, parameter: Tensor) -> Tensor:
        return parameter if self._weight is None else self._weight

    def take(self) -> tuple[Tensor, Tensor] | None:
        """Weight and gradient since the last call, averaged over ranks: DDP averages gradients of parameters only."""
        weight, gradient, self._gradient = self._weight, self._gradient, None
        if weight is None or gradient is None:
            return None
        return weight, mean(gradient) if is_distributed() else gradient


def _mean_square(gradient: Tensor) -> Tensor:
    # Squares would overflow in half precision.
    norm: Tensor = torch.linalg.vector_norm(gradient.float() if gradient.dtype in HALVES else gradient, 2)
    return norm.square() / gradient.numel()


def mean_over_epochs(epochs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """ENBG: the mean of the epochs' NBGs; epochs without a valid step are left out."""
    seen = [epoch for epoch in epochs if epoch]
    return {name: sum(epoch[name] for epoch in seen) / len(seen) for name in seen[0]} if seen else {}
