"""hwbmpq without training, with each objective: what ``hwbmpq compress --epochs 0`` does."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from found import Found, Meter, Search, SearchCost, Searched
from task import WIDTHS, folder, trained_network, weight_sizes
from torch import nn

import hwbmpq
from hwbmpq.data import ImageData
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.training import RunSettings
from hwbmpq.training.setup import HESSIAN_IMAGES, calibration_batches

WAYS = {
    "error": ("error", "enbg"),
    "error, divergence": ("error", "divergence"),
    "error, weight error": ("error", "weight_error"),
    "hawq": ("hawq", "hessian_trace"),
    "linear": ("linear", "enbg"),
}
"""Objective and sensitivity; the first is the default without training, the last the paper's."""


def searches() -> dict[str, Search]:
    return {name: partial(_search, way) for name, way in WAYS.items()}


def _search(way: tuple[str, str], budgets: Sequence[float], activation_bits: int | None) -> Searched:
    data = hwbmpq.data.open_data(f"npz:{folder() / 'cifar10.npz'}").sized((3, 32, 32), seed=0)
    results, cost = [], None
    for bits in budgets:
        network = trained_network()
        settings = _settings(way, bits * sum(weight_sizes(network).values()), activation_bits)
        cost = cost or _search_alone(way, network, data, settings)
        result = hwbmpq.pipeline.compress(network, data, settings)
        assert result.plan is not None
        widths = {layer.name: layer.precision.weight_bits for layer in result.plan.layers}
        results.append(Found(average_bits=bits, widths=widths, accuracy=result.evaluation.accuracy))
    assert cost is not None
    return Searched(results=results, cost=cost)


def _settings(way: tuple[str, str], memory_bits: float, activation_bits: int | None) -> RunSettings:
    objective, sensitivity = way
    how = {"method": "hawq"} if objective == "hawq" else {"objective": objective, "sensitivity": sensitivity}
    return hwbmpq.training.resolve_settings(
        {
            "model": "hwbmpq:resnet20",
            "target": str(Path(__file__).with_name(f"weights_248_a{activation_bits or 'float'}.yaml")),
            "bits": WIDTHS,
            "budgets": {"weight_memory": memory_bits},
            "epochs": 0,
            **how,
        }
    )


def _search_alone(
    way: tuple[str, str], network: nn.Module, data: ImageData, settings: RunSettings
) -> SearchCost:
    """Sensitivity and solution, which is all of the search; the rounding of ``compress`` comes after it."""
    objective, method = way
    images = HESSIAN_IMAGES if objective == "hawq" else settings.calibration_images
    meter = Meter()
    space = hwbmpq.pipeline.search_space_of(network, data, settings)
    sensitivity = measure_sensitivity(
        network,
        space.graph,
        calibration_batches(data.train, images),
        method=method,
        precisions=space.as_trained(space.widest),
        widths={name: [p.weight_bits for p in options] for name, options in space.choices.items()},
        per_channel=True,
    )
    hwbmpq.pipeline.plan(space, sensitivity, objective=objective, with_explanation=False)
    return meter.read()
