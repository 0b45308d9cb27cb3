"""Lookup tables."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hwbmpq.costs import CostTable
from hwbmpq.errors import MissingFigureError, UnsupportedLayerError
from hwbmpq.hardware import HardwareProfile, load_profile
from hwbmpq.testing import conv_layer, linear_layer
from hwbmpq.values import Precision

Write = Callable[..., HardwareProfile]
Tabulate = Callable[..., CostTable]
Value = Callable[..., float]
W2A8, W4A8, W8A8 = (Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4, 8))
CONV = conv_layer(64, 64, size=56)


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
lookup_tables: [{{id: t, file: t.json, miss: {miss}, kind: assumed}}]
cost_models: {{latency: {{model: lookup_table}}}}
"""
    return write(body, t=table)


def test_an_exact_entry_is_taken(write: Write, tabulate: Tabulate) -> None:
    table = tabulate("latency", lookup(write), conv_layer(8, 8, size=8), bits=[W8A8, W4A8])
    assert (table["conv"][W8A8], table["conv"][W4A8]) == pytest.approx((0.010, 0.007))
    assert table.origins["conv"] == {W8A8: "measured", W4A8: "measured"}
    assert table.notes == ()


def test_a_miss_names_the_key(write: Write, tabulate: Tabulate) -> None:
    with pytest.raises(
        UnsupportedLayerError,
        match="layer 'conv' is not in the lookup table of a device: op=conv2d in_channels=12 out_channels=12 kernel_size=3x3",
    ) as caught:
        tabulate("latency", lookup(write), conv_layer(12, 12, size=8))
    assert "miss: macs_scaled" in caught.value.hint


def test_a_neighbour_is_taken_or_scaled(write: Write, tabulate: Tabulate) -> None:
    layer = conv_layer(12, 16, size=8)
    near = tabulate("latency", lookup(write, "nearest"), layer)
    assert near["conv"][W8A8] == pytest.approx(0.030)
    assert near.origins["conv"][W8A8] == "nearest: 16→16 channels"
    scaled = tabulate("latency", lookup(write, "macs_scaled"), layer)
    assert scaled["conv"][W8A8] == pytest.approx(0.030 * 12 / 16)
    assert scaled.origins["conv"][W8A8] == "scaled by MACs from 16→16 channels"
    assert "1 of 1 numbers are taken from neighbours in the table" in scaled.notes


def test_extrapolation_and_other_strides_are_flagged(write: Write, tabulate: Tabulate) -> None:
    profile = lookup(write, "macs_scaled")
    large = tabulate("latency", profile, conv_layer(64, 64, size=8))
    assert "extrapolated beyond the measured sizes" in large.origins["conv"][W8A8]
    strided = tabulate("latency", profile, conv_layer(8, 8, size=16, stride=2))
    assert "of another stride" in strided.origins["conv"][W8A8]


def test_another_kernel_is_no_neighbour_and_is_scaled_by_macs(write: Write, tabulate: Tabulate) -> None:
    layer = conv_layer(8, 8, size=8, kernel_size=5)
    table = tabulate("latency", lookup(write, "nearest"), layer)
    # 102,400 MACs are nearer to the entry of 147,456 (30 us) than to that of 36,864 (10 us).
    assert table["conv"][W8A8] == pytest.approx(0.030 * 102_400 / 147_456)
    assert table.origins["conv"][W8A8] == "scaled by MACs from conv2d 3x3"
    assert table.estimated == ("conv",)


def test_another_operation_is_scaled_by_macs(write: Write, tabulate: Tabulate) -> None:
    table = tabulate("latency", lookup(write, "macs_scaled"), linear_layer(64, 64))
    assert table["linear"][W8A8] == pytest.approx(0.010 * 64 * 64 / (8 * 8 * 9 * 64))
    assert table.origins["linear"][W8A8] == "scaled by MACs from conv2d 3x3"
    assert table.estimated == ("linear",)


def test_a_depthwise_layer_is_not_scaled_from_others(write: Write, tabulate: Tabulate) -> None:
    with pytest.raises(UnsupportedLayerError, match="op=dwconv2d") as caught:
        tabulate("latency", lookup(write, "macs_scaled"), conv_layer(8, 8, size=8, groups=8))
    assert "no entry of this kind and these widths at all" in caught.value.hint


def test_unpacked_weights_are_timed_as_what_they_are_unpacked_to(write: Write, tabulate: Tabulate) -> None:
    table = tabulate("latency", lookup(write), conv_layer(8, 8, size=8), bits=[W2A8])
    assert table["conv"][W2A8] == pytest.approx(0.010)
    assert table.origins["conv"][W2A8] == "measured, timed as int8: weights are unpacked"


def test_cycles_need_a_clock_and_batches_are_said(write: Write, tabulate: Tabulate) -> None:
    with pytest.raises(MissingFigureError, match=r"clock.core_hz"):
        tabulate("latency", lookup(write, unit="cycles"), conv_layer(8, 8, size=8))
    layer = conv_layer(8, 8, size=8)
    table = tabulate("latency", lookup(write, batch=8), layer)
    assert table["conv"][W8A8] == pytest.approx(0.010 / 8)
    assert "measured with a batch of 8, given for one input of it" in table.notes[0]
    whole = tabulate("lookup_table", lookup(write, batch=8), layer, per="batch")
    assert whole["conv"][W8A8] == pytest.approx(0.010)
    assert whole.notes == ("measured and given for a batch of 8",)


def test_a_table_in_joules_is_an_energy(write: Write, tabulate: Tabulate) -> None:
    table = tabulate("lookup_table", lookup(write, unit="nJ"), conv_layer(8, 8, size=8))
    assert (table.unit, table["conv"][W8A8]) == ("uJ", pytest.approx(0.010))


def test_stm32_layers_come_from_the_measurement(value: Value) -> None:
    """The 24th layer of MobileNetV1 0.25 at 160: pointwise 128 to 256, 5x5."""
    layer = conv_layer(128, 256, size=5, kernel_size=1)
    assert value("latency", "stm32h743", layer) == pytest.approx(1_582_427 / 480e6 * 1e3)
    assert value("latency", "stm32h743@400mhz", layer) == pytest.approx(1_582_427 / 400e6 * 1e3)


def test_a_key_that_leaves_out_tokens_does_not_match_more_work(write: Write, tabulate: Tabulate) -> None:
    tokens = {
        "op": "linear",
        "w_bits": 8,
        "a_bits": 8,
        "in_channels": 8,
        "out_channels": 8,
        "macs": 64,
        "value": 5,
    }
    key = ["op", "in_channels", "out_channels", "w_bits", "a_bits"]
    profile = lookup(write, "macs_scaled", entries=[tokens], key=key)
    assert tabulate("latency", profile, linear_layer(8, 8))["linear"][W8A8] == pytest.approx(0.005)
    many = tabulate("latency", profile, linear_layer(8, 8, tokens=10))
    assert many["linear"][W8A8] == pytest.approx(0.050)
    assert many.origins["linear"][W8A8].startswith("scaled by MACs")


def test_a_dilated_layer_is_not_the_plain_one(write: Write, tabulate: Tabulate) -> None:
    layer = conv_layer(8, 8, size=8, dilation=(2, 2))
    with pytest.raises(UnsupportedLayerError, match="is not in the lookup table"):
        tabulate("latency", lookup(write), layer)


def test_a_kernel_of_the_users_own_is_not_timed_as_another(write: Write, tabulate: Tabulate) -> None:
    profile = load_profile("jetson_nano")
    assert all(pair.kernel == "user" for pair in profile.pairs if not pair.weight.is_float)
    body = """
precisions: {pairs: [{w: int8, a: int8}, {w: int4, a: int8, compute: int8, kernel: user}]}
lookup_tables: [{id: t, file: t.json, kind: assumed, miss: nearest}]
"""
    table = {
        "schema": "hwbmpq/lut/v1",
        "device": "d",
        "runtime": "r",
        "source": {},
        "unit": "us",
        "key": ["op", "w_bits", "a_bits"],
        "entries": [{"op": "conv2d", "w_bits": 8, "a_bits": 8, "macs": 36864, "value": 1}],
    }
    with pytest.raises(UnsupportedLayerError, match="w_bits=4"):
        tabulate("lookup_table", write(body, t=table), conv_layer(8, 8, size=8), bits=[W4A8])


def test_layers_that_run_twice_cost_twice(write: Write, tabulate: Tabulate) -> None:
    once, twice = conv_layer(8, 8, size=8), conv_layer(8, 8, size=8, macs=2 * 8 * 8 * 9 * 64, calls=2)
    for miss in ("error", "macs_scaled"):
        profile = lookup(write, miss)
        assert tabulate("latency", profile, twice)["conv"][W8A8] == pytest.approx(
            2 * tabulate("latency", profile, once)["conv"][W8A8]
        )
    scaled = tabulate(
        "latency",
        lookup(write, "macs_scaled"),
        conv_layer(12, 16, size=8, macs=2 * 12 * 16 * 9 * 64, calls=2),
    )
    assert scaled["conv"][W8A8] == pytest.approx(2 * 0.030 * 12 / 16)


def test_the_option_miss_wins_over_the_profile(write: Write, tabulate: Tabulate) -> None:
    table = tabulate("lookup_table", lookup(write), conv_layer(12, 16, size=8), miss="nearest")
    assert table["conv"][W8A8] == pytest.approx(0.030)


def test_of_several_tables_one_must_be_chosen(tabulate: Tabulate) -> None:
    with pytest.raises(
        MissingFigureError, match=r"choice of a lookup table .`table:` one of layers, matmulnbits."
    ):
        tabulate("lookup_table", "x86_onnxruntime")
    table = tabulate(
        "lookup_table",
        "x86_onnxruntime",
        linear_layer(4096, 4096),
        bits=[Precision(weight_bits=4, activation_bits=32)],
        table="matmulnbits",
    )
    assert next(iter(table["linear"].values())) == pytest.approx(27_723e-6)


def test_tables_may_be_keyed_by_positions(tabulate: Tabulate) -> None:
    layer = linear_layer(4096, 4096, tokens=4096)
    w4 = Precision(weight_bits=4, activation_bits=32)
    table = tabulate("lookup_table", "x86_onnxruntime", layer, bits=[w4], table="matmulnbits")
    assert (table["linear"][w4], table.origins["linear"][w4]) == (pytest.approx(86.321713), "measured")


def test_height_and_width_are_told_apart(write: Write, tabulate: Tabulate) -> None:
    square = conv_layer(8, 8, size=8)
    wide = replace(square, input_shape=(1, 8, 4, 16), output_shape=(1, 8, 4, 16))
    entry = {
        "op": "conv2d",
        "in_h": 4,
        "in_w": 16,
        "out_h": 4,
        "out_w": 16,
        "w_bits": 8,
        "a_bits": 8,
        "macs": wide.macs,
        "value": 9,
    }
    profile = lookup(write, entries=[entry], key=["op", "in_h", "in_w", "out_h", "out_w", "w_bits", "a_bits"])
    assert tabulate("latency", profile, wide)["conv"][W8A8] == pytest.approx(0.009)
    with pytest.raises(UnsupportedLayerError, match="in_h=8 in_w=8"):
        tabulate("latency", profile, square)


def test_a_layer_smaller_than_all_entries_is_extrapolated(write: Write, tabulate: Tabulate) -> None:
    table = tabulate("latency", lookup(write, "macs_scaled"), conv_layer(4, 4, size=8))
    assert "extrapolated" in table.origins["conv"][W8A8]
    assert "1 of 1 numbers lie beyond the measured sizes" in table.notes


def test_a_table_that_is_assumed_is_doubtful(write: Write, tabulate: Tabulate) -> None:
    table = tabulate("latency", lookup(write, notes=["a note"]), conv_layer(8, 8, size=8))
    assert [use.path for use in table.doubtful_figures] == ["lookup_tables.t"]
    assert table.notes[0] == "a note"


@pytest.mark.parametrize(
    ("unit", "value"),
    [
        ("s", 1e4),
        ("ms", 10),
        ("us", 0.01),
        ("ns", 1e-5),
        ("J", 1e7),
        ("mJ", 1e4),
        ("uJ", 10),
        ("nJ", 0.01),
        ("pJ", 1e-5),
    ],
)
def test_every_unit_is_converted(unit: str, value: float, write: Write, tabulate: Tabulate) -> None:
    table = tabulate("lookup_table", lookup(write, unit=unit), conv_layer(8, 8, size=8))
    assert table["conv"][W8A8] == pytest.approx(value)


def neighbours(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    base = {
        "op": "dwconv2d",
        "kernel_size": [3, 3],
        "stride": [1, 1],
        "out_h": 8,
        "out_w": 8,
        "w_bits": 8,
        "a_bits": 8,
        "macs": 1000,
    }
    return [
        {
            **base,
            "in_channels": e["c"],
            "out_channels": e["c"],
            "groups": e["c"],
            "value": e["value"],
            **e.get("more", {}),
        }
        for e in entries
    ]


def test_depthwise_layers_of_other_channels_are_neighbours_nearest_in_ratio(
    write: Write, tabulate: Tabulate
) -> None:
    """16 is nearer to 30 in ratio, 8 is nearer in difference to none: 100 is 3.3 times, 16 is 1.9 times away."""
    profile = lookup(
        write,
        "nearest",
        entries=neighbours({"c": 16, "value": 1}, {"c": 44, "value": 2}, {"c": 100, "value": 3}),
    )
    assert tabulate("latency", profile, conv_layer(24, 24, size=8, groups=24))["conv"][W8A8] == pytest.approx(
        0.001
    )
    assert tabulate("latency", profile, conv_layer(64, 64, size=8, groups=64))["conv"][W8A8] == pytest.approx(
        0.002
    )


def test_a_neighbour_of_the_same_stride_comes_first(write: Write, tabulate: Tabulate) -> None:
    strided = {"c": 9, "value": 1, "more": {"stride": [2, 2]}}
    profile = lookup(write, "nearest", entries=neighbours(strided, {"c": 64, "value": 2}))
    assert tabulate("latency", profile, conv_layer(8, 8, size=8, groups=8))["conv"][W8A8] == pytest.approx(
        0.002
    )


def test_promoted_widths_say_so(tabulate: Tabulate, write: Write) -> None:
    profile = lookup(write)
    body = profile.model_copy(
        update={"precisions": profile.precisions.model_copy(update={"promote": {3: 4}})}
    )
    w3 = Precision(weight_bits=3, activation_bits=8)
    table = tabulate("lookup_table", body, conv_layer(8, 8, size=8), bits=[w3])
    assert table.origins["conv"][w3] == "W3A8 runs as W4A8; measured"


def test_a_layer_measured_at_the_chosen_width_is_not_an_estimate(write: Write, tabulate: Tabulate) -> None:
    shape = {"op": "conv2d", "kernel_size": [3, 3], "stride": [1, 1], "groups": 1, "out_h": 8, "out_w": 8}
    entries = [
        {
            **shape,
            "in_channels": n,
            "out_channels": n,
            "w_bits": w,
            "a_bits": 8,
            "macs": n * n * 576,
            "value": 9,
        }
        for n, w in ((8, 4), (16, 8))
    ]
    profile = lookup(write, "macs_scaled", entries=entries)
    table = tabulate("latency", profile, conv_layer(8, 8, size=8), bits=[W4A8, W8A8])
    assert table.estimated == ("conv",)
    assert table.estimated_at == {"conv": (W8A8,)}
    assert table.estimated_share({"conv": W4A8}) == 0.0
    assert table.estimated_share({"conv": W8A8}) == 1.0
    assert table.scaled(2.0).estimated_share({"conv": W8A8}) == 1.0
