"""What is wrong with a profile: every problem at once, each with its place."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from hwbmpq.errors import HwbmpqError

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
        field = f"{_cut(self.field, 200)}: " if self.field else ""
        return f"{self.place}: {field}{_cut(self.message, 600)}"


def _cut(text: str, length: int) -> str:
    """A text may quote what the file says, which may be long."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


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
