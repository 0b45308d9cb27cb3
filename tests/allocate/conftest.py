"""Random allocation problems, from the easy to the nasty, and slow ways to solve them."""

import itertools
import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pyomo.common.fileutils import Executable

WIDTHS = (2, 3, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One of all allocations, with its exact costs."""

    bits: dict[str, int]
    objective: float
    costs: dict[str, Fraction]

    def fits(self, budgets: Mapping[str, float]) -> bool:
        return all(
            self.costs[name] <= Fraction(budget) for name, budget in budgets.items() if budget < math.inf
        )


@dataclass(kw_only=True)
class Instance:
    """The arguments of ``solve``."""

    values: dict[str, dict[int, float]]
    costs: dict[str, Any]
    budgets: dict[str, float]
    ties: list[list[str]] = field(default_factory=list)

    def arguments(self) -> dict[str, Any]:
        return {"values": self.values, "costs": self.costs, "budgets": self.budgets, "ties": self.ties}

    def exact_cost(self, name: str, bits: Mapping[str, int]) -> Fraction:
        tables = self.costs[name] if isinstance(self.costs[name], list) else [self.costs[name]]
        return max(
            sum((Fraction(numbers[bits[layer]]) for layer, numbers in table.items()), Fraction(0))
            for table in tables
        )

    def overshot(self, bits: Mapping[str, int]) -> list[str]:
        """Costs that are above their budget, in exact arithmetic."""
        return [
            name
            for name, budget in self.budgets.items()
            if budget < math.inf and self.exact_cost(name, bits) > Fraction(budget)
        ]

    def broken_ties(self, bits: Mapping[str, int]) -> list[list[str]]:
        return [tie for tie in self.ties if len({bits[layer] for layer in tie}) > 1]

    def points(self) -> Iterator[Point]:
        """Every allocation there is."""
        layers = list(self.values)
        for choices in itertools.product(*self.values.values()):
            bits = dict(zip(layers, choices, strict=True))
            if not self.broken_ties(bits):
                objective = math.fsum(self.values[layer][bits[layer]] for layer in layers)
                costs = {name: self.exact_cost(name, bits) for name in self.costs}
                yield Point(bits=bits, objective=objective, costs=costs)


def make_instance(seed: int, most_layers: int = 8) -> Instance:
    """Up to 8 layers × 4 widths, 1 to 3 budgets; overall scale 1e-12 to 1e3, six decades within; ties, zeros, equal
    values; whole and fractional costs, rows; budgets often exactly at an allocation's cost."""
    rng = random.Random(seed)
    layers = [f"l{i}" for i in range(rng.randint(1, most_layers))]
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


def make_conflict(seed: int, costs: int = 2) -> Instance:
    """Costs that pull in different directions: each width is cheap in one and dear in another. Whole numbers."""
    rng = random.Random(seed)
    layers, widths = [f"l{i}" for i in range(rng.randint(2, 4))], WIDTHS[: rng.randint(2, 4)]
    names = ("memory", "latency", "energy", "ram")[:costs]
    tables = {n: {layer: {w: rng.randint(1, 1000) for w in widths} for layer in layers} for n in names}
    values = {layer: {width: rng.randint(0, 50) for width in widths} for layer in layers}
    budgets = {
        name: sum(rng.choice(list(numbers.values())) for numbers in table.values()) * rng.uniform(0.4, 0.9)
        for name, table in tables.items()
    }
    return Instance(values=values, costs=tables, budgets={n: round(b) for n, b in budgets.items()})


def make_network(layers: int, widths: int, budgets: int, seed: int, most: int = 10**6) -> Instance:
    """Log-normal sizes and sensitivities, the paper's linear values, whole costs that grow with the width."""
    rng = random.Random(seed)
    names, choices = [f"l{i}" for i in range(layers)], range(2, 2 + widths)
    sensitivity = {name: 1e-4 * math.exp(rng.gauss(0, 2)) for name in names}
    values = {name: {w: sensitivity[name] * (w - 2) for w in choices} for name in names}
    costs = {}
    for cost in range(budgets):
        sizes = {name: min(most / 12, 1 + math.exp(rng.gauss(0, 1.2)) * most / 1000) for name in names}
        costs[f"cost{cost}"] = {n: {w: round(sizes[n] * w ** (1 + cost / 4)) for w in choices} for n in names}
    limits = {}
    for name, table in costs.items():
        low, high = (sum(of(numbers.values()) for numbers in table.values()) for of in (min, max))
        limits[name] = low + round(0.4 * (high - low))
    return Instance(values=values, costs=costs, budgets=limits)


@pytest.fixture
def instance() -> Callable[..., Instance]:
    return make_instance


@pytest.fixture
def conflict() -> Callable[..., Instance]:
    return make_conflict


@pytest.fixture
def network() -> Callable[..., Instance]:
    return make_network


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the PATH. Pyomo remembers where it found a program: make it look again, then and afterwards."""

    def change(value: str) -> None:
        monkeypatch.setenv("PATH", value)
        Executable("glpsol").rehash()

    yield change
    monkeypatch.undo()
    Executable("glpsol").rehash()


@pytest.fixture
def without_glpsol(path: Callable[[str], None], tmp_path: Path) -> None:
    path(str(tmp_path))


@pytest.fixture
def put_on_path(path: Callable[[str], None], tmp_path: Path) -> Callable[[str], Path]:
    """Replace glpsol by a shell script."""

    def put(script: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "glpsol"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        path(f"{folder}:/usr/bin:/bin")
        return program

    return put


@pytest.fixture(params=["highs", "glpsol", "swiglpk"])
def solver(request: pytest.FixtureRequest) -> str:
    """The name of each solver; GLPK as a program and as a library."""
    if request.param == "highs":
        return "highs"
    if request.param == "swiglpk":
        request.getfixturevalue("without_glpsol")
    elif not shutil.which("glpsol"):
        pytest.skip("glpsol is not installed")
    return "glpk"


@pytest.fixture
def best_point() -> Callable[[Sequence[Point]], Point]:
    """The point with the largest objective."""
    return lambda points: max(points, key=lambda point: point.objective)
