"""``HardwareProfile``: what one device supports and costs."""

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PrivateAttr

from hwbmpq.hardware.document import Place, YamlNode
from hwbmpq.hardware.lookup_table import LookupTable
from hwbmpq.hardware.schema import (
    Block,
    Clock,
    Compute,
    Constraints,
    CostChoice,
    EnergyFigures,
    Figure,
    LookupTableRef,
    MemoryLevel,
    Name,
    PairSpec,
    Power,
    Precisions,
    Quantity,
    QuantityName,
    Source,
    Text,
    WidthPair,
    common_compute,
)
from hwbmpq.units import Dimension

SCHEMA_ID = "hwbmpq/profile/v1"


class HardwareProfile(Block):
    """What one device supports and what it costs."""

    schema_id: Literal["hwbmpq/profile/v1"] = Field(alias="schema")
    name: Name
    """The file's name without .yaml."""
    title: Text
    device_class: Literal["gpu", "cpu", "mcu", "npu", "fpga", "abstract"] = Field(alias="class")
    extends: Name | None = None
    """A profile to take everything from that is not said here."""
    abstract: bool = False
    """Only to be extended, not a device."""
    caveats: tuple[Text, ...] = ()
    """What a user must know before trusting a result."""
    sources: dict[Name, Source] = Field(default_factory=dict)
    precisions: Precisions = Precisions()
    clock: Clock = Clock()
    compute: Compute = Compute()
    memory: tuple[MemoryLevel, ...] = ()
    energy: EnergyFigures = EnergyFigures()
    power: Power = Power()
    lookup_tables: tuple[LookupTableRef, ...] = ()
    constraints: Constraints = Constraints()
    budgets: dict[Name, Text | Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    """Default budgets by cost: {flash: 1 MiB, latency: 8 ms}."""
    cost_models: dict[QuantityName, CostChoice] = Field(default_factory=dict)
    """Which model answers for latency, energy, memory."""
    modes: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """Named overrides with dotted keys: {5w: {clock.core: 614.4 MHz}}."""

    _mode: str = PrivateAttr("")
    _files: tuple[str, ...] = PrivateAttr(())
    _tables: dict[str, LookupTable] = PrivateAttr(default_factory=dict)
    _root: YamlNode | None = PrivateAttr(None)

    def attach(
        self, *, mode: str, files: tuple[str, ...], tables: dict[str, LookupTable], root: YamlNode
    ) -> None:
        """Where it was read from. For the loader: called once, before anybody sees the profile."""
        self._mode, self._files, self._tables, self._root = mode, files, tables, root

    def place(self, *path: str) -> Place:
        """Where a field stands in its file."""
        if self._root is None:
            return Place(file=self.name)
        node = self._root.find(*path)
        return node.key_place or node.place

    @property
    def mode(self) -> str:
        """The mode that was chosen, or ``""``."""
        return self._mode

    @property
    def target(self) -> str:
        """What ``--target`` takes to get this profile: ``jetson_nano@5w``."""
        return f"{self.name}@{self._mode}" if self._mode else self.name

    @property
    def files(self) -> tuple[str, ...]:
        """The files it was read from, the base first."""
        return self._files

    @property
    def tables(self) -> dict[str, LookupTable]:
        """The lookup tables by id."""
        return dict(self._tables)

    @cached_property
    def pairs(self) -> tuple[WidthPair, ...]:
        """The supported (weight, activation) pairs, in the order of the file."""
        pairs = self.precisions.pairs
        if pairs is None:
            pairs = tuple(
                PairSpec(w=weight, a=activation)
                for weight in self.precisions.weights
                for activation in self.precisions.activations
            )
        return tuple(
            WidthPair(
                weight=pair.w,
                activation=pair.a,
                compute=pair.compute.name if pair.compute else common_compute(pair.w, pair.a),
                kernel=pair.kernel,
                ops=() if "*" in pair.ops else pair.ops,
            )
            for pair in pairs
        )

    def pairs_for(self, op: str) -> list[WidthPair]:
        """The pairs that an operation has."""
        return [pair for pair in self.pairs if not pair.ops or op in pair.ops]

    def figures(self) -> Iterator[tuple[str, Figure, Dimension]]:
        """Every figure with its dotted path and dimension."""
        yield from _figures("", self)


def _figures(path: str, block: BaseModel) -> Iterator[tuple[str, Figure, Dimension]]:
    for name, info in type(block).model_fields.items():
        value = getattr(block, name)
        here = f"{path}.{name}" if path else name
        for mark in info.metadata:
            if isinstance(mark, Quantity) and value is not None:
                yield here, value, mark.dimension
        if isinstance(value, Figure):
            continue
        if isinstance(value, BaseModel):
            yield from _figures(here, value)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for index, item in enumerate(value):
                yield from _figures(f"{here}.{getattr(item, 'name', index)}", item)
