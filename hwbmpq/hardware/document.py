"""YAML text as a tree of nodes that know their place. The only reader of YAML here.

Built by hand from PyYAML's events. Its own nodes have marks too, but composing them follows any nesting and any
alias; here nesting and size are bounded before anything is built, keys cannot repeat, and ``921.6e6`` is a number.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from hwbmpq.hardware.problems import Place, ProfileError
from hwbmpq.units import shown

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

    def holding(self, value: "dict[str, YamlNode] | list[YamlNode] | Scalar") -> "YamlNode":
        """Another value in the same place."""
        return YamlNode(value=value, place=self.place, key_place=self.key_place)

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

    def plain(self) -> Any:
        """The same as dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
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


class _Builder:
    """Events to nodes, with counts of what was built."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._nodes = 0
        self._anchors: dict[str, tuple[YamlNode, int]] = {}  # with the number of nodes in it

    def build(self, events: Iterator[Any]) -> YamlNode | None:
        root: YamlNode | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise ProfileError.at(self._place(event), "a second document: one profile per file")
                root = self._node(next(events), events, depth=0)
        return root

    def _place(self, event: Any) -> Place:
        mark = event.start_mark
        return Place(file=self._file, line=mark.line + 1, column=mark.column + 1)

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> YamlNode:
        place = self._place(event)
        if depth > _MOST_DEPTH:
            raise ProfileError.at(place, f"nested more than {_MOST_DEPTH} deep: that is not a profile")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, place)
        if event.tag not in _PLAIN_TAGS:
            raise ProfileError.at(place, f"tag {shown(event.tag)}: a profile holds plain values only")
        before = self._nodes
        self._count(1, place)
        if isinstance(event, yaml.ScalarEvent):
            node = YamlNode(value=_scalar(event), place=place)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = YamlNode(value=self._list(events, depth), place=place)
        else:
            node = YamlNode(value=self._mapping(events, depth), place=place)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._nodes - before)
        return node

    def _alias(self, event: Any, place: Place) -> YamlNode:
        if event.anchor not in self._anchors:
            raise ProfileError.at(place, f"*{event.anchor} has no anchor &{event.anchor} before it")
        node, size = self._anchors[event.anchor]
        self._count(size, place)  # an alias counts as what it stands for
        return node

    def _count(self, nodes: int, place: Place) -> None:
        self._nodes += nodes
        if self._nodes > _MOST_NODES:
            raise ProfileError.at(
                place, f"more than {_MOST_NODES:,} values (aliases count in full): that is not a profile"
            )

    def _list(self, events: Iterator[Any], depth: int) -> list[YamlNode]:
        found = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            found.append(self._node(event, events, depth + 1))
        return found

    def _mapping(self, events: Iterator[Any], depth: int) -> dict[str, YamlNode]:
        found: dict[str, YamlNode] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            place = self._place(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise ProfileError.at(place, "a key must be plain text")
            self._count(1, place)
            if event.value in found:
                raise ProfileError.at(place, f"key {shown(event.value)} appears twice")
            node = self._node(next(events), events, depth + 1)
            found[event.value] = YamlNode(value=node.value, place=node.place, key_place=place)
        return found


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
