"""Public names: those that resolve on first use, and those of 0.1.0 that changed and work for one more version."""

import ast
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_NONE: Mapping[str, str] = MappingProxyType({})

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


def lazy_names(
    package: str, renamed: Mapping[str, str] = _NONE
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names resolve on first use (PEP 562).

    The list of names is the package's ``if TYPE_CHECKING`` block of ``from x import y as y``: what type checkers and
    the reference read is what resolves. ``renamed`` has the new names of those that changed.
    """
    homes = dict(_imported(package))
    names = sorted(homes)

    def resolve(name: str) -> Any:
        if name in renamed:
            warn(f"{package}.{name}", f"{package}.{renamed[name]}")
            name = renamed[name]
        if homes.get(name) == package or f"{package}.{name}" in MOVED_MODULES:
            return import_module(f"{package}.{name}")
        if name in homes:
            return getattr(import_module(homes[name]), name)
        raise AttributeError(
            f"module {package!r} has no attribute {name!r}; public names: {', '.join(names)}"
        )

    return resolve, lambda: list(names), names


def _imported(package: str) -> Iterator[tuple[str, str]]:
    """Names that are imported for type checkers, and the module that each is imported from."""
    loader: Any = sys.modules[package].__spec__.loader  # type: ignore[union-attr]
    for block in ast.parse(loader.get_source(package)).body:
        for node in block.body if isinstance(block, ast.If) else ():
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((alias.name, node.module) for alias in node.names)
