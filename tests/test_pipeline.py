"""From a network and a device to a plan."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import hwbmpq
from hwbmpq import pipeline
from hwbmpq.allocate import InfeasibleBudget
from hwbmpq.data import load_data
from hwbmpq.errors import HwbmpqError
from hwbmpq.graph import LayerGraph
from hwbmpq.hardware import HardwareProfile
from hwbmpq.training import RunDirectory, resolve_settings
from hwbmpq.values import Precision, Sensitivity


@pytest.fixture
def graph() -> LayerGraph:
    model = hwbmpq.models.load_model("hwbmpq:resnet8_b", device="meta")
    return hwbmpq.describe(model.network, model.example_input())


@pytest.fixture
def mpic() -> HardwareProfile:
    return hwbmpq.load_profile("mpic")


def scores(graph: LayerGraph) -> Sensitivity:
    return Sensitivity(method="file", scores={layer.name: 1 / (i + 1) for i, layer in enumerate(graph)})


def in_float(graph: LayerGraph) -> int:
    """Bits of the network in float: its parameters, a mean and a variance per channel of its norms, and a counter each."""
    channels = [entry.parameters // 2 for entry in graph.uncovered if entry.reason == "norm"]
    return 32 * graph.parameters + sum(64 * number + 64 for number in channels)


def test_plan_stays_within_every_budget_and_keeps_ends_and_ties(
    graph: LayerGraph, mpic: HardwareProfile
) -> None:
    space = pipeline.build_search_space(graph, mpic, {"memory": "12x", "latency": "13ms"})
    plan = pipeline.plan(space, scores(graph))
    assert plan.allocation.costs["memory"] <= in_float(graph) / 12
    assert plan.allocation.costs["latency"] <= 13
    assert plan.allocation.bits["conv1"] == Precision(weight_bits=8, activation_bits=8)
    for tie in graph.ties:
        assert len({plan.allocation.bits[layer] for layer in tie.layers}) == 1
    assert plan.allocation.optimal


def test_layer_costs_add_up_to_the_totals(graph: LayerGraph, mpic: HardwareProfile) -> None:
    plan = pipeline.plan(pipeline.build_search_space(graph, mpic, {"memory": "12x"}), scores(graph))
    beside = (
        in_float(graph) - 32 * graph.weights + 64 * (len(graph) - 2)
    )  # a clipping point for each tensor read
    for name, constant in (("memory", beside), ("latency", 0), ("energy", 0)):
        total = constant + sum(layer.costs[name] for layer in plan.layers)
        assert total == pytest.approx(plan.costs[name].total)
    widths = {layer.name: layer.precision.weight_bits for layer in plan.layers}
    weights = sum(widths[layer.name] * layer.parameters + 32 for layer in graph)  # whole bytes, and a scale
    assert plan.costs["memory"].total == weights + beside
    assert plan.costs["memory"].float_total == in_float(graph)


def test_uniform_alternatives_are_costed_and_judged(graph: LayerGraph, mpic: HardwareProfile) -> None:
    plan = pipeline.plan(pipeline.build_search_space(graph, mpic, {"memory": "10x"}), scores(graph))
    narrow, wide = plan.alternatives
    assert (narrow.label, narrow.fits, wide.label, wide.fits) == ("W2A8", True, "W4A8", False)
    assert plan.best_uniform is narrow
    assert plan.share_of_range(narrow.objective) == 0.0
    assert plan.share_of_range(wide.objective) == pytest.approx(1.0)
    assert narrow.objective < plan.allocation.objective < wide.objective


def test_without_a_budget_memory_gets_a_quarter_of_its_range(
    graph: LayerGraph, mpic: HardwareProfile
) -> None:
    space = pipeline.build_search_space(graph, mpic)
    plan = pipeline.plan(space, scores(graph), with_explanation=False)
    memory = plan.costs["memory"]
    assert memory.budget == memory.smallest + 0.25 * (memory.largest - memory.smallest)
    assert any("quarter of the range" in remark for remark in plan.remarks)


def test_a_profile_brings_its_own_budgets(graph: LayerGraph, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: mpic\nname: mine\nbudgets: {memory: 10x, latency: 14 ms}\n")
    space = pipeline.build_search_space(graph, hwbmpq.load_profile(str(path)))
    assert space.limits == {"memory": in_float(graph) / 10, "latency": 14.0}
    assert any("budgets of the profile" in remark for remark in space.remarks)


@pytest.mark.parametrize(
    ("budgets", "widths"),
    [({"memory": "12x"}, {8}), ({"latency": "13ms"}, {2, 4}), ({"memory": "12x", "energy": "80%"}, {2, 4})],
    ids=["memory does not care", "latency does", "one of two does"],
)
def test_auto_activations_are_wide_unless_a_budget_depends_on_them(
    graph: LayerGraph, mpic: HardwareProfile, budgets: dict[str, str], widths: set[int]
) -> None:
    space = pipeline.build_search_space(graph, mpic, budgets)
    free = [options for name, options in space.choices.items() if len(options) > 1]
    assert {precision.activation_bits for options in free for precision in options} == widths
    assert any("activation" in remark for remark in space.remarks)


def test_asked_activations_are_taken(graph: LayerGraph, mpic: HardwareProfile) -> None:
    space = pipeline.build_search_space(graph, mpic, {"memory": "12x"}, bits=(2, 4), activation_bits=4)
    assert [str(p) for p in space.choices["layer1.0.conv1"]] == ["W2A4", "W4A4"]


def test_a_cost_without_figures_cannot_be_budgeted(graph: LayerGraph) -> None:
    with pytest.raises(HwbmpqError, match="energy"):
        pipeline.build_search_space(graph, hwbmpq.load_profile("stm32f746"), {"energy": "5mJ"})


def test_infeasible_budgets_are_told_before_anything_is_planned(
    graph: LayerGraph, mpic: HardwareProfile
) -> None:
    space = pipeline.build_search_space(graph, mpic, {"memory": "40x"})
    with pytest.raises(InfeasibleBudget) as caught:
        pipeline.plan(space, scores(graph))
    (report,) = caught.value.reports
    assert set(report.fixed) == {"conv1", "linear"}
    assert all(
        report.smallest_bits[name].weight_bits == 2
        for name in report.smallest_bits
        if name not in report.fixed
    )  # type: ignore[union-attr]


def test_one_width_only_is_said(graph: LayerGraph, mpic: HardwareProfile) -> None:
    space = pipeline.build_search_space(graph, mpic, {"memory": "100%"}, bits=(4,))
    assert any("nothing to allocate" in remark for remark in space.remarks)


def test_the_plan_is_json(graph: LayerGraph, mpic: HardwareProfile) -> None:
    plan = pipeline.plan(pipeline.build_search_space(graph, mpic, {"memory": "12x"}), scores(graph))
    content = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert content["allocation"]["bits"]["conv1"] == "W8A8"
    assert content["costs"]["memory"]["asked"] == "12x"
    assert len(content["layers"]) == len(graph)
    assert set(content["explanation"]["runner_ups"]) == {
        layer.name for layer in plan.layers if not layer.is_fixed
    }


def test_an_allocation_can_be_assigned(
    tiny_cnn: nn.Module, images: torch.Tensor, mpic: HardwareProfile
) -> None:
    graph = hwbmpq.describe(tiny_cnn, images)
    space = pipeline.build_search_space(graph, mpic, {"weight_memory": "60%"})
    plan = pipeline.plan(space, scores(graph), with_explanation=False)
    hwbmpq.quant.prepare(tiny_cnn, graph)
    hwbmpq.quant.assign(tiny_cnn, plan.allocation)
    assert tiny_cnn(images).shape == (4, 5)
    for name, layer in hwbmpq.quant.quantized_layers(tiny_cnn):
        assert layer.precision == plan.allocation.bits[name]


def test_labels_of_other_classes_are_replaced_by_the_network_s_own(
    tiny_cnn: nn.Module, images: torch.Tensor, mpic: HardwareProfile
) -> None:
    graph = hwbmpq.describe(tiny_cnn, images)
    space = pipeline.build_search_space(graph, mpic, {"memory": "60%"})
    data = hwbmpq.data.load_images("fake", input_size=(3, 8, 8), count=16, classes=7)
    tiny_cnn.train()
    before = {name: tensor.clone() for name, tensor in tiny_cnn.state_dict().items()}
    sensitivity = pipeline.measure(tiny_cnn, graph, [space.choices], data)
    assert any("labelled by the network itself" in remark for remark in sensitivity.remarks)
    assert tiny_cnn.training
    assert all(torch.equal(before[name], tensor) for name, tensor in tiny_cnn.state_dict().items())
    assert all(score >= 0 for score in sensitivity.scores.values())


def test_one_sensitivity_serves_devices_with_other_widths(
    tiny_cnn: nn.Module, images: torch.Tensor, mpic: HardwareProfile
) -> None:
    graph = hwbmpq.describe(tiny_cnn, images)
    spaces = [
        pipeline.build_search_space(graph, mpic, {"memory": "100%"}),
        pipeline.build_search_space(
            graph, hwbmpq.load_profile("gap9_ne16"), {"memory": "100%"}, bits=(2, 3, 8)
        ),
    ]
    data = hwbmpq.data.load_images("fake", input_size=(3, 8, 8), count=8, classes=5)
    sensitivity = pipeline.measure(tiny_cnn, graph, [q.choices for q in spaces], data)
    assert sorted(sensitivity.errors["3"]) == [2, 3, 4, 8]
    for space in spaces:
        frontier = pipeline.trade_off(space, sensitivity, ["memory"], objective="error")
        assert frontier.is_exact
        assert len(frontier) > 1


@pytest.mark.parametrize(("bits", "is_said"), [((2, 4), False), ((2, 4, 8), True)])
def test_linear_values_of_three_widths_get_a_remark(
    graph: LayerGraph, mpic: HardwareProfile, bits: tuple[int, ...], is_said: bool
) -> None:
    space = pipeline.build_search_space(graph, mpic, {"memory": "10x"}, bits=bits)
    plan = pipeline.plan(space, scores(graph), with_explanation=False)
    assert any("prefers extremes" in remark for remark in plan.remarks) is is_said


def test_exports_of_an_earlier_state_go_when_training_goes_on(tmp_path: Path) -> None:
    data = load_data("fake", input_size=(3, 8, 8), classes=5, train_limit=16, test_limit=4)
    settings = resolve_settings(
        {"model": "own", "target": "generic", "data": "fake", "epochs": 2, "batch_size": 8, "bits": (2, 4)}
    )
    run = RunDirectory(tmp_path / "run").create()
    stale = [run.path / name for name in ("model.onnx", "model.int8.onnx", "best.onnx")]
    for path in stale:
        path.write_bytes(b"of an earlier state")
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    )
    pipeline.compress(model, data, settings, run=run)
    assert not any(path.exists() for path in stale)
    run.path.joinpath("model.onnx").write_bytes(b"of the end")
    state = run.load_checkpoint()[0]
    again = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    )
    pipeline.compress(again, data, settings, run=run, state=state)  # nothing is left to train
    assert run.path.joinpath("model.onnx").exists()
