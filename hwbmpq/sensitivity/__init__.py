"""Which layers need their bits: bit gradients (ENBG) and other methods, and files that keep the answer.

Names resolve on first use (PEP 562): reading a file of scores needs no torch.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from hwbmpq.sensitivity.density_meter import DensityMeter as DensityMeter
    from hwbmpq.sensitivity.enbg import bit_gradient_norm as bit_gradient_norm
    from hwbmpq.sensitivity.files import load_sensitivity as load_sensitivity
    from hwbmpq.sensitivity.files import save_sensitivity as save_sensitivity
    from hwbmpq.sensitivity.measure import measure_sensitivity as measure_sensitivity
    from hwbmpq.sensitivity.measurement import SensitivityInputs as SensitivityInputs
    from hwbmpq.sensitivity.registry import OUR_METHODS as OUR_METHODS
    from hwbmpq.sensitivity.registry import methods as methods
    from hwbmpq.sensitivity.registry import register as register

_HOME_OF = {
    "DensityMeter": "density_meter",
    "SensitivityInputs": "measurement",
    "OUR_METHODS": "registry",
    "bit_gradient_norm": "enbg",
    "load_sensitivity": "files",
    "measure_sensitivity": "measure",
    "methods": "registry",
    "register": "registry",
    "save_sensitivity": "files",
}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> _Any:
    if name in _HOME_OF:
        return getattr(_import_module(f"hwbmpq.sensitivity.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'hwbmpq.sensitivity' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
