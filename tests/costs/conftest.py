"""A profile to write, and costs of single layers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwbmpq.costs import CostTable, get_cost_model
from hwbmpq.hardware import HardwareProfile, load_profile
from hwbmpq.testing import conv_layer
from hwbmpq.values import Layer, Precision

CONV = conv_layer(64, 64, size=56)
W8A8 = Precision(weight_bits=8, activation_bits=8)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., HardwareProfile]:
    """Write the body of a profile (and JSON files beside it) and load it."""

    def write_profile(body: str, **files: Any) -> HardwareProfile:
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        head = "schema: hwbmpq/profile/v1\nname: board\ntitle: A board\nclass: mcu\n"
        if "precisions:" not in body:
            head += "precisions: {weights: [int8, int4, int2], activations: [int8], bias_bits: 32}\n"
        (tmp_path / "board.yaml").write_text(head + body)
        return load_profile(tmp_path / "board.yaml")

    return write_profile


@pytest.fixture
def tabulate() -> Callable[..., CostTable]:
    """The table of a cost model: by default of a 64-channel 3x3 convolution at W8A8."""

    def table(
        name: str, profile: HardwareProfile | str, *layers: Layer, bits: Any = (W8A8,), **options: Any
    ) -> CostTable:
        profile = load_profile(profile) if isinstance(profile, str) else profile
        return get_cost_model(name, **options).tabulate(layers or [CONV], profile, bits)

    return table


@pytest.fixture
def value(tabulate: Callable[..., CostTable]) -> Callable[..., float]:
    """One number of such a table."""

    def one(
        name: str, profile: HardwareProfile | str, layer: Layer = CONV, at: Precision = W8A8, **options: Any
    ) -> float:
        return float(tabulate(name, profile, layer, bits=[at], **options)[layer.name][at])

    return one
