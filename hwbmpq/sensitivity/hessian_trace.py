"""Curvature of the loss: the trace of each layer's block of the Hessian (HAWQ-V2's measure)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import quantized_layers
from hwbmpq.sensitivity.measure import SensitivityInputs
from hwbmpq.sensitivity.registry import register
from hwbmpq.sensitivity.steps import Step, run_steps
from hwbmpq.sensitivity.weight_error import squared_errors
from hwbmpq.values import Sensitivity

VECTORS_PER_BATCH = 4
"""Random vectors that each batch's trace is estimated with; their noise averages out over the batches too."""


@register("hessian_trace", needs_data=True)
def measure(measurement: SensitivityInputs) -> Sensitivity:
    """Score: trace per weight, on the float network. Errors: ||W - Q(W)||²."""
    network = measurement.float_copy()
    totals = {layer.name: 0.0 for layer in measurement.layers}
    weights: dict[str, Tensor] = {}
    count = 0
    generator = torch.Generator().manual_seed(measurement.seed)
    with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels have no second derivative
        for step in run_steps(measurement, network):
            weights = {name: leaves[0].detach() for name, leaves in step.leaves.items()}
            count += 1
            for name, trace in batch_traces(step, generator).items():
                totals[name] += trace
    layers = dict(quantized_layers(network))
    scores = {name: total / count / weights[name].numel() for name, total in totals.items()}
    return Sensitivity(
        method="hessian_trace",
        scores=scores,
        errors={
            name: squared_errors(layers[name], weights[name], measurement.widths[name]) for name in scores
        },
        remarks=_remarks(scores),
    )


def batch_traces(
    step: Step, generator: torch.Generator, *, vectors: int = VECTORS_PER_BATCH
) -> dict[str, float]:
    """Hutchinson's estimate: the mean of v·Hv over random vectors v of ±1, for all layers at once.

    What one layer's vector picks up from another's has mean zero. The runs of one layer share its vector:
    they are uses of one weight.
    """
    owners = [name for name, leaves in step.leaves.items() for _ in leaves]
    flat = [leaf for leaves in step.leaves.values() for leaf in leaves]
    totals = dict.fromkeys(step.leaves, 0.0)
    gradients = _grad([step.loss], flat, create_graph=True)
    for vectors_left in reversed(range(vectors)):
        signs = {name: _signs_like(leaves[0], generator) for name, leaves in step.leaves.items()}
        directions = [signs[name] for name in owners]
        products = _hessian_products(gradients, flat, directions, retain_graph=vectors_left > 0)
        for name, product in zip(owners, products, strict=True):
            step.check_finite(name, product)
            totals[name] += float((signs[name] * product).sum(dtype=torch.float64))
    return {name: total / vectors for name, total in totals.items()}


def _hessian_products(
    gradients: Sequence[Tensor], leaves: list[Tensor], vectors: list[Tensor], *, retain_graph: bool
) -> tuple[Tensor, ...]:
    """Hv for each leaf. Gradients that do not depend on any leaf are constants, with which autograd refuses to deal."""
    curved = [pair for pair in zip(gradients, vectors, strict=True) if pair[0].requires_grad]
    if not curved:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    outputs, directions = zip(*curved, strict=True)
    return _grad(outputs, leaves, directions, retain_graph=retain_graph)


def _grad(
    outputs: Sequence[Tensor], leaves: list[Tensor], directions: Sequence[Tensor] | None = None, **keep: bool
) -> tuple[Tensor, ...]:
    try:
        return torch.autograd.grad(outputs, leaves, directions, materialize_grads=True, **keep)
    except RuntimeError as error:
        raise HwbmpqError(
            f"the network cannot be differentiated twice: {error}", hint="use the method enbg"
        ) from error


def _signs_like(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Random ±1, drawn on the CPU so that every device sees the same."""
    bits = torch.randint(0, 2, weight.shape, generator=generator)
    return bits.mul_(2).sub_(1).to(weight.device, weight.dtype)


def _remarks(scores: dict[str, float]) -> tuple[str, ...]:
    negative = [name for name, score in scores.items() if score < 0]
    if not negative:
        return ()
    return (f"negative trace, the loss is not at a minimum or the estimate is noisy: {', '.join(negative)}",)
