"""Which layers need their bits: bit gradients (ENBG) and other methods, and files that keep the answer.

Names resolve on first use (PEP 562): reading a file of scores needs no torch.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from hwbmpq.deprecated import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from hwbmpq.sensitivity.density_meter import DensityMeter as DensityMeter
    from hwbmpq.sensitivity.enbg import bit_gradient_norm as bit_gradient_norm
    from hwbmpq.sensitivity.files import load_sensitivity as load_sensitivity
    from hwbmpq.sensitivity.files import save_sensitivity as save_sensitivity
    from hwbmpq.sensitivity.measure import SensitivityInputs as SensitivityInputs
    from hwbmpq.sensitivity.measure import measure_sensitivity as measure_sensitivity
    from hwbmpq.sensitivity.registry import OUR_METHODS as OUR_METHODS
    from hwbmpq.sensitivity.registry import methods as methods
    from hwbmpq.sensitivity.registry import register as register

__getattr__, __dir__, __all__ = _lazy_names(__name__, {"Measurement": "SensitivityInputs"})
