"""YAML text as a tree of nodes, whoever wrote it: profiles, settings of runs.

The tree is built from PyYAML's events. PyYAML's own nodes have marks too, but composing them follows any nesting and any
alias; here nesting and size are limited before anything is built, keys cannot repeat, and ``921.6e6`` is a number.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import yaml

from hwbmpq.errors import cut
from hwbmpq.hardware.document import Place, ProfileError, Scalar, YamlNode
from hwbmpq.units import shown

MOST_BYTES = 1 << 20
"""Of a file, and of all texts in it with aliases in full."""
_MOST_NODES = 50_000
_MOST_DEPTH = 32
_MOST_DIGITS = 300
_LONGEST_PATH = 200
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


def parse_document(text: str | bytes, file: str, what: str = "a profile") -> YamlNode:
    """The mapping that a YAML text holds; ``ProfileError`` if there is none."""
    decoded = _decode(text, file, what)
    try:
        # The pure Python parser recurses on deep input; the depth is bounded there, too.
        root = _Builder(file, what).build(yaml.parse(decoded, Loader=_LOADER))
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
        raise ProfileError.at(Place(file=file), f"the file is empty: {what} is a mapping of keys to values")
    if not isinstance(root.value, dict):
        raise ProfileError.at(
            root.place, f"{what} is a mapping of keys to values (lines such as `name: value`)"
        )
    return root


def _decode(text: str | bytes, file: str, what: str) -> str:
    if len(text) > MOST_BYTES:
        raise ProfileError.at(
            Place(file=file), f"the file is larger than {MOST_BYTES >> 20} MiB: that is not {what}"
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

    def __init__(self, file: str, what: str) -> None:
        self._file, self._what = file, what
        self._root: YamlNode | None = None
        self._stack: list[_Open] = []
        self._nodes = self._characters = 0
        self._anchors: dict[str | None, YamlNode] = {}

    def build(self, events: Iterable[Any]) -> YamlNode | None:
        for event in events:
            mark = event.start_mark
            place = Place(file=self._file, line=mark.line + 1, column=mark.column + 1)
            if isinstance(event, yaml.DocumentStartEvent) and self._root is not None:
                raise ProfileError.at(place, f"a second document: a file holds {self._what} alone")
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
            self._characters += len(event.value)
            return
        node = self._attach(self._node(event, place), parent)
        if isinstance(event, yaml.CollectionStartEvent):
            self._stack.append(_Open(node=node, anchor=event.anchor))
        elif isinstance(event, yaml.ScalarEvent):
            self._anchors[event.anchor] = node

    def _node(self, event: Any, place: Place) -> YamlNode:
        if len(self._stack) > _MOST_DEPTH:
            raise ProfileError.at(place, f"nested more than {_MOST_DEPTH} deep: that is not {self._what}")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise ProfileError.at(place, f"*{event.anchor} has no anchor &{event.anchor} before it")
            node = self._anchors[event.anchor]
            for inner in node.walk():
                self._count(inner)
        elif event.tag not in _PLAIN_TAGS:
            raise ProfileError.at(place, f"tag {shown(event.tag)}: {self._what} holds plain values only")
        else:
            empty: Any = [] if isinstance(event, yaml.SequenceStartEvent) else {}
            node = YamlNode(
                value=_scalar(event) if isinstance(event, yaml.ScalarEvent) else empty, place=place
            )
            self._count(node)
        if self._nodes > _MOST_NODES or self._characters > MOST_BYTES:
            most = f"{_MOST_NODES:,} values or {MOST_BYTES >> 20} MiB of text"
            raise ProfileError.at(
                place, f"more than {most} (aliases count in full): that is not {self._what}"
            )
        return node

    def _count(self, node: YamlNode) -> None:
        self._nodes += 1
        self._characters += sum(map(len, node.mapping))
        self._characters += len(node.value) if isinstance(node.value, str) else 0

    def _attach(self, node: YamlNode, parent: _Open | None) -> YamlNode:
        """The node in its place in the tree; what it holds may still come."""
        if parent is None:
            self._root = node
        elif isinstance(parent.node.value, list):
            node = replace(node, path=_below(parent.node, str(len(parent.node.value))))
            parent.node.value.append(node)
        elif parent.key:
            key, key_place = parent.key
            node = replace(node, key_place=key_place, path=_below(parent.node, key))
            parent.node.mapping[key] = node
            parent.key = None
        return node


def _below(parent: YamlNode, key: str) -> str:
    """Cut: a long key would be repeated for all that is in it."""
    return cut(f"{parent.path}.{key}" if parent.path else key, _LONGEST_PATH)


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
