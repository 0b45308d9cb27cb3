"""Budgets cover the whole network: what is stored in float, what is computed outside of layers, what has no figure."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq import pipeline
from hwbmpq.allocate import InfeasibleBudget
from hwbmpq.errors import HwbmpqWarning
from hwbmpq.export import save_packed
from hwbmpq.quant import assign, prepare
from hwbmpq.report import Plan
from hwbmpq.search import BitAllocator, SearchSpace
from hwbmpq.values import Sensitivity


class Speech(nn.Module):
    """88 % of its parameters and 98 % of its MACs are a GRU's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(10, 32), nn.Linear(64, 12)
        self.gru = nn.GRU(32, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.gru(torch.relu(self.first(x)))[0][:, -1])
        return found


SOUND = torch.zeros(1, 49, 10)


def space_for(target: str = "stm32h743", **budgets: str) -> SearchSpace:
    graph = hwbmpq.describe(Speech(), SOUND)
    return pipeline.build_search_space(graph, hwbmpq.load_profile(target), budgets)


def plan_of(space: SearchSpace) -> Plan:
    scores = dict.fromkeys(space.choices, 1.0)
    return pipeline.plan(space, Sensitivity(method="file", scores=scores), with_explanation=False)


def test_a_budget_below_what_stays_in_float_is_not_met() -> None:
    """18,432 weights of the GRU do not fit in 4 KiB, not even at 2 bits."""
    with pytest.raises(InfeasibleBudget, match="flash"):
        plan_of(space_for(flash="4KiB"))


def test_a_budget_that_is_met_is_met_by_the_file(tmp_path: Path) -> None:
    network = Speech()
    plan = plan_of(space_for(flash="90KiB"))
    graph = hwbmpq.describe(network, SOUND)
    assign(prepare(network, graph), plan.allocation.bits)
    account = save_packed(network, tmp_path / "packed", example_input=SOUND)
    assert plan.costs["flash"].holds is True
    assert plan.costs["flash"].total == 8 * (account.on_device.actual_bytes or 0)
    assert sum(plan.stored.values()) == plan.costs["memory"].total


def test_a_cost_without_figures_for_all_is_a_lower_bound_and_no_budget_on_it_holds() -> None:
    plan = plan_of(space_for(latency="1ms"))
    latency = plan.costs["latency"]
    assert latency.total < 1.0
    assert latency.is_lower_bound
    assert latency.holds is None
    assert all(entry.name.startswith("gru") for entry in latency.uncosted)
    assert sum(entry.share for entry in latency.uncosted) > 0.97
    content = json.loads(json.dumps(plan.to_dict()))["costs"]["latency"]
    assert (content["is_lower_bound"], content["holds"]) == (True, None)
    assert content["uncosted"][0]["macs"] > 0
    assert Plan.from_dict(plan.to_dict()).costs["latency"] == latency
    assert plan_of(space_for(flash="90KiB")).costs["latency"].holds is None  # there is no budget


def test_a_lower_bound_above_the_budget_does_not_hold() -> None:
    with pytest.raises(InfeasibleBudget, match="latency"):
        plan_of(space_for(latency="1us"))


def test_an_allocator_warns_of_it() -> None:
    with pytest.warns(HwbmpqWarning, match=r"the budget on latency is not shown to hold: .* no figure"):
        BitAllocator(Speech(), SOUND, target="stm32h743", budgets={"latency": "1ms"}, epochs=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BitAllocator(Speech(), SOUND, target="stm32h743", budgets={"flash": "90KiB"}, epochs=3)


def test_a_device_with_float_costs_what_stays_in_float() -> None:
    """The Jetson computes everything in fp16 or fp32: nothing is left out."""
    space = space_for("jetson_nano", latency="1s")
    assert not space.costs.table("latency").is_lower_bound
    macs = space.graph.macs - space.graph.layer_macs
    if macs:  # fp32 at 128 MACs a cycle, or longer if memory takes longer
        seconds = macs / (128 * 921.6e6)
        assert space.costs.table("latency").rows[0].constant >= seconds * 1e3


def small_network() -> nn.Sequential:
    """The first layers of DS-CNN."""
    return nn.Sequential(
        nn.Conv2d(1, 64, (10, 4), stride=2, padding=(5, 1), bias=False),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False),
        nn.ReLU(),
        nn.Conv2d(64, 64, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 12),
    )


def test_a_kernel_that_was_not_measured_leaves_the_other_costs_alone() -> None:
    graph = hwbmpq.describe(small_network(), torch.zeros(1, 1, 49, 10))
    space = pipeline.build_search_space(graph, hwbmpq.load_profile("stm32h743"), {"flash": "64KiB"})
    plan = plan_of(space)
    for name in ("latency", "energy"):
        cost = plan.costs[name]
        assert not cost.is_lower_bound
        assert 0 < cost.estimated_share <= 1
        assert any(text.startswith("0 (scaled by MACs from conv2d") for text in cost.estimated)
    table, bits = space.costs.table("latency"), plan.allocation.bits
    parts = {name: table[name][bits[name]] for name in table.estimates(bits)}  # type: ignore[arg-type, index]
    assert plan.costs["latency"].estimated_share == pytest.approx(
        (table.estimated_constant + sum(parts.values())) / plan.costs["latency"].total
    )
