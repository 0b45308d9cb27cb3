"""``LayerGraph``: a network's weighted layers, how they are connected, and what stays in float."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import networkx as nx

from hwbmpq.graph.schedule import find_schedule
from hwbmpq.values import UNCOVERED_REASONS, Layer, Schedule, TieGroup, Uncovered, Unquantized


@dataclass(frozen=True, kw_only=True)
class LayerGraph:
    """What hwbmpq knows about a network. Iterating yields its layers in execution order."""

    layers: tuple[Layer, ...]
    ties: tuple[TieGroup, ...]
    uncovered: tuple[Uncovered, ...]
    operations: nx.DiGraph
    """Every operation in execution order; attributes ``kind``, ``shape``, ``layer`` (a name or "") and
    ``is_output``."""
    traced_by: str
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __contains__(self, layer: object) -> bool:
        return layer in self.layers

    def __getitem__(self, name: str) -> Layer:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"no layer named {name!r}")

    @cached_property
    def schedule(self) -> Schedule:
        """Which activations are in memory at each step of the forward pass."""
        return find_schedule(self.operations)

    @property
    def uncovered_by_reason(self) -> tuple[Unquantized, ...]:
        """What stays in float, summed up for each reason."""
        by_reason: dict[str, list[Uncovered]] = {}
        for entry in self.uncovered:
            by_reason.setdefault(entry.reason, []).append(entry)
        return tuple(
            Unquantized(
                reason=reason,
                why=UNCOVERED_REASONS.get(reason, ""),
                places=len(entries),
                parameters=sum(entry.parameters for entry in entries),
                macs=sum(entry.macs for entry in entries),
            )
            for reason, entries in by_reason.items()
        )

    @property
    def weights(self) -> int:
        """Weights of all layers, biases apart."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def parameters(self) -> int:
        """All parameters of the network."""
        return self.weights + sum(entry.parameters for entry in self.uncovered)

    @property
    def layer_macs(self) -> int:
        return sum(layer.macs for layer in self.layers)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the layers and of what is left in float."""
        return self.layer_macs + sum(entry.macs for entry in self.uncovered)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the operations, ready for JSON."""
        return {
            "traced_by": self.traced_by,
            "notes": list(self.notes),
            "totals": {
                "layers": len(self),
                "weights": self.weights,
                "parameters": self.parameters,
                "layer_macs": self.layer_macs,
                "macs": self.macs,
            },
            "layers": [asdict(layer) for layer in self.layers],
            "ties": [asdict(group) for group in self.ties],
            "uncovered": [asdict(entry) for entry in self.uncovered],
        }
