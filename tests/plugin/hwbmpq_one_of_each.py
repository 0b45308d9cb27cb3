"""One of everything that hwbmpq knows by name, but for cost models and quantizers, which have files of their own."""

import json
from pathlib import Path
from typing import Any

from hwbmpq.allocate import Allocation
from hwbmpq.allocate.highs import Highs
from hwbmpq.data.registry import register as register_data
from hwbmpq.export.deployment import ExportResult
from hwbmpq.export.deployment import register as register_format
from hwbmpq.quant import quantized_layers
from hwbmpq.registry import DATA_SOURCES
from hwbmpq.search.decisions import Decision, DecisionContext
from hwbmpq.search.methods import Method
from hwbmpq.sensitivity import SensitivityInputs
from hwbmpq.sensitivity import register as register_sensitivity
from hwbmpq.values import Sensitivity

NOT_A_METHOD = 3


@register_sensitivity("parameter_count", needs_data=False)
def parameter_count(inputs: SensitivityInputs) -> Sensitivity:
    """The larger, the more sensitive."""
    return Sensitivity(
        method="parameter_count", scores={layer.name: layer.parameters for layer in inputs.layers}
    )


def squared(sensitivity: Sensitivity, choices: Any) -> Any:
    """Sensitivity times the square of the width."""
    return {
        layer: {choice: sensitivity.scores[layer] * choice.weight_bits**2 for choice in options}
        for layer, options in choices.items()
    }


def _narrowest(context: DecisionContext) -> Decision:
    space = context.space
    bits = {layer: min(options) for layer, options in space.choices.items()}
    costs = {name: table.total(bits) for name, table in space.costs.tables.items()}
    allocation = Allocation(
        bits=bits, objective=0.0, bound=0.0, costs=costs, budgets={}, solver="narrowest", seconds=0.0
    )
    return context.decision(allocation)


NARROWEST = Method(
    name="narrowest", summary="the narrowest width of every layer", decides="once", decide=_narrowest
)


class SecondHighs(Highs):
    """The same solver by another name."""

    name, title = "second_highs", "a second HiGHS"


SECOND_HIGHS = SecondHighs()


@register_data("more_noise", "noise of a plug-in", augment="none")
def open_more_noise(request: Any) -> Any:
    """The noise that hwbmpq has."""
    return DATA_SOURCES.get("fake").open(request)


@register_format("widths", "the width of every layer, as JSON", file="model.widths.json")
def write_widths(network: Any, data: Any, settings: Any, path: Path, **options: Any) -> ExportResult:
    """What each layer's weights are stored in."""
    widths = {name: layer.weight_bits for name, layer in quantized_layers(network)}
    path.write_text(json.dumps(widths))
    return ExportResult(path=path, detail=f"{len(widths)} layers", facts={"layers": len(widths)})
