"""How many of a layer's activations are not zero: layers that mostly produce zeros are thought to need fewer bits."""

from dataclasses import replace

from hwbmpq.quant import as_precision
from hwbmpq.sensitivity.density_meter import DensityMeter
from hwbmpq.sensitivity.measurement import SensitivityInputs
from hwbmpq.sensitivity.registry import register
from hwbmpq.sensitivity.steps import run_steps
from hwbmpq.values import FLOAT_BITS, Sensitivity


@register("activation_density", needs_data=True)
def measure(measurement: SensitivityInputs) -> Sensitivity:
    """Score: the layer's activation density on the float network (Vasquez et al. 2021). No errors."""
    # Nothing is rounded, hence nothing calibrated: every batch runs, and counts, once.
    in_float = dict.fromkeys(measurement.precisions, as_precision(FLOAT_BITS))
    measurement = replace(measurement, precisions=in_float)
    network = measurement.float_copy()
    with DensityMeter(network, measurement.layers) as meter:
        for _ in run_steps(measurement, network):
            pass
    return Sensitivity(method="activation_density", scores=meter.densities())
