"""Importing torchvision, and timm, which imports it.

PyPI's torchvision ships compiled operators that need CUDA libraries. Beside a CPU-only torch they do
not load, and ``import torchvision`` stops at ``operator torchvision::nms does not exist``. Datasets,
transforms and classification models need none of those operators; declaring the two schemas that the
import looks for is enough. Nothing is declared where the plain import works.
"""

import sys
from importlib import import_module
from types import ModuleType

import torch

_SYMPTOM = "operator torchvision::nms does not exist"
_MISSING_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a Library takes its schemas back when it is collected


def import_torchvision() -> ModuleType:
    """Import torchvision; beside a CPU-only torch, declare the operators it misses first."""
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if _SYMPTOM not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # what the failed import left behind
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in _MISSING_SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return import_module("torchvision")


def import_timm() -> ModuleType:
    """Import timm behind a torchvision that imports."""
    import_torchvision()
    return import_module("timm")
