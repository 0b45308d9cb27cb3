"""Other measures than ENBG.

``weight_error`` needs no data, and does not know what the rest of the network does with the error. ``divergence`` runs
the network with one layer narrowed at a time: measured rather than estimated, and therefore slower. ``hessian_trace``
is the curvature of the loss, the trace of each layer's block of the Hessian (HAWQ-V2).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from hwbmpq.data.inputs import ModelInputs, tensors
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import quantized_layers
from hwbmpq.quant.layers import QuantizedLayer
from hwbmpq.quant.weights import QuantizedWeight
from hwbmpq.sensitivity.measure import SensitivityInputs, Step, run_steps, weight_without_data
from hwbmpq.sensitivity.registry import register
from hwbmpq.values import Sensitivity


@register("uniform", needs_data=False, needs_weights=False)
def measure_uniform(measurement: SensitivityInputs) -> Sensitivity:
    """Score 1 for every layer, and no errors: the baseline that any other method has to beat."""
    return Sensitivity(method="uniform", scores={layer.name: 1.0 for layer in measurement.layers})


@register("weight_error", needs_data=False)
def measure_weight_error(measurement: SensitivityInputs) -> Sensitivity:
    """Errors ||W - Q(W)||²; the score is the one at the narrowest width, relative to ||W||²."""
    quantized = dict(quantized_layers(measurement.float_copy()))
    weights = {
        layer.name: weight_without_data(quantized[layer.name], layer.input_shape)
        for layer in measurement.layers
    }
    errors = {
        name: squared_errors(quantized[name], weight, measurement.widths[name])
        for name, weight in weights.items()
    }
    scores = {name: _relative(errors[name], weight) for name, weight in weights.items()}
    return Sensitivity(method="weight_error", scores=scores, errors=errors)


def squared_errors(
    layer: QuantizedLayer | QuantizedWeight, weight: Tensor, widths: Iterable[int]
) -> dict[int, float]:
    """||W - Q(W)||² at each width, narrowest first."""
    error = layer.weight_quantizer.rounding_error
    return {bits: _squared_norm(error(weight, bits)) for bits in sorted(set(widths))}


def _relative(errors: dict[int, float], weight: Tensor) -> float:
    norm = _squared_norm(weight)
    return errors[min(errors)] / norm if norm else 0.0  # zeros are rounded to zeros


def _squared_norm(values: Tensor) -> float:
    return float(values.double().square().sum())


@register("divergence", needs_data=True)
def measure_divergence(measurement: SensitivityInputs) -> Sensitivity:
    """Errors: divergence of the outputs, per image, from those at the given precisions. Score: the narrowest width's.

    A forward pass for every layer, width and batch. Labels do not matter. Where there is another loss than a
    classifier's, it is the squared difference of the outputs.
    """
    network = measurement.quantized_copy(measurement.precisions)
    layers = dict(quantized_layers(network))
    totals = {
        layer.name: dict.fromkeys(sorted(measurement.widths[layer.name]), 0.0) for layer in measurement.layers
    }
    images = 0
    for step in run_steps(measurement, network):
        images += step.images
        distance = _answers_apart if measurement.loss is None else _outputs_apart
        usual = _outputs(network, step.inputs)
        for name, sums in totals.items():
            for bits, answers in _narrowed(network, layers[name], sums, step.inputs):
                sums[bits] += distance(answers, usual)
    # Rounding may make it slightly negative, which a divergence never is.
    errors = {name: {bits: max(0.0, s / images) for bits, s in sums.items()} for name, sums in totals.items()}
    scores = {name: by_width[min(by_width)] for name, by_width in errors.items()}
    return Sensitivity(method="divergence", scores=scores, errors=errors)


def _narrowed(
    network: nn.Module, layer: QuantizedLayer | QuantizedWeight, widths: Iterable[int], inputs: ModelInputs
) -> Iterable[tuple[int, list[Tensor]]]:
    """The outputs with this layer's weights at each width other than its present one."""
    usual = layer.precision
    for bits in widths:
        if bits == usual.weight_bits:
            continue
        layer.set_precision(replace(usual, weight_bits=bits))
        try:
            yield bits, _outputs(network, inputs)
        finally:
            layer.set_precision(usual)


@torch.no_grad()
def _outputs(network: nn.Module, inputs: ModelInputs) -> list[Tensor]:
    return [tensor.double() for tensor in tensors(inputs.call(network)) if tensor.is_floating_point()]


def _answers_apart(found: list[Tensor], usual: list[Tensor]) -> float:
    """The Kullback-Leibler divergence of a classifier's answers."""
    answers, expected = found[0].log_softmax(1), usual[0].log_softmax(1)
    return float(F.kl_div(answers, expected, log_target=True, reduction="sum"))


def _outputs_apart(found: list[Tensor], usual: list[Tensor]) -> float:
    """The squared difference, where outputs are not scores."""
    return sum(float((one - other).square().sum()) for one, other in zip(found, usual, strict=True))


VECTORS_PER_BATCH = 4
"""Random vectors that each batch's trace is estimated with; their noise averages out over the batches too."""


@register("hessian_trace", needs_data=True)
def measure_hessian_trace(measurement: SensitivityInputs) -> Sensitivity:
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
        remarks=_negative_traces(scores),
    )


def batch_traces(
    step: Step, generator: torch.Generator, *, vectors: int = VECTORS_PER_BATCH
) -> dict[str, float]:
    """Hutchinson's estimate: the mean of v·Hv over random vectors v of ±1, for all layers at once.

    Contributions between layers have mean zero. The runs of one layer share its vector:
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
    """Hv for each leaf. Gradients that do not depend on any leaf are constants, which autograd refuses."""
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
    """Random ±1, drawn on the CPU so that every device gets the same."""
    bits = torch.randint(0, 2, weight.shape, generator=generator)
    return bits.mul_(2).sub_(1).to(weight.device, weight.dtype)


def _negative_traces(scores: dict[str, float]) -> tuple[str, ...]:
    negative = [name for name, score in scores.items() if score < 0]
    if not negative:
        return ()
    return (f"negative trace, the loss is not at a minimum or the estimate is noisy: {', '.join(negative)}",)
