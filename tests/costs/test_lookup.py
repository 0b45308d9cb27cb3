"""Lookup tables."""

from collections.abc import Callable
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


def test_another_kernel_is_no_neighbour(write: Write, tabulate: Tabulate) -> None:
    with pytest.raises(UnsupportedLayerError, match="kernel_size=5x5") as caught:
        tabulate("latency", lookup(write, "nearest"), conv_layer(8, 8, size=8, kernel_size=5))
    assert "no entry of this operation, kernel, groups and widths at all" in caught.value.hint


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
