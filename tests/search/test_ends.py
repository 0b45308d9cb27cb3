"""The first and the last layer: at a width of their own, or free to be narrowed."""

from typing import Any

import pytest
import torch
from torch import nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.graph import LayerGraph, describe
from hwbmpq.hardware import load_profile
from hwbmpq.search import build_search_space
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.search.space import SearchSpace


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 40)
    )


@pytest.fixture
def graph() -> LayerGraph:
    return describe(network(), torch.zeros(1, 3, 8, 8))


def space_of(graph: LayerGraph, target: str = "mpic", **options: Any) -> SearchSpace:
    options = {"bits": (2, 4), "activation_bits": 8, **options}
    return build_search_space(graph, load_profile(target), {"weight_memory": "90%"}, **options)


def given(space: SearchSpace, name: str) -> list[str]:
    return [str(precision) for precision in space.choices[name]]


def test_they_have_one_width_unless_they_are_free(graph: LayerGraph) -> None:
    assert given(space_of(graph), "0") == given(space_of(graph), "5") == ["W8A8"]
    assert space_of(graph, ends="fixed").choices == space_of(graph).choices


def test_free_ends_choose_among_the_candidates_and_their_own_width(graph: LayerGraph) -> None:
    space = space_of(graph, ends="free")
    assert given(space, "0") == given(space, "5") == ["W2A8", "W4A8", "W8A8"]
    assert given(space, "2") == ["W2A8", "W4A8"]
    smallest = [s.costs.smallest_and_largest("weight_memory")[0] for s in (space, space_of(graph))]
    assert smallest[0] < 0.5 * smallest[1]


def test_each_weight_width_has_one_activation_width(graph: LayerGraph) -> None:
    space = space_of(graph, ends="free", activation_bits=4, bits=(2, 4, 8))
    assert given(space, "0") == ["W2A4", "W4A4", "W8A8"]


def test_another_word_is_an_error(graph: LayerGraph) -> None:
    with pytest.raises(HwbmpqError, match="'fixed' or 'free'"):
        space_of(graph, ends="Free")


def test_one_width_for_all_layers_is_that_of_free_ends_too() -> None:
    options = {"target": "mpic", "bits": (4,), "activation_bits": 8, "method": "hpq", "epochs": 2}
    allocators = [
        BitAllocator(network(), torch.zeros(1, 3, 8, 8), ends=ends, **options) for ends in ("fixed", "free")
    ]
    widths = [[str(width) for width in allocator.bits.values()] for allocator in allocators]
    assert widths == [["W8A8", "W4A8", "W8A8"], ["W4A8", "W4A8", "W4A8"]]


def test_a_pinned_end_stays(graph: LayerGraph) -> None:
    assert given(space_of(graph, ends="free", pin={"0": 4}), "0") == ["W4A8"]


def test_a_profile_that_gives_their_width_is_obeyed_and_named(graph: LayerGraph) -> None:
    space = space_of(graph, "raspberry_pi_4", ends="free", bits=None, activation_bits="auto")
    assert given(space, "0") == ["W8A8"]
    assert any("first and the last layer stay at int8" in remark for remark in space.remarks)


def test_a_run_narrows_an_end_that_hardly_matters() -> None:
    model = network()
    with torch.no_grad():
        model[5].weight.mul_(1e-3)
    allocator = BitAllocator(
        model,
        torch.zeros(1, 3, 8, 8),
        target="mpic",
        bits=(2, 4),
        activation_bits=8,
        budgets={"weight_memory": "50%"},
        ends="free",
        objective="error",
        epochs=3,
        warmup_epochs=1,
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        images, wanted = torch.randn(8, 3, 8, 8, generator=generator), torch.randn(8, 40, generator=generator)
        nn.functional.mse_loss(model(images), wanted).backward()
        allocator.step()
        model.zero_grad()
    decision = allocator.epoch_end()
    assert decision is not None
    assert allocator.bits["5"].weight_bits < 8
    assert decision.allocation.costs["weight_memory"] <= allocator.space.limits["weight_memory"]
