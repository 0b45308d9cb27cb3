"""Describing, costing and planning take time in proportion to the layers: a quadratic step fails here.

Growing the network fourfold may take eight times as long, half way between four and sixteen; benchmarks/scale.py has
the slopes up to 2,000 layers.
"""

import gc
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

import hwbmpq
from hwbmpq import pipeline
from hwbmpq.allocate.problem import build_problem
from hwbmpq.allocate.tableau import build_tableau
from hwbmpq.costs import tabulate
from hwbmpq.graph import LayerGraph
from hwbmpq.values import Sensitivity

SMALL, LARGE = 100, 400
MOST = 8.0


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv2(torch.relu(self.conv1(x)))) + x)


def residual(layers: int) -> tuple[nn.Module, torch.Tensor]:
    with torch.device("meta"):
        blocks = [Block(16) for _ in range((layers - 2) // 2)]
        network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(16 * 64, 10))
        return network, torch.empty(1, 3, 8, 8)


@pytest.fixture(scope="module")
def graphs() -> dict[int, LayerGraph]:
    return {layers: hwbmpq.describe(*residual(layers)) for layers in (SMALL, LARGE)}


def ratio(run: Callable[[int], object]) -> float:
    """Processor time for the large network over that for the small one, each the best of five, in turn.

    Not the time on the wall, which other processes share; without the garbage collector, which looks at all that earlier
    tests have left, at its own times.
    """

    def seconds(layers: int) -> float:
        start = time.process_time()
        run(layers)
        return time.process_time() - start

    gc.disable()
    try:
        pairs = [(seconds(LARGE), seconds(SMALL)) for _ in range(5)]
    finally:
        gc.enable()
    return min(large for large, _ in pairs) / min(small for _, small in pairs)


def scores(graph: LayerGraph) -> Sensitivity:
    return Sensitivity(method="given", scores={layer.name: 1 + i * 7 % 13 for i, layer in enumerate(graph)})


def test_describing_is_linear() -> None:
    networks = {layers: residual(layers) for layers in (SMALL, LARGE)}
    assert ratio(lambda layers: hwbmpq.describe(*networks[layers])) < MOST


def test_cost_tables_are_linear(graphs: dict[int, LayerGraph]) -> None:
    profile = hwbmpq.load_profile("generic")
    assert ratio(lambda layers: tabulate(graphs[layers], profile)) < MOST


def test_the_question_and_the_report_are_linear(graphs: dict[int, LayerGraph]) -> None:
    profile = hwbmpq.load_profile("generic")
    spaces = {
        n: pipeline.build_search_space(graph, profile, {"memory": "10x"}) for n, graph in graphs.items()
    }
    found = {
        n: pipeline.plan(space, scores(space.graph), with_explanation=False) for n, space in spaces.items()
    }
    assert ratio(lambda n: pipeline.build_search_space(graphs[n], profile, {"memory": "10x"})) < MOST
    assert (
        ratio(lambda n: pipeline.report_on(spaces[n], scores(graphs[n]), found[n].allocation).to_dict())
        < MOST
    )


def test_a_row_of_a_schedule_costs_what_its_layers_cost(graphs: dict[int, LayerGraph]) -> None:
    """As many rows as layers, each with few of them: looking at every layer for every row would be quadratic."""
    rows = {layers: [{layer.name: {2: 2, 4: 4}} for layer in graph] * 2 for layers, graph in graphs.items()}
    problems = {
        layers: build_problem(
            {layer.name: {2: 0, 4: 1} for layer in graphs[layers]}, {"ram": tables}, {"ram": 3}
        )
        for layers, tables in rows.items()
    }
    assert ratio(lambda layers: build_tableau(problems[layers])) < MOST
