"""What is known about a run before it begins: the network, the device, the costs, and how it was called."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hwbmpq.costs.table import CostTable, FigureUse, Number
from hwbmpq.errors import HwbmpqError
from hwbmpq.values import Layer, Precision, TieGroup, Unquantized

SCHEMA = "hwbmpq/run-facts/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerFacts:
    name: str
    kind: str
    parameters: int
    macs: int
    is_end: bool

    @classmethod
    def of(cls, layer: Layer) -> "LayerFacts":
        return cls(**{name: getattr(layer, name) for name in cls.__slots__})


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A place of the network's outline: a layer, a join, an input or an output."""

    name: str
    kind: str
    layer: str = ""
    """The layer that runs here, if one does."""


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
    limits: Mapping[str, Number]
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
    def doubtful_figures(self) -> tuple[FigureUse, ...]:
        return tuple(use for use in self.figures if use.is_doubtful)

    @property
    def covered_share(self) -> float:
        """Share of the parameters that are weights of the layers."""
        covered = sum(layer.parameters for layer in self.layers)
        return covered / self.parameters if self.parameters else 1.0

    @property
    def choices(self) -> dict[str, tuple[Precision, ...]]:
        """Candidates by layer."""
        additive = next(table for table in self.tables.values() if table.is_additive)
        return {name: tuple(costs) for name, costs in additive.rows[0].costs.items()}

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **_ADAPTER.dump_python(self, mode="json")}

    @classmethod
    def from_dict(cls, content: Any) -> "RunFacts":
        """What ``to_dict`` wrote; an error if it is something else."""
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema != SCHEMA:
            raise HwbmpqError(f"these are not the facts of a run: schema {schema!r}")
        try:
            return _ADAPTER.validate_python(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise HwbmpqError(f"these are not the facts of a run: {place}: {first['msg']}") from None


_ADAPTER = TypeAdapter(RunFacts)
