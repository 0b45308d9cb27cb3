"""Names of 0.1.0 that changed: they work for one more version, with a ``DeprecationWarning``."""

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MOVED_MODULES = {
    "hwbmpq.allocator": "hwbmpq.search.allocator",
    "hwbmpq.deployment": "hwbmpq.export.deployment",
    "hwbmpq.page": "hwbmpq.report.html",
    "hwbmpq.ranks": "hwbmpq.distributed",
}
"""Modules that 0.1.0 offered by name, and where they are now."""


class _MovedModules(MetaPathFinder, Loader):
    """Imports a module under its old name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED_MODULES else None

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED_MODULES[module.__name__]
        warn(module.__name__, new, stacklevel=7)
        sys.modules[module.__name__] = import_module(new)


def install() -> None:
    """Let ``import`` find the modules that moved."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(_MovedModules())


def warn(old: str, new: str, *, stacklevel: int = 3) -> None:
    warnings.warn(
        f"{old} is now {new}; the old name goes away in 0.3", DeprecationWarning, stacklevel=stacklevel
    )


def renamed_attribute(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that knows the old names of what it offers."""

    def get(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name}", f"{module}.{renamed[name]}")
        return getattr(sys.modules[module], renamed[name])

    return get


def renamed_arguments(**renamed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Function decorator: keyword arguments are accepted by their old names too (``old="new"``)."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in renamed.keys() & kwargs.keys():
                warn(f"{function.__name__}({old}=…)", f"{renamed[old]}=")
                kwargs[renamed[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
