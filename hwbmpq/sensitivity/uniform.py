"""Every layer needs its bits equally: the control that any other method has to beat."""

from hwbmpq.sensitivity.measurement import SensitivityInputs
from hwbmpq.sensitivity.registry import register
from hwbmpq.values import Sensitivity


@register("uniform", needs_data=False, needs_weights=False)
def measure(measurement: SensitivityInputs) -> Sensitivity:
    """Score 1 for every layer, and no errors."""
    return Sensitivity(method="uniform", scores={layer.name: 1.0 for layer in measurement.layers})
