"""How the cost models behave, besides the reference vectors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwbmpq.costs import CostTable, cost_models, get_cost_model
from hwbmpq.errors import MissingFigureError, UnsupportedLayerError, UnsupportedPrecisionError
from hwbmpq.hardware import HardwareProfile, load_profile
from hwbmpq.testing import conv_layer, linear_layer
from hwbmpq.values import Layer, Precision

Write = Callable[..., HardwareProfile]
W2A8, W4A8, W8A8 = (Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4, 8))
CONV = conv_layer(64, 64, size=56)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_profile(body: str, **files: Any) -> HardwareProfile:
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        head = "schema: hwbmpq/profile/v1\nname: board\ntitle: A board\nclass: mcu\n"
        if "precisions:" not in body:
            head += "precisions: {weights: [int8, int4, int2], activations: [int8], bias_bits: 32}\n"
        (tmp_path / "board.yaml").write_text(head + body)
        return load_profile(tmp_path / "board.yaml")

    return write_profile


def tabulate(
    name: str, profile: HardwareProfile | str, *layers: Layer, bits: Any = (W8A8,), **options: Any
) -> CostTable:
    profile = load_profile(profile) if isinstance(profile, str) else profile
    return get_cost_model(name, **options).tabulate(layers or [CONV], profile, bits)


def value(
    name: str, profile: HardwareProfile | str, layer: Layer = CONV, at: Precision = W8A8, **options: Any
) -> float:
    return tabulate(name, profile, layer, bits=[at], **options)[layer.name][at]


# Memory


def test_weight_memory_counts_what_it_is_told_to(write: Write) -> None:
    profile = write("")
    layer = conv_layer(4, 6, size=8, bias_parameters=6)
    plain = 4 * 6 * 9 * 4
    assert value("weight_memory", profile, layer, W4A8) == plain
    assert value("weight_memory", profile, layer, W4A8, scales=True) == plain + 32
    assert value("weight_memory", profile, layer, W4A8, per_channel=True) == plain + 6 * 32
    assert value("weight_memory", profile, layer, W4A8, scales=True, biases=True) == plain + 32 + 6 * 32


def test_simd_padding_costs_64_48ths() -> None:
    layer = conv_layer(16, 48, size=8)
    assert value("weight_memory", "imx500", layer, W4A8, padding=True) * 48 == layer.parameters * 4 * 64
    assert value("weight_memory", "imx500", layer, W8A8, padding=True) == layer.parameters * 8 * 64 / 48
    assert value("weight_memory", "imx500", conv_layer(16, 64, size=8), W4A8, padding=True) == 16 * 64 * 9 * 4


def test_a_shared_weight_counts_once() -> None:
    borrowed = conv_layer(4, 4, size=8, parameters=0, shares_weight_with="other")
    assert value("weight_memory", "generic", borrowed, W4A8, scales=True) == 0


def test_what_memory_needs_is_named(write: Write) -> None:
    profile = write("precisions: {weights: [int8], activations: [int8]}\n")
    with pytest.raises(
        MissingFigureError,
        match=r"profile 'board' has no precisions.bias_bits, which the cost model 'weight_memory' needs",
    ):
        value("weight_memory", profile, biases=True)
    with pytest.raises(MissingFigureError, match=r"no precisions.simd_channels"):
        value("weight_memory", profile, padding=True)
    with pytest.raises(MissingFigureError, match=r"no memory level 'rom'"):
        value("weight_memory", profile, level="rom")


def test_flash_and_ram_have_the_capacity_of_their_memories() -> None:
    flash = tabulate("flash", "stm32h743")
    assert flash.capacity is not None
    assert (flash.capacity.level, flash.capacity.bits) == ("flash", 8 * 2**21)
    assert any(use.path == "memory.flash.size_bytes" for use in flash.figures)
    with pytest.raises(
        MissingFigureError, match=r"'generic' has no memory.dram.size_bytes, which the cost model 'flash'"
    ):
        tabulate("flash", "generic")
    with pytest.raises(
        MissingFigureError, match="no memory that holds weights, which the cost model 'flash' needs"
    ):
        tabulate("flash", "mpic")


def test_the_farthest_memory_that_holds_weights_stores_them() -> None:
    table = tabulate("flash", "gap8")
    assert table.capacity is not None
    assert table.capacity.level == "l3"


def test_shared_memory_is_remarked_upon() -> None:
    assert "holds the activations as well" in tabulate("flash", "imx500").notes[-1]


# Latency


RATES = """
sources: {d: {kind: vendor_doc, title: data sheet}}
clock: {core: {value: 100 MHz, kind: datasheet, src: d}}
compute:
  kind: datasheet
  src: [d]
  table:
    - {macs_per_cycle: 1}
    - {w: int4, macs_per_cycle: 2}
    - {op: conv2d, macs_per_cycle: 4}
    - {op: conv2d, kernel_size: 1, macs_per_cycle: 8}
    - {op: [dwconv2d, linear], w: int8, a: int8, macs_per_cycle: 16}
"""


@pytest.mark.parametrize(
    ("layer", "at", "rate"),
    [
        (conv_layer(8, 8, size=8), W8A8, 4),
        (conv_layer(8, 8, size=8), W4A8, 4),  # the operation counts more than the width
        (conv_layer(8, 8, size=8, kernel_size=1), W8A8, 8),
        (conv_layer(8, 8, size=8, groups=8), W8A8, 16),
        (conv_layer(8, 8, size=8, groups=8), W4A8, 2),
        (linear_layer(8, 8), W8A8, 16),
        (linear_layer(8, 8), W2A8, 1),
    ],
)
def test_the_row_that_says_most_wins(layer: Layer, at: Precision, rate: float, write: Write) -> None:
    profile = write(RATES)
    assert value("throughput_table", profile, layer, at) == pytest.approx(layer.macs / rate / 1e5)


def test_depthwise_does_not_take_the_rate_of_convolutions(write: Write) -> None:
    body = "clock: {core_hz: {value: 1, kind: assumed}}\ncompute: {kind: assumed, table: [{op: conv2d, macs_per_cycle: 1}]}\n"
    with pytest.raises(
        MissingFigureError,
        match=r"no compute.table row for dwconv2d 3x3 at int8×int8, which the cost model 'throughput_table' needs",
    ):
        value("throughput_table", write(body), conv_layer(8, 8, size=8, groups=8))


def test_units_and_efficiency_count(write: Write) -> None:
    body = """
clock: {core_hz: {value: 1.0e+6, kind: assumed}}
compute: {units: 4, kind: assumed, efficiency: 0.5, table: [{macs_per_cycle: 2}]}
"""
    assert value("throughput_table", write(body)) == pytest.approx(CONV.macs / (4 * 0.5 * 2 * 1e6) * 1e3)


def test_rates_per_second_need_no_clock(write: Write) -> None:
    body = "compute: {kind: assumed, table: [{macs_per_s: 4 TOPS}]}\n"
    assert value("throughput_table", write(body)) == pytest.approx(CONV.macs / 2e12 * 1e3)


ROOFLINE = """
clock: {core_hz: {value: 1.0e+9, kind: assumed}}
compute: {kind: assumed, table: [{macs_per_cycle: 1.0e+6}]}
memory:
  - {name: sram, kind: assumed, bandwidth_bytes_per_s: 1.0e+9, holds: [activations]}
  - {name: flash, kind: assumed, bytes_per_cycle: 0.1, holds: [weights]}
"""


def test_memories_work_side_by_side(write: Write) -> None:
    profile = write(ROOFLINE)
    activations = 2 * 200_704 / 1e9 * 1e3
    assert value("roofline", profile, at=W2A8) == pytest.approx(activations)
    assert value("roofline", profile, linear_layer(4096, 4096), W8A8) == pytest.approx(4096**2 / 1e8 * 1e3)
    assert value("roofline", profile, linear_layer(4096, 4096), W2A8) == pytest.approx(
        4096**2 / 4 / 1e8 * 1e3
    )


def test_weights_on_chip_gain_no_time_from_fewer_bits(write: Write) -> None:
    profile = write(ROOFLINE.replace("bytes_per_cycle: 0.1", "on_chip: true"))
    table = tabulate("roofline", profile, linear_layer(4096, 4096), bits=(W2A8, W8A8))
    assert table.is_flat


def test_a_bandwidth_that_is_not_known_is_not_infinite(write: Write) -> None:
    profile = write(ROOFLINE.replace("bytes_per_cycle: 0.1, ", ""))
    with pytest.raises(
        MissingFigureError, match=r"no memory.flash.bandwidth_bytes_per_s, which the cost model 'roofline'"
    ):
        value("roofline", profile)
    assert value("roofline", profile, weights_in="sram") > 0


def test_layers_that_run_twice_cost_twice() -> None:
    twice = conv_layer(64, 64, size=56, macs=2 * CONV.macs, calls=2)
    for name, target in (
        ("bit_serial", "pynq_z1_bismo"),
        ("gap8", "gap8"),
        ("ne16", "gap9_ne16"),
        ("latency", "mpic"),
    ):
        assert value(name, target, twice) == pytest.approx(2 * value(name, target))
    assert value(
        "roofline", "jetson_nano", twice, Precision(weight_bits=4, activation_bits=16)
    ) == pytest.approx(2 * value("roofline", "jetson_nano", at=Precision(weight_bits=4, activation_bits=16)))


def test_groups_are_separate_products() -> None:
    grouped = conv_layer(64, 64, size=8, groups=4)
    part = conv_layer(16, 16, size=8)
    for name, target in (("bit_serial", "pynq_z1_bismo"), ("gap8", "gap8")):
        assert value(name, target, grouped) == pytest.approx(4 * value(name, target, part))


@pytest.mark.parametrize(
    ("layer", "cycles"),
    [
        # 9 pixels in one tile; it(16) = 1 * (31 + 6 + 6 + 16*8 + 2) + 25 + 13
        (conv_layer(16, 16, size=3), 173 + 38),
        # 1x1: load 19, mv = 6 + k
        (conv_layer(16, 16, size=3, kernel_size=1), 19 + 6 + 22 + 2 + 25 + 13),
        # depthwise: load + (6+k) + (6+8k) + 2 + (9+k) + 13
        (conv_layer(16, 16, size=3, groups=16), 31 + 22 + 134 + 2 + 25 + 13),
        # 40 outputs: a block of 32 and one of 8
        (conv_layer(16, 40, size=3), (31 + 6 + 6 + 256 + 2 + 41 + 13) + (31 + 6 + 6 + 64 + 2 + 17 + 13)),
        (linear_layer(16, 16), 19 + 6 + 22 + 2 + 25 + 13),
    ],
)
def test_ne16_by_hand(layer: Layer, cycles: int) -> None:
    assert value("ne16", "gap9_ne16", layer) == pytest.approx(cycles / 370e6 * 1e3)


@pytest.mark.parametrize(
    ("layer", "cycles"),
    [
        (conv_layer(8, 8, size=8, groups=8), 4 * 2 * 64 * 9),
        (linear_layer(10, 10), 5 * 3),
        (linear_layer(10, 10, tokens=7), 5 * 3 * 7),
        (conv_layer(4, 4, size=4, kernel_size=1), 2 * 1 * (2 * 4 + 1 * (15 + 14))),
    ],
)
def test_gap8_by_hand(layer: Layer, cycles: int) -> None:
    assert value("gap8", "gap8", layer) == pytest.approx(cycles / 175e6 * 1e3)


def test_ne16_has_no_5x5_filter_unless_the_profile_sends_it_to_the_cluster() -> None:
    layer = conv_layer(16, 16, size=8, kernel_size=5)
    with pytest.raises(
        UnsupportedLayerError,
        match="layer 'conv': NE16 has 1x1, 3x3 and depthwise 3x3 filters, not conv2d 5x5",
    ):
        value("ne16", "gap9_ne16", layer)
    table = tabulate("latency", "gap9_ne16", layer)
    assert "cluster, GAP8 formula" in table.origins["conv"][W8A8]
    assert "conv" not in tabulate("latency", "gap9_ne16").origins


@pytest.mark.parametrize(
    ("name", "target", "precision", "message"),
    [
        (
            "bit_serial",
            "generic",
            Precision(weight_bits=4, activation_bits=32),
            "compute.array of type bit_serial",
        ),
        ("ne16", "generic", Precision(weight_bits=16, activation_bits=8), "clock.core_hz"),
        ("gap8", "coral_edge_tpu", W8A8, "clock.core_hz"),
        ("energy", "stm32f746", W8A8, "has no cost_models.energy, which the cost model 'energy' needs"),
        ("latency", "generic", W8A8, "has no cost_models.latency"),
        ("power_time", "imx500", W8A8, "power.active_w"),
        ("energy_per_op", "mpic", W8A8, "power.energy_pj_per_op"),
        ("mac_energy", "mpic", W8A8, "memory that holds weights"),
        ("lookup_table", "mpic", W8A8, "lookup_tables"),
        ("bit_fusion", "pynq_z1_bismo", W8A8, "compute.array of type bit_fusion"),
    ],
)
def test_a_missing_figure_names_profile_field_and_model(
    name: str, target: str, precision: Precision, message: str
) -> None:
    with pytest.raises(MissingFigureError, match=message) as caught:
        value(name, target, at=precision)
    assert caught.value.profile == target
    assert target in str(caught.value)


def test_pairs_outside_the_profile_raise() -> None:
    with pytest.raises(
        UnsupportedPrecisionError, match="'coral_edge_tpu' does not run conv2d at W4A8; it runs W8A8"
    ):
        value("memory", "coral_edge_tpu", at=W4A8)


def test_promoted_pairs_are_costed_as_they_run_and_shown() -> None:
    w3 = Precision(weight_bits=3, activation_bits=3)
    w4 = Precision(weight_bits=4, activation_bits=4)
    for name in ("memory", "latency", "energy"):
        table = tabulate(name, "mpic", bits=[w3, w4])
        assert table["conv"][w3] == table["conv"][w4]
    assert tabulate("memory", "mpic", bits=[w3, w4]).origins == {"conv": {w3: "runs as W4A4"}}


def test_floats_do_not_run_on_bit_serial_hardware(write: Write) -> None:
    body = """
precisions: {weights: [int8], activations: [fp16]}
clock: {core_hz: {value: 1, kind: assumed}}
compute: {array: {type: bit_serial, dims: [8, 8, 8]}}
"""
    with pytest.raises(
        UnsupportedPrecisionError,
        match="layer 'conv': the cost model 'bit_serial' knows integers, not int8×fp16",
    ):
        value("bit_serial", write(body), at=Precision(weight_bits=8, activation_bits=16))


# Energy


def test_traffic_energy_counts_weights_inputs_and_outputs() -> None:
    bits = 36_864 * 4 + 2 * 200_704 * 8
    with_traffic = value("mac_energy", "generic", at=W4A8)
    assert with_traffic - value("mac_energy", "generic", at=W4A8, traffic=False) == pytest.approx(
        bits * 20.3125e-6
    )
    assert value("energy", "generic", at=W4A8) == with_traffic


def test_floating_point_macs_have_their_own_energy() -> None:
    full = Precision(weight_bits=32, activation_bits=32)
    assert value("mac_energy", "generic", at=full, traffic=False) == pytest.approx(CONV.macs * 4.6e-6)


def test_energy_may_come_from_a_table_of_the_profile(write: Write) -> None:
    body = "energy: {kind: assumed, table: [{pj_per_mac: 2}, {w: int4, pj_per_mac: 1.5}]}\n"
    profile = write(body)
    assert value("mac_energy", profile, mac="table", traffic=False) == pytest.approx(CONV.macs * 2e-6)
    assert value("mac_energy", profile, at=W4A8, mac="table", traffic=False) == pytest.approx(
        CONV.macs * 1.5e-6
    )


def test_the_unverified_formula_is_marked_uncertain() -> None:
    table = tabulate("mac_energy", "generic", mac="vasquez2021")
    assert [use.path for use in table.doubtful_figures] == ["mac_energy.vasquez2021"]


def test_power_time_uses_active_power_or_the_boards_budget() -> None:
    half = Precision(weight_bits=16, activation_bits=16)
    table = tabulate("energy", "jetson_nano", bits=[half])
    assert table["conv"][half] == pytest.approx(10 * 490.0)  # 10 W for 490 us
    assert "upper bound" in " ".join(table.notes)
    assert {"power.budget_w", "clock.core_hz"} <= {use.path for use in table.figures}


def test_doubtful_figures_are_listed() -> None:
    table = tabulate("latency", "raspberry_pi_4")
    assert {use.path: use.kind for use in table.doubtful_figures} == {
        "compute.efficiency": "assumed",
        "compute.table.1.macs_per_cycle": "uncertain",
    }


# Lookup tables


def lookup(write: Write, miss: str = "error", **changes: Any) -> HardwareProfile:
    def entry(channels: int, at: int, microseconds: float, **more: Any) -> dict[str, Any]:
        return {
            "op": "conv2d",
            "in_channels": channels,
            "out_channels": channels,
            "kernel_size": [3, 3],
            "stride": [1, 1],
            "groups": 1,
            "out_h": 8,
            "out_w": 8,
            "w_bits": at,
            "a_bits": 8,
            "macs": channels * channels * 9 * 64,
            "value": microseconds,
            **more,
        }

    table = {
        "schema": "hwbmpq/lut/v1",
        "device": "a device",
        "runtime": "a runtime",
        "source": {"title": "measured"},
        "unit": "us",
        "key": [
            "op",
            "in_channels",
            "out_channels",
            "kernel_size",
            "stride",
            "groups",
            "out_h",
            "out_w",
            "w_bits",
            "a_bits",
        ],
        "entries": [entry(8, 8, 10), entry(16, 8, 30), entry(8, 4, 7)],
        **changes,
    }
    body = f"""
precisions:
  pairs: [{{w: int8, a: int8}}, {{w: int4, a: int8}}, {{w: int2, a: int8, compute: int8}}]
lookup_tables: [{{id: t, file: t.json, miss: {miss}}}]
cost_models: {{latency: {{model: lookup_table}}}}
"""
    return write(body, t=table)


def test_an_exact_entry_is_taken(write: Write) -> None:
    table = tabulate("latency", lookup(write), conv_layer(8, 8, size=8), bits=[W8A8, W4A8])
    assert (table["conv"][W8A8], table["conv"][W4A8]) == pytest.approx((0.010, 0.007))
    assert table.origins["conv"] == {W8A8: "measured", W4A8: "measured"}
    assert table.notes == ()


def test_a_miss_names_the_key(write: Write) -> None:
    with pytest.raises(
        UnsupportedLayerError,
        match="layer 'conv' is not in the lookup table of a device: op=conv2d in_channels=12 out_channels=12 kernel_size=3x3",
    ) as caught:
        tabulate("latency", lookup(write), conv_layer(12, 12, size=8))
    assert "miss: macs_scaled" in caught.value.hint


def test_a_neighbour_is_taken_or_scaled(write: Write) -> None:
    layer = conv_layer(12, 16, size=8)
    near = tabulate("latency", lookup(write, "nearest"), layer)
    assert near["conv"][W8A8] == pytest.approx(0.030)
    assert near.origins["conv"][W8A8] == "nearest: 16→16 channels"
    scaled = tabulate("latency", lookup(write, "macs_scaled"), layer)
    assert scaled["conv"][W8A8] == pytest.approx(0.030 * 12 / 16)
    assert scaled.origins["conv"][W8A8] == "scaled by MACs from 16→16 channels"
    assert "1 of 1 numbers are not measured" in scaled.notes[-1]


def test_extrapolation_and_other_strides_are_flagged(write: Write) -> None:
    profile = lookup(write, "macs_scaled")
    large = tabulate("latency", profile, conv_layer(64, 64, size=8))
    assert "extrapolated beyond the measured sizes" in large.origins["conv"][W8A8]
    strided = tabulate("latency", profile, conv_layer(8, 8, size=16, stride=2))
    assert "of another stride" in strided.origins["conv"][W8A8]


def test_another_kernel_is_no_neighbour(write: Write) -> None:
    with pytest.raises(UnsupportedLayerError, match="kernel_size=5x5") as caught:
        tabulate("latency", lookup(write, "nearest"), conv_layer(8, 8, size=8, kernel_size=5))
    assert "no entry of this operation, kernel, groups and widths at all" in caught.value.hint


def test_unpacked_weights_are_timed_as_what_they_are_unpacked_to(write: Write) -> None:
    table = tabulate("latency", lookup(write), conv_layer(8, 8, size=8), bits=[W2A8])
    assert table["conv"][W2A8] == pytest.approx(0.010)
    assert table.origins["conv"][W2A8] == "measured, timed as int8: weights are unpacked"


def test_cycles_need_a_clock_and_batches_are_said(write: Write) -> None:
    with pytest.raises(MissingFigureError, match=r"clock.core_hz"):
        tabulate("latency", lookup(write, unit="cycles"), conv_layer(8, 8, size=8))
    table = tabulate("latency", lookup(write, batch=8), conv_layer(8, 8, size=8))
    assert "measured and given for a batch of 8" in table.notes


def test_a_table_in_joules_is_an_energy(write: Write) -> None:
    table = tabulate("lookup_table", lookup(write, unit="nJ"), conv_layer(8, 8, size=8))
    assert (table.unit, table["conv"][W8A8]) == ("uJ", pytest.approx(0.010))


def test_stm32_layers_come_from_the_measurement() -> None:
    """The 24th layer of MobileNetV1 0.25 at 160: pointwise 128 to 256, 5x5."""
    layer = conv_layer(128, 256, size=5, kernel_size=1)
    assert value("latency", "stm32h743", layer) == pytest.approx(1_582_427 / 480e6 * 1e3)
    assert value("latency", "stm32h743@400mhz", layer) == pytest.approx(1_582_427 / 400e6 * 1e3)


# All of them


@pytest.mark.parametrize("name", sorted(cost_models()))
def test_no_model_invents_a_cost_for_a_profile_that_says_nothing(name: str, write: Write) -> None:
    """It needs nothing of the device (a count), or it raises and says what is missing."""
    counts = {"weight_memory", "memory", "bops", "layer_working_set"}
    profile = write("")
    if name in counts:
        assert tabulate(name, profile).total({"conv": W8A8}) > 0
    elif name == "activation_memory":
        with pytest.raises(UnsupportedLayerError):
            tabulate(name, profile)
    else:
        with pytest.raises(MissingFigureError, match="profile 'board' has no"):
            tabulate(name, profile)
