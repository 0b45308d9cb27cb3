"""Energy models, besides the reference vectors."""

from collections.abc import Callable

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
