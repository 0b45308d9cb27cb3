"""A layer that is called at several sizes: every call counts at its own, in whatever order they come.

One head over a feature pyramid: a 3x3 convolution from 4 to 6 channels over 32, 16, 8 and 4 pixels squared, 1,360
positions in all.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.costs import CostTable
from hwbmpq.hardware import HardwareProfile
from hwbmpq.values import Layer, Precision

Write = Callable[..., HardwareProfile]
Tabulate = Callable[..., CostTable]
W8A8 = Precision(weight_bits=8, activation_bits=8)
SIZES = (32, 16, 8, 4)
ORDERS = [SIZES, SIZES[::-1], (8, 32, 4, 16)]
POSITIONS = 32 * 32 + 16 * 16 + 8 * 8 + 4 * 4
WEIGHTS = 4 * 6 * 9
MACS = WEIGHTS * POSITIONS
ELEMENTS = (4 + 6) * POSITIONS
"""Read and written."""


class Pyramid(nn.Module):
    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order = order
        self.head = nn.Conv2d(4, 6, 3, padding=1, bias=False)

    def forward(self, image: Tensor) -> list[Tensor]:
        return [self.head(nn.functional.adaptive_avg_pool2d(image, size)) for size in self.order]


def head(order: tuple[int, ...]) -> Layer:
    (layer,) = hwbmpq.describe(Pyramid(order), torch.zeros(1, 4, 64, 64))
    assert (layer.calls, layer.macs) == (4, MACS)
    return layer


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("model", "profile", "options", "expected"),
    [
        (
            "mac_energy",
            "generic",
            {},
            1e-6
            * (
                MACS * (0.002994791667 * 64 + 0.001041666667 * 8 + 0.003125 * 32)
                + 20.3125 * 8 * (4 * WEIGHTS + ELEMENTS)
            ),
        ),
        (
            "mac_energy",
            "generic",
            {"mac": "vasquez2021"},
            1e-6 * (MACS * (3.1 * 8 / 32 + 0.1) + 2.5 * 8 * (4 * POSITIONS + 4 * WEIGHTS)),
        ),
        # 36 inputs, 6 outputs: 2 * 36 + 2 * (15 + 14 * 9) cycles for each of (64 + 16 + 4 + 2) tiles of 2 x 8 pixels.
        ("gap8", "gap8", {}, 86 * 354 / 175e6 * 1e3),
        ("bops", "generic", {}, MACS * 64),
    ],
)
def test_every_call_counts_at_its_own_size(
    order: tuple[int, ...],
    model: str,
    profile: str,
    options: dict[str, Any],
    expected: float,
    tabulate: Tabulate,
) -> None:
    table = tabulate(model, profile, head(order), **options)
    assert table["head"][W8A8] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("order", ORDERS)
def test_each_call_is_bound_by_what_is_slower(
    order: tuple[int, ...], write: Write, tabulate: Tabulate
) -> None:
    profile = write("""
clock: {core: {value: 1 MHz, kind: assumed}}
compute: {table: [{op: "*", macs_per_cycle: 20, kind: assumed}]}
memory: [{name: ram, bandwidth: {value: 1 MB/s, kind: assumed}, holds: [weights, activations]}]
""")
    # A position takes 216 MACs, 10.8 us, and moves 10 bytes, 10 us; each call moves 216 bytes of weights as well. So
    # computing takes longer at 32 x 32, moving at 16 x 16 (2,776 us against 2,764.8) and below.
    expected = 1024 * 10.8e-3 + sum(216 + 10 * positions for positions in (256, 64, 16)) * 1e-3
    assert tabulate("roofline", profile, head(order))["head"][W8A8] == pytest.approx(expected)


@pytest.mark.parametrize("order", ORDERS)
def test_each_call_is_looked_up(order: tuple[int, ...], write: Write, tabulate: Tabulate) -> None:
    entries = [
        {"op": "conv2d", "in_channels": 4, "out_channels": 6, "kernel_size": [3, 3], "out_h": size, "out_w": size,
         "w_bits": 8, "a_bits": 8, "macs": WEIGHTS * size * size, "value": cost}
        for size, cost in ((32, 100.0), (16, 30.0), (8, 9.0), (4, 4.0))
    ]  # fmt: skip
    table = {
        "schema": "hwbmpq/lut/v1", "device": "a board", "runtime": "its own", "unit": "ms", "source": {"title": "made up"},
        "key": ["op", "in_channels", "out_channels", "kernel_size", "out_h", "out_w", "w_bits", "a_bits"], "entries": entries,
    }  # fmt: skip
    profile = write(
        "lookup_tables: [{id: t, file: t.json, miss: error, kind: assumed}]\n"
        "cost_models: {latency: {model: lookup_table}}\n",
        t=table,
    )
    found = tabulate("latency", profile, head(order))
    assert found["head"][W8A8] == 143.0
    assert found.origins["head"][W8A8] == "measured"


@pytest.mark.parametrize("order", ORDERS)
def test_the_largest_call_is_the_working_set(order: tuple[int, ...], tabulate: Tabulate) -> None:
    table = tabulate("layer_working_set", "generic", head(order))
    assert table.total({"head": W8A8}) == (4 + 6) * 32 * 32 * 8
    largest = tabulate("largest_input", "generic", head(order))
    assert largest.total({"head": W8A8}) == 4 * 32 * 32 * 8


def test_weights_are_stored_once_however_often_they_are_called(tabulate: Tabulate) -> None:
    assert tabulate("weight_memory", "generic", head(SIZES))["head"][W8A8] == WEIGHTS * 8
    assert tabulate("stored_memory", "generic", head(SIZES))["head"][W8A8] == WEIGHTS * 8 + 32
