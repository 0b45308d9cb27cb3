"""Energy models, besides the reference vectors."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hwbmpq.costs import CostTable
from hwbmpq.hardware import HardwareProfile
from hwbmpq.testing import conv_layer
from hwbmpq.values import Precision

Write = Callable[..., HardwareProfile]
Tabulate = Callable[..., CostTable]
Value = Callable[..., float]
W2A8, W4A8, W8A8 = (Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4, 8))
CONV = conv_layer(64, 64, size=56)


def test_traffic_energy_counts_weights_inputs_and_outputs(value: Value) -> None:
    bits = 36_864 * 4 + 2 * 200_704 * 8
    with_traffic = value("mac_energy", "generic", at=W4A8)
    assert with_traffic - value("mac_energy", "generic", at=W4A8, traffic=False) == pytest.approx(
        bits * 20.3125e-6
    )
    assert value("energy", "generic", at=W4A8) == with_traffic


def test_floating_point_macs_have_their_own_energy(value: Value) -> None:
    full = Precision(weight_bits=32, activation_bits=32)
    assert value("mac_energy", "generic", at=full, traffic=False) == pytest.approx(CONV.macs * 4.6e-6)


def test_energy_may_come_from_a_table_of_the_profile(write: Write, value: Value) -> None:
    body = "energy: {kind: assumed, table: [{pj_per_mac: 2}, {w: int4, pj_per_mac: 1.5}]}\n"
    profile = write(body)
    assert value("mac_energy", profile, mac="table", traffic=False) == pytest.approx(CONV.macs * 2e-6)
    assert value("mac_energy", profile, at=W4A8, mac="table", traffic=False) == pytest.approx(
        CONV.macs * 1.5e-6
    )


def test_the_unverified_formula_is_marked_uncertain(tabulate: Tabulate) -> None:
    table = tabulate("mac_energy", "generic", mac="vasquez2021")
    assert [use.path for use in table.doubtful_figures] == ["mac_energy.vasquez2021"]


def test_power_time_uses_active_power_or_the_boards_budget(tabulate: Tabulate) -> None:
    half = Precision(weight_bits=16, activation_bits=16)
    table = tabulate("energy", "jetson_nano", bits=[half])
    assert table["conv"][half] == pytest.approx(10 * 490.0)  # 10 W for 490 us
    assert "upper bound" in " ".join(table.notes)
    assert {"power.budget_w", "clock.core_hz"} <= {use.path for use in table.figures}


def test_doubtful_figures_are_listed(tabulate: Tabulate) -> None:
    table = tabulate("latency", "raspberry_pi_4")
    assert {use.path: use.kind for use in table.doubtful_figures} == {
        "compute.efficiency": "assumed",
        "compute.table.1.macs_per_cycle": "uncertain",
    }


MEMORIES = """
precisions: {weights: [int8, int4, fp16], activations: [int8, fp16], accumulator_bits: 32}
memory:
  - {name: sram, energy_pj_per_bit: 1, kind: assumed, holds: [activations]}
  - {name: dram, energy_pj_per_bit: 100, kind: assumed, holds: [weights]}
"""


def test_each_memory_has_its_own_energy(write: Write, value: Value) -> None:
    profile = write(MEMORIES)
    arithmetic = value("mac_energy", profile, traffic=False)
    weights, activations = 36_864 * 8e-6, 2 * 200_704 * 8e-6
    assert value("mac_energy", profile) - arithmetic == pytest.approx(100 * weights + activations)
    assert value("mac_energy", profile, weights_in="sram") - arithmetic == pytest.approx(
        weights + activations
    )
    assert value("mac_energy", profile, activations_in="dram") - arithmetic == pytest.approx(
        100 * (weights + activations)
    )


def test_half_precision_macs_have_their_own_energy(write: Write, value: Value) -> None:
    half = Precision(weight_bits=16, activation_bits=16)
    assert value("mac_energy", write(MEMORIES), at=half, traffic=False) == pytest.approx(CONV.macs * 1.5e-6)


@pytest.mark.parametrize("mac", ["horowitz45_fit", "bitfusion45", "vasquez2021"])
def test_the_constants_of_the_model_are_among_its_figures(mac: str, tabulate: Tabulate) -> None:
    table = tabulate("mac_energy", "generic", mac=mac, traffic=False)
    assert [use.path for use in table.figures] == [f"mac_energy.{mac}"]
    assert table.figures[0].sources


def test_power_time_keeps_what_latency_says(tabulate: Tabulate) -> None:
    half = Precision(weight_bits=16, activation_bits=16)
    latency = tabulate("latency", "jetson_nano", bits=[half])
    energy = tabulate("energy", "jetson_nano", bits=[half])
    assert "a peak roofline: real kernels are slower" in latency.notes
    assert set(latency.notes) <= set(energy.notes)
    assert "does not depend on the widths" in tabulate("energy", "gap8").notes[0]


def test_a_layer_that_runs_twice_moves_its_operands_twice(value: Value) -> None:
    twice = replace(CONV, macs=2 * CONV.macs, calls=2)
    for mac in ("horowitz45_fit", "vasquez2021"):
        assert value("mac_energy", "generic", twice, mac=mac) == pytest.approx(
            2 * value("mac_energy", "generic", mac=mac)
        )
