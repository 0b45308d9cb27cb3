"""Predictions beside whole networks."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hwbmpq
from hwbmpq.errors import HwbmpqError
from hwbmpq.graph import LayerGraph
from hwbmpq.hardware import HardwareProfile
from hwbmpq.measure import (
    Measurement,
    deployed_graph,
    kit_runner,
    measurement_record,
    validate,
    write_profile,
)
from hwbmpq.measure.operation_graphs import reference_graph
from hwbmpq.measure.results import parse_results
from hwbmpq.measure.validation import Candidate, Comparison, Validation, candidate
from hwbmpq.values import Precision

Sign = Callable[[Mapping[str, Any]], dict[str, Any]]
W8A8, W32A32 = Precision.parse("W8A8"), Precision.parse("W32A32")


@pytest.fixture
def profile(made_up: dict[str, Any], tmp_path: Path) -> HardwareProfile:
    return write_profile(Measurement.of(parse_results(made_up, "made up")), "acme", folder=tmp_path)


@pytest.fixture
def graph(tiny_cnn: nn.Module) -> LayerGraph:
    return hwbmpq.describe(tiny_cnn.eval(), torch.randn(1, 3, 8, 8))


def test_a_candidate_has_every_layer_at_its_width_and_the_ends_at_theirs(
    graph: LayerGraph, profile: HardwareProfile
) -> None:
    seen: dict[str, Precision] = {}

    def exported(widths: Mapping[str, Precision]) -> bytes:
        seen.update(widths)
        return b"graph"

    one = candidate(graph, profile, W8A8, model="tiny", exported=exported)
    assert [str(width) for width in seen.values()] == ["W16A16", "W8A8", "W8A8", "W16A16"]
    assert (one.graph, one.layers, one.measured_layers, one.widths) == (b"graph", 4, 0, "W8A8")
    assert one.predicted_ms > 0.020  # the call alone
    candidate(graph, profile, W32A32, model="tiny", exported=exported)
    assert {str(width) for width in seen.values()} == {"W32A32"}


def test_the_reference_itself_takes_what_it_took(profile: HardwareProfile) -> None:
    """A network that is the reference kernel: at the clock of the measurement it takes the 500 us that were written down."""
    one = Candidate(
        model="reference",
        widths="W32A32",
        predicted_ms=0.5,
        layers=1,
        measured_layers=1,
        graph=reference_graph(),
    )
    found = validate([one], profile, rounds=15)
    assert found.comparisons[0].measured_ms == pytest.approx(0.5, rel=0.35)
    assert found.comparisons[0].clocked_ms > 0
    assert "this is" in found.remarks[0]  # the made-up device is another one


def test_a_slower_clock_than_the_profiles_is_made_up_for(
    profile: HardwareProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference takes 250 us here and took 500 us there: what takes 1 ms here would have taken 2 ms."""
    monkeypatch.setattr(kit_runner.Reference, "microseconds", lambda self: 250.0)
    monkeypatch.setattr(kit_runner, "wall_microseconds", lambda session, feed: 1000.0)
    one = Candidate(
        model="any", widths="W32A32", predicted_ms=2.0, layers=1, measured_layers=1, graph=reference_graph()
    )
    (found,) = validate([one], profile, rounds=3).comparisons
    assert (found.measured_ms, found.clocked_ms) == pytest.approx((2.0, 1.0))
    assert found.ratio == pytest.approx(1.0)


def test_ratios_and_their_mean_error_are_what_they_say() -> None:
    one = Comparison(
        model="a",
        widths="W8A8",
        predicted_ms=2.0,
        measured_ms=2.5,
        clocked_ms=2.4,
        spread=0.1,
        layers=3,
        measured_layers=1,
    )
    both = Validation(comparisons=(one, replace(one, predicted_ms=3.0)), remarks=())
    assert [item.ratio for item in both.comparisons] == pytest.approx([0.8, 1.2])
    assert both.mean_absolute_error == pytest.approx(0.2)
    assert both.to_dict()["comparisons"][0]["ratio"] == pytest.approx(0.8)


def test_a_profile_that_nobody_measured_is_refused() -> None:
    with pytest.raises(HwbmpqError, match="'mpic' was not written by") as caught:
        measurement_record(hwbmpq.load_profile("mpic"))
    assert "hwbmpq targets measure" in caught.value.hint


def test_what_is_deployed_computes_in_integers_and_leaves_the_network_alone(
    tiny_cnn: nn.Module, graph: LayerGraph, profile: HardwareProfile
) -> None:
    before = copy.deepcopy(tiny_cnn.state_dict())
    content = deployed_graph(tiny_cnn, graph, {layer.name: W8A8 for layer in graph}, torch.randn(1, 3, 8, 8))
    assert b"QuantizeLinear" in content
    assert all(torch.equal(tensor, before[name]) for name, tensor in tiny_cnn.state_dict().items())
    one = candidate(graph, profile, W8A8, model="tiny", exported=lambda widths: content)
    assert validate([one], profile, rounds=3).comparisons[0].measured_ms > 0
