"""Layers whose width is given by patterns."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.errors import HwbmpqError, UnknownNameError, UnsupportedPrecisionError
from hwbmpq.graph import LayerGraph, describe
from hwbmpq.hardware import load_profile
from hwbmpq.quant import quantized_layers
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.search.space import SearchSpace, build_search_space
from hwbmpq.values import Precision, Sensitivity

EXAMPLE = torch.zeros(1, 3, 8, 8)


class Residual(nn.Module):
    """A stem, two convolutions beside a shortcut that is tied, two layers of a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.before = nn.Conv2d(4, 4, 3, padding=1)
        self.first = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.shortcut = nn.Conv2d(4, 6, 1, stride=2)
        self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.before(F.relu(self.stem(x))))
        x = F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))
        return self.head(x.mean((2, 3)))


@pytest.fixture
def graph() -> LayerGraph:
    return describe(Residual(), EXAMPLE)


def space_of(graph: LayerGraph, target: str = "generic", **options: Any) -> SearchSpace:
    return build_search_space(graph, load_profile(target), {"memory": "95%"}, bits=(2, 4), **options)


def given(space: SearchSpace, name: str) -> list[str]:
    return [str(precision) for precision in space.choices[name]]


def test_a_pinned_layer_has_one_candidate(graph: LayerGraph) -> None:
    space = space_of(graph, pin={"head.*": 8}, activation_bits=8)
    assert given(space, "head.0") == ["W8A8"]
    assert given(space, "head.2") == ["W8A8"]  # an end, which has W16A16 otherwise
    assert given(space, "second") == ["W2A8", "W4A8"]
    assert "pinned: head.0 W8A8, head.2 W8A8" in space.remarks


def test_a_pin_can_be_a_pair(graph: LayerGraph) -> None:
    assert given(space_of(graph, pin={"sec*": "W4A8"}), "second") == ["W4A8"]


def test_widths_to_choose_from_are_those_of_the_other_layers(graph: LayerGraph) -> None:
    assert space_of(graph, pin={"second": 8}, keep_float=["head.0"]).costs.widths == (2, 4)


def test_a_layer_kept_in_float_counts_with_32_bits(graph: LayerGraph) -> None:
    space = space_of(graph, keep_float=["second"])
    assert given(space, "second") == ["W32A32"]
    (precision,) = space.choices["second"]
    weights = graph["second"].parameters
    assert (
        space.costs.table("weight_memory" if "weight_memory" in space.costs.tables else "memory")["second"][
            precision
        ]
        >= 32 * weights
    )
    assert "kept in float: second" in space.remarks


def test_tied_layers_follow(graph: LayerGraph) -> None:
    assert any(set(tie.layers) == {"before", "shortcut"} for tie in graph.ties)
    space = space_of(graph, pin={"before": 8})
    assert given(space, "shortcut") == given(space, "before")
    assert given(space, "before")[0].startswith("W8")
    assert given(space_of(graph, keep_float=["shortcut"]), "before") == ["W32A32"]


def test_layers_that_only_follow_are_told_apart(graph: LayerGraph) -> None:
    space = space_of(graph, pin={"before": 8}, activation_bits=8)
    assert "pinned: before W8A8, shortcut W8A8 (tied to before)" in space.remarks
    kept = space_of(graph, keep_float=["short*", "second"])
    assert "kept in float: shortcut, second, before (tied to shortcut)" in kept.remarks
    both = space_of(graph, keep_float=["shortcut", "before"])
    assert "kept in float: shortcut, before" in both.remarks


@pytest.mark.parametrize(
    "options",
    [
        {"pin": {"before": 8, "shortcut": 4}},
        {"pin": {"before": 8}, "keep_float": ["shortcut"]},
        {"pin": {"sec*": 8, "*ond": 4}},
    ],
    ids=["tied", "tied-float", "same-layer"],
)
def test_contradictions_are_errors(graph: LayerGraph, options: dict[str, Any]) -> None:
    with pytest.raises(HwbmpqError, match=r"gets two widths, by '.*' and by '"):
        space_of(graph, **options)


def test_a_pattern_that_matches_nothing_names_layers_that_are_near(graph: LayerGraph) -> None:
    with pytest.raises(UnknownNameError, match="no layer named 'secnd': did you mean second"):
        space_of(graph, pin={"secnd": 8})
    with pytest.raises(UnknownNameError, match="no layer named 'gate'"):
        space_of(graph, keep_float=["gate"])


@pytest.mark.parametrize("width", ["wide", "8 bits", 1, 17, "W4", "W4A99", ""])
def test_what_is_not_a_width(graph: LayerGraph, width: int | str) -> None:
    if width == "W4":
        assert given(space_of(graph, pin={"second": width}), "second")[0].startswith("W4")
        return
    with pytest.raises(HwbmpqError, match="neither a weight width nor a pair"):
        space_of(graph, pin={"second": width})


def test_a_width_that_the_device_does_not_run_is_an_error_unless_it_is_promoted(graph: LayerGraph) -> None:
    with pytest.raises(UnsupportedPrecisionError, match="pin second=16: layer 'second': profile 'mpic'"):
        space_of(graph, "mpic", pin={"second": 16})
    with pytest.raises(UnsupportedPrecisionError, match=r"pin second=W4A16: layer 'second'"):
        space_of(graph, "mpic", pin={"second": "W4A16"})


def test_the_allocator_trains_pinned_layers_at_their_width() -> None:
    model = Residual()
    allocator = BitAllocator(
        model,
        EXAMPLE,
        target="generic",
        epochs=4,
        bits=(2, 4),
        budgets={"memory": "95%"},
        pin={"second": 8},
        keep_float=("head.0",),
    )
    assert allocator.bits["second"].weight_bits == 8
    scores = dict.fromkeys(allocator.bits, 1.0)
    allocator.decide(Sensitivity(method="enbg", scores=scores))
    layers = dict(quantized_layers(model))
    assert layers["second"].weight_bits == 8
    assert layers["head.0"].precision == Precision(weight_bits=32, activation_bits=32)


def test_a_profile_can_pin_layers_of_networks_that_have_them(graph: LayerGraph, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "schema: hwbmpq/profile/v1\nname: mine\ntitle: mine\nclass: mcu\nextends: generic\n"
        "constraints:\n  pin: {'second': 8, 'not_here.*': 4}\n  keep_float: ['head.0', 'nor_here']\n"
    )
    space = space_of(graph, str(path))
    assert given(space, "second")[0].startswith("W8")
    assert given(space, "head.0") == ["W32A32"]
    mine = space_of(graph, str(path), pin={"head.0": 4})
    assert given(mine, "head.0")[0].startswith("W4")  # what is asked for wins
