"""Files with positions: what is wrong in one and where, and the nodes of a YAML text, which know their place."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from hwbmpq.errors import HwbmpqError, cut

MOST_PROBLEMS = 50
"""Problems listed before the rest is only counted."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Place:
    """A position in a file; lines and columns count from 1."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileProblem:
    """One thing to fix, and where."""

    place: Place
    field: str
    """Dotted path of the field, or ``""`` for the whole file."""
    message: str

    def __str__(self) -> str:
        field = f"{cut(self.field, 200)}: " if self.field else ""
        return f"{self.place}: {field}{cut(self.message, 600)}"


class ProfileError(HwbmpqError):
    """A profile, or a file it refers to, that cannot be used. ``problems`` lists all that is wrong."""

    def __init__(self, problems: Sequence[ProfileProblem], *, hint: str = "") -> None:
        found: dict[tuple[Place, str, str], ProfileProblem] = {}
        for problem in problems:  # a source that a whole block names is one problem, whoever takes it over
            is_shared = problem.message.startswith("no source")
            found.setdefault((problem.place, "" if is_shared else problem.field, problem.message), problem)
        self.problems = tuple(sorted(found.values(), key=lambda problem: problem.place))
        lines = [str(problem) for problem in self.problems[:MOST_PROBLEMS]]
        left = len(self.problems) - len(lines)
        super().__init__("\n".join([*lines, *([f"… and {left} more problems"] if left else [])]), hint=hint)

    @classmethod
    def at(cls, place: Place, message: str, *, field: str = "") -> "ProfileError":
        """An error with a single problem."""
        return cls([ProfileProblem(place=place, field=field, message=message)])


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The message for a key that does not exist.

    >>> unknown_key("bandwith", ["bandwidth", "size"])
    'unknown key: did you mean `bandwidth`?'
    """
    known = list(known)
    close = get_close_matches(key[:100], known, n=1, cutoff=0.6)
    if close:
        return f"unknown key: did you mean `{close[0]}`?"
    return f"unknown key; known here: {', '.join(known)}" if known else "unknown key"


Scalar = str | int | float | bool | None


@dataclass(kw_only=True, slots=True, eq=False)
class YamlNode:
    """A mapping, list or scalar, and where it stands."""

    value: "dict[str, YamlNode] | list[YamlNode] | Scalar"
    place: Place
    key_place: Place | None = None
    """Where its key stands, if it has one."""

    path: str = ""
    """Its dotted path as the file spells it: ``clock.core``."""

    def holding(self, value: "dict[str, YamlNode] | list[YamlNode] | Scalar") -> "YamlNode":
        """Another value in the same place."""
        return replace(self, value=value)

    def problem(self, message: str) -> ProfileProblem:
        """What is wrong with it."""
        return ProfileProblem(place=self.place, field=self.path, message=message)

    @property
    def mapping(self) -> "dict[str, YamlNode]":
        """Its entries; empty if it is not a mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> "list[YamlNode]":
        """Its elements; empty if it is not a list."""
        return self.value if isinstance(self.value, list) else []

    def find(self, *path: str | int) -> "YamlNode":
        """The node at ``path``, or the deepest one on the way there."""
        node = self
        for step in path:
            below = node.mapping.get(str(step))
            if below is None and isinstance(step, int) and 0 <= step < len(node.items):
                below = node.items[step]
            if below is None:
                return node
            node = below
        return node

    def walk(self) -> "Iterator[YamlNode]":
        """Itself and everything in it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += [*node.mapping.values(), *node.items]

    def plain(self, *, nulls: bool = True) -> Any:
        """The same as dicts, lists and scalars; without the keys whose value is ``null``, if asked."""
        if isinstance(self.value, dict):
            kept = {key: node for key, node in self.value.items() if nulls or node.value is not None}
            return {key: node.plain(nulls=nulls) for key, node in kept.items()}
        if isinstance(self.value, list):
            return [node.plain(nulls=nulls) for node in self.value]
        return self.value
