"""Public names of a package that resolve on first use (PEP 562), so that importing the package is cheap."""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from hwbmpq.deprecated import MOVED_MODULES, warn

Resolve = Callable[[str], Any]
_NONE: Mapping[str, str] = MappingProxyType({})


def lazy_names(
    package: str, renamed: Mapping[str, str] = _NONE
) -> tuple[Resolve, Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports its names for type checkers only.

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
