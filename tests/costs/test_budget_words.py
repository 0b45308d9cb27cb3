"""Bits per weight as a budget, and other words for costs."""

import pytest
from torch import Tensor, nn

from hwbmpq.costs import BudgetError, parse_budget, tabulate
from hwbmpq.errors import UnknownNameError
from hwbmpq.graph import describe
from hwbmpq.hardware import load_profile
from hwbmpq.search.space import build_search_space


@pytest.mark.parametrize("text", ["4b/weight", "4 bits / weight", "4b/w", "4 bit/parameter", "4B/Weight"])
@pytest.mark.parametrize("cost", ["memory", "weight_memory", "flash"])
def test_bits_per_weight(cost: str, text: str) -> None:
    assert parse_budget(cost, text).bits_per_weight == 4.0


def test_bits_per_weight_of_a_network(tiny_cnn: nn.Module, images: Tensor) -> None:
    """All layers at three bits are exactly three bits per weight: no rounding may forbid them."""
    graph, profile = describe(tiny_cnn, images[:1]), load_profile("generic")
    costs = tabulate(graph, profile, costs="weight_memory", bits=[3])
    weights = sum(layer.parameters for layer in graph)
    assert costs.limit(parse_budget("weight_memory", "3b/weight")) == 3 * weights
    space = build_search_space(graph, profile, {"weight_memory": "4.5b/weight"}, bits=[2, 4])
    assert space.limits == {"weight_memory": 4.5 * weights}


def test_bits_per_weight_leave_room_for_what_is_stored_beside_weights(
    tiny_cnn: nn.Module, images: Tensor
) -> None:
    graph, profile = describe(tiny_cnn, images[:1]), load_profile("generic")
    costs = tabulate(graph, profile, costs="memory", bits=[4, 8])
    weights = sum(layer.parameters for layer in graph)
    beside = 32 * len(graph) + sum(state.bits for state in graph.stored)  # one scale for each layer
    assert costs.limit(parse_budget("memory", "5b/weight")) == 5 * weights + beside


@pytest.mark.parametrize("cost", ["ram", "latency", "energy", "bops"])
def test_bits_per_weight_of_something_else(cost: str) -> None:
    with pytest.raises(BudgetError, match="bits per weight are for memory"):
        parse_budget(cost, "4b/weight")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("size", "memory"),
        ("model_size", "memory"),
        ("model-size", "memory"),
        ("params", "memory"),
        ("Memory", "memory"),
        ("rom", "flash"),
        ("sram", "ram"),
        ("time", "latency"),
        ("Latency", "latency"),
        ("power", "energy"),
        ("macs", "bops"),
    ],
)
def test_other_words_for_a_cost(said: str, meant: str) -> None:
    with pytest.raises(UnknownNameError, match=f"no cost named '{said}': did you mean {meant}\\?") as caught:
        parse_budget(said, "4KiB")
    assert caught.value.hint == f"{meant}=4KiB"


def test_a_budget_on_bits() -> None:
    with pytest.raises(UnknownNameError, match="did you mean memory") as caught:
        parse_budget("bits", "4")
    assert caught.value.hint.startswith("memory=4b/weight ")
    assert parse_budget("memory", "4b/weight").bits_per_weight == 4


def test_a_name_that_is_not_close_to_any() -> None:
    with pytest.raises(UnknownNameError, match="known: activation_memory"):
        parse_budget("beauty", "4")
