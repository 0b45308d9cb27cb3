"""How far rounding moves the weights: needs no data, and does not know what the network makes of it."""

from collections.abc import Iterable

from torch import Tensor

from hwbmpq.quant import quantized_layers
from hwbmpq.quant.layers import QuantizedLayer
from hwbmpq.sensitivity.measure import SensitivityInputs
from hwbmpq.sensitivity.registry import register
from hwbmpq.sensitivity.weight_capture import weight_without_data
from hwbmpq.values import Sensitivity


@register("uniform", needs_data=False, needs_weights=False)
def measure_uniform(measurement: SensitivityInputs) -> Sensitivity:
    """Score 1 for every layer, and no errors: the baseline that any other method has to beat."""
    return Sensitivity(method="uniform", scores={layer.name: 1.0 for layer in measurement.layers})


@register("weight_error", needs_data=False)
def measure(measurement: SensitivityInputs) -> Sensitivity:
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


def squared_errors(layer: QuantizedLayer, weight: Tensor, widths: Iterable[int]) -> dict[int, float]:
    """||W - Q(W)||² at each width, narrowest first."""
    error = layer.weight_quantizer.rounding_error
    return {bits: _squared_norm(error(weight, bits)) for bits in sorted(set(widths))}


def _relative(errors: dict[int, float], weight: Tensor) -> float:
    norm = _squared_norm(weight)
    return errors[min(errors)] / norm if norm else 0.0  # zeros are rounded to zeros


def _squared_norm(values: Tensor) -> float:
    return float(values.double().square().sum())
