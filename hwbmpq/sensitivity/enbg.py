"""Bit gradients: how much the loss moves with the bits of a layer's weights (BMPQ's ENBG)."""

import torch
from torch import Tensor

from hwbmpq.quant import WeightQuantizer, quantize_weight, quantized_layers
from hwbmpq.quant.functional import TERNARY_BITS, largest_code
from hwbmpq.sensitivity.measure import SensitivityInputs
from hwbmpq.sensitivity.registry import register
from hwbmpq.sensitivity.steps import run_steps
from hwbmpq.values import Sensitivity


@torch.no_grad()
def bit_gradient_norm(gradient: Tensor, weight: Tensor, q_max: int) -> Tensor:
    """Mean over the weights of the sum over their ``q_max`` bits of |∂L/∂b_i| (NBG), a scalar tensor.

    ``gradient`` is the loss's by ``weight``, the tensor that enters the quantizer. In two's complement
    ∂w/∂b_i = ±S·2^i, so the sum over the bits is |∂L/∂w|·S·(2^q_max - 1). S is that of ``q_max`` and of the
    whole tensor, whatever width the layer has now. Weights that are all zero give zero.
    """
    half = weight.dtype in (torch.float16, torch.bfloat16)
    gradient, weight = (gradient.float(), weight.float()) if half else (gradient, weight)
    return gradient.abs().mean() * _step_size(weight, q_max) * float(2**q_max - 1)


def _step_size(weight: Tensor, bits: int) -> Tensor:
    if bits == TERNARY_BITS:
        _, scale = quantize_weight(weight, bits)
        return scale.reshape(()) * weight.any()  # the quantizer's scale of zeros is 1
    # This runs at every training step, and torch's infinity norm takes thirty times as long on a CPU.
    return torch.maximum(weight.amax(), -weight.amin()) / largest_code(bits, signed=True)


class _LayerGradients:
    """What one layer's gradients add up to over the steps."""

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
def measure(measurement: SensitivityInputs) -> Sensitivity:
    """ENBG as the score; as errors, the loss that each width is expected to add."""
    network = measurement.quantized_copy(measurement.precisions)
    found = {layer.name: _LayerGradients() for layer in measurement.layers}
    for step in run_steps(measurement, network):
        for name, gradient in step.gradients().items():
            q_max = max(measurement.widths[name])
            found[name].add(gradient, step.leaves[name][0].detach(), q_max, step.images)
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
    )


def _remarks(found: dict[str, _LayerGradients]) -> tuple[str, ...]:
    idle = [name for name, sums in found.items() if not sums.score()]
    names = ", ".join(idle[:3]) + (f" and {len(idle) - 3} more" if len(idle) > 3 else "")
    return (f"no influence on the loss, score 0: {names}",) if idle else ()
