"""Files with positions: what is wrong in one and where, and YAML text as a tree of nodes that know their place.

The tree is built from PyYAML's events. PyYAML's own nodes have marks too, but composing them follows any nesting and any
alias; here nesting and size are limited before anything is built, keys cannot repeat, and ``921.6e6`` is a number.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import yaml

from hwbmpq.errors import HwbmpqError
from hwbmpq.units import shown

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


MOST_BYTES = 1 << 20
_MOST_NODES = 50_000
_MOST_DEPTH = 32
_MOST_DIGITS = 300
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where the wheel has it: ten times faster
_INTEGER = re.compile(r"[-+]?\d[\d_]*")
_FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
_ADVICE = {
    "found character that cannot start any token": " (a tab? indent with spaces)",
    "mapping values are not allowed in this context": " (quote a text that has a colon in it)",
}
_PLAIN_TAGS = (None, "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "map", "seq")))
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}

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


def parse_document(text: str | bytes, file: str) -> YamlNode:
    """The mapping that a YAML text holds; ``ProfileError`` if there is none."""
    decoded = _decode(text, file)
    try:
        # The pure Python parser recurses on deep input; the depth is bounded there, too.
        root = _Builder(file).build(yaml.parse(decoded, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file=file, line=mark.line + 1, column=mark.column + 1) if mark else Place(file=file)
        said = error.problem or error.context or ""
        raise ProfileError.at(place, f"not YAML: {said}{_ADVICE.get(said, '')}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ProfileError.at(
            Place(file=file), f"not YAML: {str(error).splitlines()[0] if str(error) else 'too deep'}"
        ) from None
    if root is None or root.value is None:
        raise ProfileError.at(Place(file=file), "the file is empty: a profile is a mapping of keys to values")
    if not isinstance(root.value, dict):
        raise ProfileError.at(
            root.place, "a profile is a mapping of keys to values (`name: my_board` and so on)"
        )
    return root


def _decode(text: str | bytes, file: str) -> str:
    if len(text) > MOST_BYTES:
        raise ProfileError.at(
            Place(file=file), f"the file is larger than {MOST_BYTES >> 20} MiB: that is not a profile"
        )
    if isinstance(text, str):
        text = text.encode(errors="surrogatepass")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = text[: error.start]
        place = Place(
            file=file, line=before.count(b"\n") + 1, column=error.start - (before.rfind(b"\n") + 1) + 1
        )
        raise ProfileError.at(place, "not UTF-8 text: save the file as UTF-8") from None


@dataclass(kw_only=True, slots=True)
class _Open:
    """A mapping or list whose end is still to come."""

    node: YamlNode
    anchor: str | None
    key: tuple[str, Place] | None = None
    """The key whose value comes next."""


class _Builder:
    """Builds nodes from events, with a stack instead of recursion, and counts them."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._root: YamlNode | None = None
        self._stack: list[_Open] = []
        self._nodes = 0
        self._anchors: dict[str | None, YamlNode] = {}

    def build(self, events: Iterable[Any]) -> YamlNode | None:
        for event in events:
            mark = event.start_mark
            place = Place(file=self._file, line=mark.line + 1, column=mark.column + 1)
            if isinstance(event, yaml.DocumentStartEvent) and self._root is not None:
                raise ProfileError.at(place, "a second document: one profile per file")
            if isinstance(event, yaml.CollectionEndEvent):
                ended = self._stack.pop()
                self._anchors[ended.anchor] = ended.node
            elif isinstance(event, yaml.NodeEvent):
                self._add(event, place)
        return self._root

    def _add(self, event: Any, place: Place) -> None:
        parent = self._stack[-1] if self._stack else None
        if parent and parent.key is None and isinstance(parent.node.value, dict):
            if not isinstance(event, yaml.ScalarEvent):
                raise ProfileError.at(place, "a key must be plain text")
            if event.value in parent.node.value:
                raise ProfileError.at(place, f"key {shown(event.value)} appears twice")
            parent.key = (event.value, place)
            return
        node = self._attach(self._node(event, place), parent)
        if isinstance(event, yaml.CollectionStartEvent):
            self._stack.append(_Open(node=node, anchor=event.anchor))
        elif isinstance(event, yaml.ScalarEvent):
            self._anchors[event.anchor] = node

    def _node(self, event: Any, place: Place) -> YamlNode:
        if len(self._stack) > _MOST_DEPTH:
            raise ProfileError.at(place, f"nested more than {_MOST_DEPTH} deep: that is not a profile")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise ProfileError.at(place, f"*{event.anchor} has no anchor &{event.anchor} before it")
            node = self._anchors[event.anchor]
            self._nodes += sum(1 for _ in node.walk())
        elif event.tag not in _PLAIN_TAGS:
            raise ProfileError.at(place, f"tag {shown(event.tag)}: a profile holds plain values only")
        else:
            empty: Any = [] if isinstance(event, yaml.SequenceStartEvent) else {}
            node = YamlNode(
                value=_scalar(event) if isinstance(event, yaml.ScalarEvent) else empty, place=place
            )
            self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise ProfileError.at(
                place, f"more than {_MOST_NODES:,} values (aliases count in full): that is not a profile"
            )
        return node

    def _attach(self, node: YamlNode, parent: _Open | None) -> YamlNode:
        """The node in its place in the tree; what it holds may still come."""
        if parent is None:
            self._root = node
        elif isinstance(parent.node.value, list):
            node = replace(node, path=f"{parent.node.path}.{len(parent.node.value)}")
            parent.node.value.append(node)
        elif parent.key:
            key, key_place = parent.key
            path = f"{parent.node.path}.{key}" if parent.node.path else key
            parent.node.mapping[key] = node = replace(node, key_place=key_place, path=path)
            parent.key = None
        return node


def _scalar(event: Any) -> Scalar:
    """A quoted text stays text; the rest is read as in YAML 1.2, where 921.6e6 is a number."""
    text = event.value
    if not event.implicit[0]:
        return str(text)
    if text in _CONSTANTS:
        return _CONSTANTS[text]  # type: ignore[no-any-return]
    if len(text) > _MOST_DIGITS:
        return str(text)
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return str(text)
