"""Plug-ins that return something else than they should: the error names them, what they returned and what was expected."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hwbmpq.allocate import solve, values_for
from hwbmpq.allocate.allocation import Allocation
from hwbmpq.costs import CostTable, tabulate
from hwbmpq.data import open_data
from hwbmpq.data.registry import DataSource
from hwbmpq.errors import HwbmpqError
from hwbmpq.export.deployment import ExportFormat, ExportResult
from hwbmpq.graph import LayerGraph, describe
from hwbmpq.hardware import load_profile
from hwbmpq.quant import WeightQuantizer, prepare
from hwbmpq.registry import (
    COST_MODELS,
    DATA_SOURCES,
    EXPORT_FORMATS,
    METHODS,
    OBJECTIVES,
    QUANTIZERS,
    SENSITIVITIES,
    SOLVERS,
    Registry,
)
from hwbmpq.search import BitAllocator, Method
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.sensitivity.registry import SensitivityMethod
from hwbmpq.values import Precision, Sensitivity

W4 = Precision(weight_bits=4, activation_bits=8)
CHOICES = {"a": (W4,), "b": (W4,)}


@contextmanager
def registered(registry: Registry[Any], entry: Any, name: str = "theirs") -> Iterator[str]:
    registry.add(name, entry)
    with ExitStack() as stack:
        stack.callback(registry.remove, name)
        yield name


@pytest.fixture
def graph(tiny_cnn: nn.Module, images: Tensor) -> LayerGraph:
    return describe(tiny_cnn, images[:1])


def cost_model(make: Any) -> type:
    class Theirs:
        unit = "ms"

        def tabulate(self, layers: Any, profile: Any, precisions: Any) -> Any:
            return make(layers, precisions)

    return Theirs


def table(layers: Any, precisions: Any, cost: Any = lambda layer, precision: 1) -> CostTable:
    return CostTable.additive("theirs", layers, precisions, cost, unit="ms")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda layers, precisions: {"a": 1}, "returned dict {'a': 1}; expected a CostTable"),
        (lambda layers, precisions: None, "returned NoneType"),
        (lambda layers, precisions: table(list(layers)[1:], precisions), "a table without layer '0'"),
        (
            lambda layers, precisions: table(layers, {"0": (), "3": (), "6": (), "8": ()}),
            "no cost of layer '0' at W",
        ),
        (
            lambda layers, precisions: table(layers, precisions, lambda *_: "much"),
            "str 'much' as a cost of layer",
        ),
    ],
)
def test_cost_models(make: Any, told: str, graph: LayerGraph) -> None:
    with registered(COST_MODELS, cost_model(make)) as name:
        missing = tabulate(graph, load_profile("mpic"), costs=[name]).missing
    message = str(missing["theirs"])
    assert told in message
    assert message.startswith(f"cost model 'theirs' of {__name__} returned")
    assert "expected a CostTable with a number for every layer and every candidate" in message


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ({"a": 1.0}, "returned dict {'a': 1.0}"),
        (Sensitivity(method="theirs", scores={}), "no score of layer '0'"),
        (
            Sensitivity(method="theirs", scores=dict.fromkeys("0368", float("nan"))),
            "the score nan of layer '0'",
        ),
    ],
)
def test_sensitivities(returned: Any, told: str, graph: LayerGraph, tiny_cnn: nn.Module) -> None:
    entry = SensitivityMethod(name="theirs", needs_data=False, measure=lambda inputs: returned)
    names = [layer.name for layer in graph]
    with (
        registered(SENSITIVITIES, entry),
        pytest.raises(HwbmpqError, match=r"sensitivity 'theirs' of .* expected a Sensitivity with") as caught,
    ):
        measure_sensitivity(
            tiny_cnn,
            graph,
            method="theirs",
            precisions=dict.fromkeys(names, W4),
            widths={name: [4] for name in names},
        )
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (3, "returned int 3"),
        ({"a": {W4: 1.0}}, "None for layer 'b' at W4A8"),
        ({"a": {W4: 1.0}, "b": 2.0}, "None for layer 'b' at W4A8"),
        ({"a": {W4: float("inf")}, "b": {W4: 1.0}}, "inf for layer 'a' at W4A8"),
    ],
)
def test_objectives(returned: Any, told: str) -> None:
    sensitivity = Sensitivity(method="enbg", scores={"a": 1.0, "b": 1.0})
    with (
        registered(OBJECTIVES, lambda sensitivity, choices: returned),
        pytest.raises(
            HwbmpqError, match=r"objective 'theirs' of .* expected a dict with a finite number"
        ) as caught,
    ):
        values_for(sensitivity, CHOICES, "theirs")
    assert told in str(caught.value)


def test_solvers() -> None:
    session = SimpleNamespace(solve=lambda seconds, gap: [1, 0])
    solver = SimpleNamespace(name="theirs", why_unavailable=lambda: "", open=lambda model: session)
    values = {"a": {2: 0, 4: 1}, "b": {2: 0, 4: 1}}
    with (
        registered(SOLVERS, solver),
        pytest.raises(HwbmpqError, match=r"solver 'theirs' of .* returned list \[1, 0\]; expected an Answer"),
    ):
        solve(values, {"memory": {"a": {2: 2, 4: 4}, "b": {2: 2, 4: 4}}}, {"memory": 6}, solver="theirs")


@pytest.mark.parametrize(
    ("decide", "told"),
    [
        (lambda context: {"3": 4}, "returned dict {'3': 4}"),
        (
            lambda context: context.decision(
                Allocation(
                    bits={
                        name: Precision(weight_bits=7, activation_bits=7) for name in context.space.choices
                    },
                    objective=0.0,
                    bound=0.0,
                    costs={},
                    budgets={},
                    solver="theirs",
                    seconds=0.0,
                )
            ),
            "W7A7 for layer '0', whose candidates are W",
        ),
    ],
)
def test_methods(decide: Any, told: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    method = Method(name="theirs", summary="", decides="once", decide=decide)
    with registered(METHODS, method):
        allocator = BitAllocator(
            tiny_cnn, images[:1], target="mpic", epochs=3, method="theirs", budgets={"memory": "90%"}
        )
        with pytest.raises(
            HwbmpqError, match=r"method 'theirs' of .* expected a Decision with a candidate"
        ) as caught:
            allocator.decide()
    assert told in str(caught.value)


def test_a_method_that_is_not_one(tiny_cnn: nn.Module, images: Tensor) -> None:
    with (
        registered(METHODS, SimpleNamespace(decide=print)),
        pytest.raises(
            HwbmpqError, match=r"method 'theirs' .* SimpleNamespace; expected hwbmpq.search.Method"
        ),
    ):
        BitAllocator(tiny_cnn, images[:1], target="mpic", epochs=3, method="theirs")


@pytest.mark.parametrize(
    ("codes_and_scale", "told"),
    [
        (lambda weight: [weight], "returned list"),
        (lambda weight: (weight.flatten(), torch.ones(1, 1, 1, 1)), r"shapes \(108,\) and \(1, 1, 1, 1\)"),
        (
            lambda weight: (weight, torch.tensor(1.0)),
            r"and \(\); expected codes of the weight's shape \(4, 3, 3, 3\)",
        ),
    ],
)
def test_quantizers(
    codes_and_scale: Any, told: str, tiny_cnn: nn.Module, images: Tensor, graph: LayerGraph
) -> None:
    class Theirs(WeightQuantizer):
        def codes_and_scale(self, weight: Tensor, bits: int | None = None) -> Any:
            return codes_and_scale(weight)

    with registered(QUANTIZERS, Theirs):
        prepare(tiny_cnn, graph, quantizer="theirs")
        with pytest.raises(HwbmpqError, match=f"layer '0': the weight quantizer Theirs .*{told}"):
            tiny_cnn(images)


def test_data_sources() -> None:
    source = DataSource(form="theirs", description="", open=lambda request: [1, 2])  # type: ignore[arg-type, return-value]
    with (
        registered(DATA_SOURCES, source),
        pytest.raises(
            HwbmpqError, match=r"data source 'theirs' of .* returned list \[1, 2\]; expected .*DataParts"
        ),
    ):
        open_data("theirs")


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("model.bin", "returned model.bin"),
        (None, "NoneType"),
        (ExportResult(path=Path("gone")), "gone, which does not"),
    ],
)
def test_export_formats(result: Any, told: str) -> None:
    form = ExportFormat(name="theirs", summary="", file="model.bin", write=lambda *_, **__: result)
    with (
        registered(EXPORT_FORMATS, form),
        pytest.raises(HwbmpqError, match=r"export format 'theirs' of .* expected an ExportResult") as caught,
    ):
        form.export()
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("registry", "entry", "told"),
    [
        (METHODS, print, "has no method decide(context)"),
        (QUANTIZERS, print, "has no method codes_and_scale(weight, bits)"),
        (OBJECTIVES, 3, "int is not a function of (sensitivity, choices)"),
        (COST_MODELS, print, "has no method tabulate(layers, profile, precisions)"),
    ],
)
def test_what_is_not_a_plug_in_at_all_is_refused_when_it_is_registered(
    registry: Registry[Any], entry: Any, told: str
) -> None:
    with pytest.raises(HwbmpqError) as caught:
        registry.add("theirs", entry)
    assert told in str(caught.value)
