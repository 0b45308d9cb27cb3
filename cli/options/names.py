"""Names that a registry knows, on the command line."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hwbmpq.errors import UnknownNameError
from hwbmpq.registry import DATA_SOURCES, Registry


@dataclass(frozen=True)
class RegistryNames:
    """A registry as argparse's ``type`` and ``choices``: asked when a name is given or help is printed, not before."""

    registry: Registry[Any]
    also: tuple[str, ...] = ()
    """Words that mean something without being registered."""

    def __call__(self, text: str) -> str:
        if text in self.also:
            return text
        try:
            return self.registry.resolve(text)
        except UnknownNameError:
            error = UnknownNameError(self.registry.what, text, self)
            raise argparse.ArgumentTypeError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter([*self.also, *(name.replace("_", "-") for name in self.registry.names())])

    def __contains__(self, name: object) -> bool:
        return True  # called before, as the type


def add_name_option(
    group: argparse._ActionsContainer,
    flag: str,
    registry: Registry[Any],
    text: str,
    *,
    default: str | None = None,
    also: tuple[str, ...] = (),
) -> None:
    """A flag that takes a name; ``%(choices)s`` in its help lists them."""
    names = RegistryNames(registry, also)
    group.add_argument(flag, type=names, choices=names, default=default, metavar="NAME", help=text)


def add_data_options(
    group: argparse._ActionsContainer, text: str, root: str = "data", **options: Any
) -> None:
    """``--data`` and where to look for it."""
    group.add_argument(
        "--data",
        type=_data_spec,
        choices=RegistryNames(DATA_SOURCES),
        metavar="SPEC",
        help=f"{text}; sources: %(choices)s",
        **options,
    )
    group.add_argument("--data-root", metavar="DIR", help=f"where data sets are (default: {root})")
    group.add_argument("--download", action="store_true", help="fetch the data set if it is not there")


def _data_spec(text: str) -> str:
    kind, colon, detail = text.partition(":")
    return f"{RegistryNames(DATA_SOURCES)(kind)}{colon}{detail}"
