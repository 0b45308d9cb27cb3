"""Latency models, besides the reference vectors."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hwbmpq.costs import CostTable
from hwbmpq.errors import MissingFigureError, UnsupportedLayerError, UnsupportedPrecisionError
from hwbmpq.hardware import HardwareProfile, load_profile
from hwbmpq.testing import conv_layer, linear_layer
from hwbmpq.values import Layer, Precision

Write = Callable[..., HardwareProfile]
Tabulate = Callable[..., CostTable]
Value = Callable[..., float]
W2A8, W4A8, W8A8 = (Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4, 8))
CONV = conv_layer(64, 64, size=56)


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
def test_the_row_that_says_most_wins(
    layer: Layer, at: Precision, rate: float, write: Write, value: Value
) -> None:
    profile = write(RATES)
    assert value("throughput_table", profile, layer, at) == pytest.approx(layer.macs / rate / 1e5)


def test_depthwise_does_not_take_the_rate_of_convolutions(write: Write, value: Value) -> None:
    body = "clock: {core_hz: {value: 1, kind: assumed}}\ncompute: {kind: assumed, table: [{op: conv2d, macs_per_cycle: 1}]}\n"
    with pytest.raises(
        MissingFigureError,
        match=r"no compute.table row for dwconv2d 3x3 at int8×int8, which the cost model 'throughput_table' needs",
    ):
        value("throughput_table", write(body), conv_layer(8, 8, size=8, groups=8))


def test_units_and_efficiency_count(write: Write, value: Value) -> None:
    body = """
clock: {core_hz: {value: 1.0e+6, kind: assumed}}
compute: {units: 4, kind: assumed, efficiency: 0.5, table: [{macs_per_cycle: 2}]}
"""
    assert value("throughput_table", write(body)) == pytest.approx(CONV.macs / (4 * 0.5 * 2 * 1e6) * 1e3)


def test_rates_per_second_need_no_clock(write: Write, value: Value) -> None:
    body = "compute: {kind: assumed, table: [{macs_per_s: 4 TOPS}]}\n"
    assert value("throughput_table", write(body)) == pytest.approx(CONV.macs / 2e12 * 1e3)


ROOFLINE = """
clock: {core_hz: {value: 1.0e+9, kind: assumed}}
compute: {kind: assumed, table: [{macs_per_cycle: 1.0e+6}]}
memory:
  - {name: sram, kind: assumed, bandwidth_bytes_per_s: 1.0e+9, holds: [activations]}
  - {name: flash, kind: assumed, bytes_per_cycle: 0.1, holds: [weights]}
"""


def test_memories_work_side_by_side(write: Write, value: Value) -> None:
    profile = write(ROOFLINE)
    activations = 2 * 200_704 / 1e9 * 1e3
    assert value("roofline", profile, at=W2A8) == pytest.approx(activations)
    assert value("roofline", profile, linear_layer(4096, 4096), W8A8) == pytest.approx(4096**2 / 1e8 * 1e3)
    assert value("roofline", profile, linear_layer(4096, 4096), W2A8) == pytest.approx(
        4096**2 / 4 / 1e8 * 1e3
    )


def test_weights_on_chip_gain_no_time_from_fewer_bits(write: Write, tabulate: Tabulate) -> None:
    profile = write(ROOFLINE.replace("bytes_per_cycle: 0.1", "on_chip: true"))
    table = tabulate("roofline", profile, linear_layer(4096, 4096), bits=(W2A8, W8A8))
    assert table.is_flat


def test_a_bandwidth_that_is_not_known_is_not_infinite(write: Write, value: Value) -> None:
    profile = write(ROOFLINE.replace("bytes_per_cycle: 0.1, ", ""))
    with pytest.raises(
        MissingFigureError, match=r"no memory.flash.bandwidth_bytes_per_s, which the cost model 'roofline'"
    ):
        value("roofline", profile)
    assert value("roofline", profile, weights_in="sram") > 0


def test_layers_that_run_twice_cost_twice(value: Value) -> None:
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


def test_groups_are_separate_products(value: Value) -> None:
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
def test_ne16_by_hand(layer: Layer, cycles: int, value: Value) -> None:
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
def test_gap8_by_hand(layer: Layer, cycles: int, value: Value) -> None:
    assert value("gap8", "gap8", layer) == pytest.approx(cycles / 175e6 * 1e3)


def test_ne16_has_no_5x5_filter_unless_the_profile_sends_it_to_the_cluster(
    value: Value, tabulate: Tabulate
) -> None:
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
        ("mac_energy", "mpic", W8A8, r"precisions.accumulator_bits"),
        ("lookup_table", "mpic", W8A8, "lookup_tables"),
        ("bit_fusion", "pynq_z1_bismo", W8A8, "compute.array of type bit_fusion"),
    ],
)
def test_a_missing_figure_names_profile_field_and_model(
    name: str, target: str, precision: Precision, message: str, value: Value
) -> None:
    with pytest.raises(MissingFigureError, match=message) as caught:
        value(name, target, at=precision)
    assert caught.value.profile == target
    assert target in str(caught.value)


def test_pairs_outside_the_profile_raise(value: Value) -> None:
    with pytest.raises(
        UnsupportedPrecisionError, match="'coral_edge_tpu' does not run conv2d at W4A8; it runs W8A8"
    ):
        value("memory", "coral_edge_tpu", at=W4A8)


def test_promoted_pairs_are_costed_as_they_run_and_shown(tabulate: Tabulate) -> None:
    w3 = Precision(weight_bits=3, activation_bits=3)
    w4 = Precision(weight_bits=4, activation_bits=4)
    for name in ("memory", "latency", "energy"):
        table = tabulate(name, "mpic", bits=[w3, w4])
        assert table["conv"][w3] == table["conv"][w4]
    assert tabulate("memory", "mpic", bits=[w3, w4]).origins == {"conv": {w3: "W3A3 runs as W4A4"}}


def test_floats_do_not_run_on_bit_serial_hardware(write: Write, value: Value) -> None:
    body = """
precisions: {weights: [int8], activations: [fp16]}
clock: {core_hz: {value: 1, kind: assumed}}
compute: {array: {type: bit_serial, dims: [8, 8, 8], kind: assumed}}
"""
    with pytest.raises(
        UnsupportedPrecisionError,
        match="layer 'conv': the cost model 'bit_serial' knows integers, not int8×fp16",
    ):
        value("bit_serial", write(body), at=Precision(weight_bits=8, activation_bits=16))


def test_a_given_bandwidth_wins_over_on_chip_and_over_bytes_per_cycle(write: Write, value: Value) -> None:
    layer = linear_layer(4096, 4096)
    slow = "bandwidth_bytes_per_s: 1.0e+6, kind: assumed"
    for extra in ("on_chip: true", "bytes_per_cycle: 1000"):
        profile = write(
            ROOFLINE.replace("bytes_per_cycle: 0.1", f"{slow}, {extra}").replace(
                "kind: assumed, bandwidth_bytes_per_s: 1.0e+6, kind", "bandwidth_bytes_per_s: 1.0e+6, kind"
            )
        )
        assert value("roofline", profile, layer) == pytest.approx(4096**2 / 1e6 * 1e3)


def test_activations_may_be_elsewhere(write: Write, value: Value) -> None:
    profile = write(ROOFLINE)
    both = (36_864 + 2 * 200_704) / 1e8 * 1e3  # all through the flash
    assert value("roofline", profile, activations_in="flash") == pytest.approx(both)


def test_transposed_convolutions_scatter_each_input(value: Value) -> None:
    layer = replace(
        conv_layer(8, 24, size=10),
        kind="conv_transpose2d",
        weight_shape=(8, 24, 3, 3),
        input_shape=(1, 8, 5, 5),
        output_shape=(1, 24, 10, 10),
        macs=25 * 8 * 24 * 9,
    )
    # M = 25 inputs, N = 24 * 9, K = 8 on an 8 x 256 x 8 array
    assert value("bit_serial", "pynq_z1_bismo", layer) == pytest.approx(4 * 27 * 1 * 64 / 200e6 * 1e3)
    with pytest.raises(
        UnsupportedLayerError, match="layer 'conv': the cost model 'gap8' has no formula for conv_transpose2d"
    ):
        value("gap8", "gap8", layer)


def test_one_dimensional_convolutions_have_height_1(value: Value) -> None:
    layer = replace(
        conv_layer(8, 8, size=8),
        kind="conv1d",
        kernel_size=(3,),
        stride=(1,),
        weight_shape=(8, 8, 3),
        input_shape=(1, 8, 20),
        output_shape=(1, 8, 20),
        macs=20 * 8 * 8 * 3,
    )
    assert value("gap8", "gap8", layer) == pytest.approx(10 * 1 * (2 * 24 + 2 * (15 + 14 * 6)) / 175e6 * 1e3)


def test_borrowed_weights_are_read_all_the_same(write: Write, value: Value) -> None:
    own = linear_layer(4096, 4096)
    borrowed = replace(own, parameters=0, shares_weight_with="other")
    assert value("roofline", write(ROOFLINE), borrowed) == value("roofline", write(ROOFLINE), own)


def test_calls_of_different_shapes_cost_their_share(value: Value) -> None:
    layer = conv_layer(16, 16, size=6)
    more = replace(layer, macs=layer.macs * 5 // 2, calls=2)
    assert value("gap8", "gap8", more) == pytest.approx(2.5 * value("gap8", "gap8", layer))


FUSION = """
precisions: {weights: [int2, int4, int8, int16], activations: [int2, int4, int8, int16]}
clock: {core_hz: {value: 1.0e+6, kind: assumed}}
compute: {array: {type: bit_fusion, dims: [16, 32], kind: assumed}}
"""


def test_bit_fusion_by_hand(write: Write, value: Value) -> None:
    profile = write(FUSION)
    # direct: 2 groups * ceil(8 / 32) * 64 pixels * 9 * ceil(8 / 16)
    grouped = conv_layer(16, 16, size=8, groups=2)
    assert value("bit_fusion", profile, grouped) == pytest.approx(2 * 1 * 64 * 9 * 1 / 1e3)
    assert value("bit_fusion", profile, replace(grouped, macs=2 * grouped.macs, calls=2)) == pytest.approx(
        2 * 2 * 576 / 1e3
    )
    # im2col: ceil(9 * 8 / 16) instead of 9 * ceil(8 / 16)
    assert value("bit_fusion", profile, grouped, mapping="im2col") == pytest.approx(2 * 64 * 5 / 1e3)
    with pytest.raises(
        UnsupportedPrecisionError, match="'bit_fusion' knows integers of at most 8 bits, not int16×int16"
    ):
        value("bit_fusion", profile, at=Precision(weight_bits=16, activation_bits=16))


def test_ne16_depthwise_has_a_rest(value: Value) -> None:
    def block(channels: int) -> int:
        return 31 + (6 + channels) + (6 + 8 * channels) + 2 + (9 + channels) + 13

    layer = conv_layer(20, 20, size=3, groups=20)
    assert value("ne16", "gap9_ne16", layer) == pytest.approx((block(16) + block(4)) / 370e6 * 1e3)


def test_ne16_takes_8_bit_activations_and_plain_filters(value: Value) -> None:
    for widths in ((8, 16), (16, 8)):
        precision = Precision(weight_bits=widths[0], activation_bits=widths[1])
        profile = load_profile("pynq_z1_bismo")
        with pytest.raises(
            UnsupportedPrecisionError, match="'ne16' knows 2 to 8-bit weights with 8-bit activations"
        ):
            value("ne16", profile, at=precision)
    with pytest.raises(UnsupportedLayerError, match="with 2 groups"):
        value("ne16", "gap9_ne16", conv_layer(16, 16, size=8, groups=2))


def test_what_ne16_cannot_do_takes_as_long_as_on_gap8s_cluster(value: Value) -> None:
    layer = conv_layer(16, 16, size=8, kernel_size=5)
    assert value("latency", "gap9_ne16", layer) == pytest.approx(value("gap8", "gap8", layer) * 175 / 370)


def test_gap8_depthwise_rounds_channels_up(value: Value) -> None:
    assert value("gap8", "gap8", conv_layer(6, 6, size=8, groups=6)) == pytest.approx(
        4 * 2 * 64 * 9 / 175e6 * 1e3
    )


def test_a_grouped_layer_is_no_depthwise_one(write: Write, tabulate: Tabulate) -> None:
    profile = write(RATES)
    grouped = conv_layer(8, 8, size=8, groups=2)
    table = tabulate("throughput_table", profile, grouped)
    assert table["conv"][W8A8] == pytest.approx(grouped.macs / 4 / 1e5)
    assert {use.path: use.sources for use in table.figures} == {
        "compute.table.2.macs_per_cycle": ("d",),
        "clock.core_hz": ("d",),
    }


def test_integers_and_floats_of_one_width_have_their_own_rows(write: Write, value: Value) -> None:
    body = """
precisions: {weights: [int8, fp16], activations: [int8, fp16]}
clock: {core_hz: {value: 1.0e+6, kind: assumed}}
compute: {kind: assumed, table: [{w: int16, a: int16, macs_per_cycle: 9}, {w: fp16, a: fp16, macs_per_cycle: 2}, {w: int8, a: int8, macs_per_cycle: 4}]}
"""
    half = Precision(weight_bits=16, activation_bits=16)
    assert value("throughput_table", write(body), at=half) == pytest.approx(CONV.macs / 2 / 1e3)
