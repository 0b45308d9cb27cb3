"""What is known about a run before it begins: the network, the device, the costs, and how it was called."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hwbmpq.costs.table import CostTable, FigureUse
from hwbmpq.errors import HwbmpqError
from hwbmpq.values import Precision, TieGroup

SCHEMA = "hwbmpq/run-facts/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerFacts:
    name: str
    kind: str
    parameters: int
    macs: int
    is_end: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A place of the network's outline: a layer, a join, an input or an output."""

    name: str
    kind: str
    layer: str = ""
    """The layer that runs here, if one does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unquantized:
    """What stays in float, all places of one reason together."""

    reason: str
    why: str
    places: int
    parameters: int
    macs: int


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A network on a device under budgets, as plain values that a file keeps."""

    title: str
    """``timm:resnet18 at 3x224x224``."""
    target: str
    device: str
    layers: tuple[LayerFacts, ...]
    ties: tuple[TieGroup, ...]
    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]
    """Between nodes, by name."""
    unquantized: tuple[Unquantized, ...]
    parameters: int
    macs: int
    traced_by: str
    tables: Mapping[str, CostTable]
    limits: Mapping[str, float]
    """Budgets in the costs' own units."""
    sources: Mapping[str, str]
    """Where figures come from, by id."""
    caveats: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the run; empty for a plan."""
    command: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def figures(self) -> tuple[FigureUse, ...]:
        """Every figure that a cost rests on, once."""
        found = {(use.path, use.value): use for table in self.tables.values() for use in table.figures}
        return tuple(found.values())

    @property
    def choices(self) -> dict[str, tuple[Precision, ...]]:
        """Candidates by layer."""
        additive = next(table for table in self.tables.values() if table.is_additive)
        return {name: tuple(costs) for name, costs in additive.rows[0].costs.items()}

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in _PLAIN},
            **{name: [asdict(entry) for entry in getattr(self, name)] for name in _RECORDS},
            "edges": [list(edge) for edge in self.edges],
            "tables": {name: table.to_dict() for name, table in self.tables.items()},
            "limits": dict(self.limits),
            "sources": dict(self.sources),
            "caveats": list(self.caveats),
            "command": list(self.command),
            "settings": dict(self.settings),
            "versions": dict(self.versions),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "RunFacts":
        """What ``to_dict`` wrote; an error if it is something else."""
        try:
            if content["schema"] != SCHEMA:
                raise ValueError(f"schema {content['schema']!r}")
            plain: dict[str, Any] = {name: content[name] for name in _PLAIN}
            for name, kind in _RECORDS.items():
                plain[name] = tuple(kind(**_with_tuples(entry)) for entry in content[name])
            return cls(
                **plain,
                edges=tuple((start, end) for start, end in content["edges"]),
                tables={name: CostTable.from_dict(table) for name, table in content["tables"].items()},
                limits=dict(content["limits"]),
                sources=dict(content["sources"]),
                caveats=tuple(content["caveats"]),
                command=tuple(content["command"]),
                settings=dict(content["settings"]),
                versions=dict(content["versions"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HwbmpqError(f"these are no facts of a run: {type(error).__name__}: {error}") from None


_PLAIN = ("title", "target", "device", "parameters", "macs", "traced_by")
_RECORDS: Mapping[str, type[Any]] = {
    "layers": LayerFacts,
    "ties": TieGroup,
    "nodes": Node,
    "unquantized": Unquantized,
}


def _with_tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
