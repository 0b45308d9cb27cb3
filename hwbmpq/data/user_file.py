"""Importing a Python file that the user names; its code runs."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hwbmpq.data.torchvision_import import import_torchvision
from hwbmpq.errors import HwbmpqError, UnknownNameError


def import_file(path: Path, error_type: type[HwbmpqError] = HwbmpqError) -> ModuleType:
    """Run a file as a module of its own; what it raises becomes one sentence."""
    if not path.is_file():
        raise error_type(f"no file {path}", hint="check the path; it is relative to this folder")
    with contextlib.suppress(ImportError):
        import_torchvision()  # beside a CPU-only torch, the file's own import of it or of timm would fail
    specification = importlib.util.spec_from_file_location(f"hwbmpq_user_{path.stem}", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # dataclasses and pickle look their module up there
    sys.path.insert(0, str(path.resolve().parent))  # the file may import its neighbours
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's own code
        raise error_type(
            f"importing {path} raised {type(error).__name__}: {error}", hint="--debug shows where"
        ) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def function_of(path: Path, name: str, error_type: type[HwbmpqError] = HwbmpqError) -> Callable[..., Any]:
    """A function or class of a file, by its name."""
    module = import_file(path, error_type)
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    raise UnknownNameError(f"function or class in {path}", name, own)
