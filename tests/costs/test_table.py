"""Cost tables."""

import json

import pytest

import hwbmpq
from hwbmpq.costs import (
    Capacity,
    CostRow,
    CostTable,
    FigureUse,
    NetworkCosts,
    Uncosted,
    get_cost_model,
    tabulate,
)
from hwbmpq.errors import UnknownNameError, UnsupportedLayerError, UnsupportedPrecisionError
from hwbmpq.hardware import load_profile
from hwbmpq.testing import conv_layer, linear_layer
from hwbmpq.values import Precision

NARROW = Precision(weight_bits=2, activation_bits=4)
WIDE = Precision(weight_bits=4, activation_bits=4)
DEEP = Precision(weight_bits=4, activation_bits=8)
LAYERS = [conv_layer(2, 2, size=4, name="a"), conv_layer(2, 4, size=4, name="b")]


def weights(*candidates: Precision) -> CostTable:
    return CostTable.additive(
        "weights", LAYERS, candidates, lambda layer, p: layer.parameters * p.weight_bits, unit="bit"
    )


def test_an_additive_cost_adds_up() -> None:
    table = weights(NARROW, WIDE)
    assert table["a"] == {NARROW: 72, WIDE: 144}
    assert table.total({"a": NARROW, "b": WIDE}) == 72 + 288
    assert table.is_additive
    assert isinstance(table.total({"a": NARROW, "b": WIDE}), int)


def test_layers_may_have_their_own_candidates() -> None:
    table = CostTable.additive("w", LAYERS, {"a": [NARROW], "b": [WIDE]}, lambda _, p: p.weight_bits, unit="")
    assert (table["a"], table["b"]) == ({NARROW: 2}, {WIDE: 4})


def test_of_several_rows_the_largest_counts() -> None:
    rows = (
        CostRow(label="first", costs={"a": {NARROW: 1, WIDE: 5}}, constant=2),
        CostRow(label="second", costs={"a": {NARROW: 1, WIDE: 1}, "b": {NARROW: 1, WIDE: 9}}),
    )
    table = CostTable(name="peak", unit="bit", rows=rows)
    assert table.total({"a": WIDE, "b": NARROW}) == 7
    assert table.total({"a": WIDE, "b": WIDE}) == 10
    assert table.peak({"a": WIDE, "b": WIDE}).label == "second"
    with pytest.raises(TypeError, match="peak has 2 rows"):
        table["a"]


def test_flat_means_that_there_is_a_choice_and_it_does_not_matter() -> None:
    assert not weights(NARROW, WIDE).is_flat
    assert not weights(NARROW).is_flat
    assert weights(WIDE, DEEP).is_flat


def test_scaling_reaches_rows_and_constants() -> None:
    table = CostTable(name="t", unit="ms", rows=(CostRow(costs={"a": {NARROW: 2}}, constant=1),)).scaled(
        3, unit="uJ"
    )
    assert (table.total({"a": NARROW}), table.unit) == (9, "uJ")


def test_it_serialises_with_origins_and_figures() -> None:
    table = get_cost_model("latency").tabulate(
        LAYERS, load_profile("mpic"), [Precision(weight_bits=3, activation_bits=3)]
    )
    content = json.loads(json.dumps(table.to_dict()))
    assert content["origins"]["a"] == {"W3A3": "W3A3 runs as W4A4"}
    assert {figure["path"] for figure in content["figures"]} == {
        "clock.core_hz",
        "compute.table.4.macs_per_cycle",
    }
    assert content["rows"][0]["costs"]["b"]["W3A3"] > 0


def test_doubt_is_about_assumed_and_uncertain_figures() -> None:
    kinds = ["measured", "datasheet", "assumed", "derived", "uncertain"]
    doubtful = ("assumed", "uncertain")
    figures = tuple(FigureUse(path=k, value=1, unit="", kind=k, is_doubtful=k in doubtful) for k in kinds)
    table = CostTable(name="t", unit="", rows=(), figures=figures)
    assert [figure.path for figure in table.doubtful_figures] == ["assumed", "uncertain"]


def network() -> NetworkCosts:
    layers = [
        conv_layer(3, 8, size=8, name="stem", is_end=True),
        conv_layer(8, 8, size=8, name="body"),
        linear_layer(8, 2, name="head", is_end=True),
    ]
    return tabulate(
        layers, load_profile("gap9_ne16"), costs=["memory", "latency", "activation_memory"], bits=[2, 8]
    )


def test_a_network_is_costed_at_each_width_with_its_ends_fixed() -> None:
    costs = network()
    assert costs.widths == (2, 8)
    ends = (3 * 8 * 9 + 8 * 2) * 8 + 3 * 32  # and a scale for each of the three layers
    assert costs.total("memory", 2) == 8 * 8 * 9 * 2 + ends
    assert costs.total("memory", 8) == 8 * 8 * 9 * 8 + ends
    assert costs.total("latency", 2) < costs.total("latency", 8)


def test_costs_that_cannot_be_had_say_why() -> None:
    costs = network()
    assert list(costs.tables) == ["memory", "latency"]
    assert "needs the network's tensors" in str(costs.missing["activation_memory"])
    with pytest.raises(UnsupportedLayerError, match="needs the network's tensors"):
        costs.total("activation_memory", 2)
    with pytest.raises(UnknownNameError, match="no tabulated cost named 'latenc': did you mean latency"):
        costs.total("latenc", 2)
    with pytest.raises(UnsupportedPrecisionError, match="no 4-bit weights here; there are 2, 8"):
        costs.total("latency", 4)
    assert json.loads(json.dumps(costs.to_dict()))["totals"]["memory"][costs.label(2)] == costs.total(
        "memory", 2
    )


def test_by_default_the_profile_says_which_costs() -> None:
    layers = [conv_layer(8, 8, size=8, name="body")]
    assert list(tabulate(layers, load_profile("mpic")).tables) == ["memory", "latency", "energy"]
    assert list(tabulate(layers, load_profile("generic")).tables) == ["memory", "energy", "bops"]
    assert tabulate(layers, load_profile("generic")).widths == (2, 3, 4, 5, 6, 7, 8, 16)


def test_to_dict_keeps_everything() -> None:
    table = CostTable(
        name="peak",
        model="m",
        unit="bit",
        rows=(CostRow(label="step", costs={"a": {NARROW: 2}}, constant=7),),
        figures=(FigureUse(path="p", value=1.5, unit="Hz", kind="measured", sources=("s",), note="n"),),
        origins={"a": {NARROW: "somewhere"}},
        notes=("note",),
        capacity=Capacity(level="ram", bits=64),
        promotions={NARROW: WIDE},
        estimated=("a",),
        estimated_at={"a": (NARROW,)},
        estimated_constant=5,
        findings=("finding",),
        uncosted=(Uncosted(name="b", why="no figure", macs=3, share=0.75),),
        float_total=99,
        leaves_out="the rest",
    )
    assert table.to_dict() == {
        "name": "peak",
        "model": "m",
        "unit": "bit",
        "notes": ["note"],
        "uncosted": [{"name": "b", "why": "no figure", "macs": 3, "share": 0.75}],
        "float_total": 99,
        "leaves_out": "the rest",
        "capacity": {"level": "ram", "bits": 64},
        "figures": [
            {
                "path": "p",
                "value": 1.5,
                "unit": "Hz",
                "kind": "measured",
                "sources": ["s"],
                "note": "n",
                "is_doubtful": False,
            }
        ],
        "rows": [{"label": "step", "constant": 7, "costs": {"a": {"W2A4": 2}}}],
        "origins": {"a": {"W2A4": "somewhere"}},
        "promotions": {"W2A4": "W4A4"},
        "estimated": ["a"],
        "estimated_at": {"a": ["W2A4"]},
        "estimated_constant": 5,
        "findings": ["finding"],
    }
    assert CostTable.from_dict(table.to_dict()) == table


def test_a_graph_has_its_activations_costed_by_default() -> None:
    model = hwbmpq.models.load_model("hwbmpq:resnet8", device="meta")
    graph = hwbmpq.describe(model.network, model.example_input())
    costs = tabulate(graph, load_profile("gap8"), activation_bits="widest")
    assert list(costs.tables) == ["memory", "activation_memory", "latency", "energy"]
    assert costs.label(2) == "W2A8"
    assert tabulate(graph, load_profile("gap8")).label(2) == "W2A2"
    summary = costs.summary()
    assert summary["caveats"] == list(costs.profile.caveats)
    assert "does not depend on the widths" in summary["notes"]["latency"][0]
    assert list(tabulate(graph, load_profile("gap8"), costs="bops").tables) == ["bops"]
