"""Random allocation problems, from the easy to the nasty."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

WIDTHS = (2, 3, 4, 8)


@dataclass(kw_only=True)
class Instance:
    """The arguments of ``solve``."""

    values: dict[str, dict[int, float]]
    costs: dict[str, Any]
    budgets: dict[str, float]
    ties: list[list[str]] = field(default_factory=list)

    def arguments(self) -> dict[str, Any]:
        return {"values": self.values, "costs": self.costs, "budgets": self.budgets, "ties": self.ties}


def make_instance(seed: int) -> Instance:
    """Up to 8 layers × 4 widths, 1 to 3 budgets; overall scale 1e-12 to 1e3, six decades within; ties, zeros, equal
    values; whole and fractional costs, rows; budgets often exactly at an allocation's cost."""
    rng = random.Random(seed)
    layers = [f"l{i}" for i in range(rng.randint(1, 8))]
    widths = WIDTHS[: rng.randint(2, 4)]
    scale = 10.0 ** rng.uniform(-12, 3)
    flat = rng.random() < 0.2
    values = {layer: _values(rng, widths, scale, flat=flat) for layer in layers}
    costs: dict[str, Any] = {}
    for name in ("memory", "latency", "ram")[: rng.randint(1, 3)]:
        is_whole = name == "memory" or rng.random() < 0.3
        tables = [_costs(rng, layers, widths, is_whole) for _ in range(2 if name == "ram" else 1)]
        costs[name] = tables if name == "ram" else tables[0]
    ties = [rng.sample(layers, 2)] if len(layers) > 2 and rng.random() < 0.4 else []
    budgets = {name: _budget(rng, cost, values, ties) for name, cost in costs.items()}
    return Instance(values=values, costs=costs, budgets=budgets, ties=ties)


def _values(rng: random.Random, widths: tuple[int, ...], scale: float, *, flat: bool) -> dict[int, float]:
    if rng.random() < 0.15:
        return dict.fromkeys(widths, 0.0)
    sensitivity = scale if flat else scale * 10.0 ** rng.uniform(-6, 0)
    if rng.random() < 0.5:
        return {width: sensitivity * index for index, width in enumerate(widths)}
    return {width: sensitivity * rng.random() for width in widths}


def _costs(
    rng: random.Random, layers: list[str], widths: tuple[int, ...], is_whole: bool
) -> dict[str, dict[int, float]]:
    table = {}
    for layer in layers:
        size = 10.0 ** rng.uniform(0, 5)
        table[layer] = {width: round(size * width) if is_whole else size * width**0.7 for width in widths}
    return table


def _budget(
    rng: random.Random, cost: Any, values: dict[str, dict[int, float]], ties: list[list[str]]
) -> float:
    """What some allocation costs exactly, or something in between."""
    tables = cost if isinstance(cost, list) else [cost]
    picks = {layer: rng.choice(list(choices)) for layer, choices in values.items()}
    for tie in ties:
        picks |= dict.fromkeys(tie, picks[tie[0]])
    total = max(sum(table[layer][picks[layer]] for layer in values) for table in tables)
    return total if rng.random() < 0.6 else total * rng.uniform(0.7, 1.3)


@pytest.fixture
def instance() -> Callable[[int], Instance]:
    return make_instance
