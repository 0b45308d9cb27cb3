"""Hardware-aware mixed-precision quantization for PyTorch, driven by bit gradients.

Public names resolve on first use (PEP 562), so that ``import hwbmpq`` and
``hwbmpq --help`` never pay for importing torch.
"""

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

_HERE = _Path(__file__).resolve().parent
if not (_HERE / "cli").is_dir():
    # A source checkout: cli/, models/ and hardware_profiles/ sit beside this folder, not inside it.
    __path__.append(str(_HERE.parent))

from hwbmpq.deprecated import install as _install  # noqa: E402 (after __path__)
from hwbmpq.deprecated import lazy_names as _lazy_names  # noqa: E402

_install()

__version__ = "0.2.0.dev0"

if _TYPE_CHECKING:
    from hwbmpq import allocate as allocate
    from hwbmpq import costs as costs
    from hwbmpq import data as data
    from hwbmpq import distributed as distributed
    from hwbmpq import export as export
    from hwbmpq import graph as graph
    from hwbmpq import hardware as hardware
    from hwbmpq import measure as measure
    from hwbmpq import models as models
    from hwbmpq import pipeline as pipeline
    from hwbmpq import quant as quant
    from hwbmpq import report as report
    from hwbmpq import search as search
    from hwbmpq import sensitivity as sensitivity
    from hwbmpq import tasks as tasks
    from hwbmpq import training as training
    from hwbmpq.allocate import Allocation as Allocation
    from hwbmpq.allocate import InfeasibleBudget as InfeasibleBudget
    from hwbmpq.costs import CostModel as CostModel
    from hwbmpq.costs import CostTable as CostTable
    from hwbmpq.errors import HwbmpqError as HwbmpqError
    from hwbmpq.export.packed.load import load as load
    from hwbmpq.graph import LayerGraph as LayerGraph
    from hwbmpq.graph import describe as describe
    from hwbmpq.hardware import HardwareProfile as HardwareProfile
    from hwbmpq.hardware import load_profile as load_profile
    from hwbmpq.search.allocator import BitAllocator as BitAllocator
    from hwbmpq.training.setup import keep_freed_memory as keep_freed_memory
    from hwbmpq.values import Layer as Layer
    from hwbmpq.values import Precision as Precision
    from hwbmpq.values import Sensitivity as Sensitivity
    from hwbmpq.values import TieGroup as TieGroup
    from hwbmpq.values import Uncovered as Uncovered

__getattr__, __dir__, __all__ = _lazy_names(__name__)
__all__ += ["__version__"]
