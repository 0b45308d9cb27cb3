"""Weights in storage."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hwbmpq.costs import CostTable
from hwbmpq.errors import MissingFigureError
from hwbmpq.hardware import HardwareProfile
from hwbmpq.testing import conv_layer
from hwbmpq.values import Precision

Write = Callable[..., HardwareProfile]
Tabulate = Callable[..., CostTable]
Value = Callable[..., float]
W2A8, W4A8, W8A8 = (Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4, 8))
CONV = conv_layer(64, 64, size=56)


def test_weight_memory_counts_what_it_is_told_to(write: Write, value: Value) -> None:
    profile = write("")
    layer = conv_layer(4, 6, size=8, bias_parameters=6)
    plain = 4 * 6 * 9 * 4
    assert value("weight_memory", profile, layer, W4A8) == plain
    assert value("weight_memory", profile, layer, W4A8, scales=True) == plain + 32
    assert value("weight_memory", profile, layer, W4A8, per_channel=True) == plain + 6 * 32
    assert value("weight_memory", profile, layer, W4A8, scales=True, biases=True) == plain + 32 + 6 * 32


def test_simd_padding_costs_64_48ths(value: Value) -> None:
    layer = conv_layer(16, 48, size=8)
    assert value("weight_memory", "imx500", layer, W4A8, padding=True) * 48 == layer.parameters * 4 * 64
    assert value("weight_memory", "imx500", layer, W8A8, padding=True) == layer.parameters * 8 * 64 / 48
    assert value("weight_memory", "imx500", conv_layer(16, 64, size=8), W4A8, padding=True) == 16 * 64 * 9 * 4


def test_a_shared_weight_counts_once(value: Value) -> None:
    borrowed = conv_layer(4, 4, size=8, parameters=0, shares_weight_with="other")
    assert value("weight_memory", "generic", borrowed, W4A8, scales=True) == 0


def test_what_memory_needs_is_named(write: Write, value: Value) -> None:
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


def test_flash_and_ram_have_the_capacity_of_their_memories(tabulate: Tabulate) -> None:
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


def test_the_farthest_memory_that_holds_weights_stores_them(tabulate: Tabulate) -> None:
    table = tabulate("flash", "gap8")
    assert table.capacity is not None
    assert table.capacity.level == "l3"


def test_memory_has_to_fit_where_the_weights_are(tabulate: Tabulate) -> None:
    table = tabulate("memory", "stm32h743")
    assert table.capacity is not None
    assert table.capacity.level == "flash"
    assert tabulate("memory", "generic", bits=[W8A8]).capacity is None  # its size is not known
    uncertain = tabulate("layer_working_set", "imx500")
    assert [use.path for use in uncertain.doubtful_figures] == ["memory.sensor.size_bytes"]


def test_padding_needs_the_format(write: Write, value: Value) -> None:
    profile = write("precisions: {weights: [int8, int4], activations: [int8], simd_channels: {int8: 32}}\n")
    with pytest.raises(MissingFigureError, match=r"precisions.simd_channels.int4"):
        value("weight_memory", profile, at=W4A8, padding=True)


def test_shared_memory_is_remarked_upon(tabulate: Tabulate) -> None:
    assert "holds the activations as well" in tabulate("flash", "imx500").notes[-1]


def test_flash_counts_what_the_profile_says_memory_is(tabulate: Tabulate) -> None:
    layer = conv_layer(4, 6, size=8)
    table = tabulate("flash", "stm32h743", layer)
    assert table["conv"][W8A8] == 4 * 6 * 9 * 8 + 32  # one scale
    per_channel = tabulate("flash", "stm32h743", replace(layer, scales=6))
    assert per_channel["conv"][W8A8] == 4 * 6 * 9 * 8 + 6 * 32
    assert table["conv"] == tabulate("memory", "stm32h743", layer)["conv"]


def test_activations_have_to_fit_where_they_are(tabulate: Tabulate) -> None:
    table = tabulate("layer_working_set", "stm32h743")
    assert table.capacity is not None
    assert (table.capacity.level, table.capacity.bits) == ("axi_sram", 8 * 2**19)
    named = tabulate("layer_working_set", "stm32h743", level="dtcm")
    assert named.capacity is not None
    assert (named.capacity.level, named.capacity.bits) == ("dtcm", 8 * 2**17)


def test_flash_of_a_microcontroller_says_that_code_is_not_counted(tabulate: Tabulate) -> None:
    flash = tabulate("flash", "stm32h743")
    assert "code is not counted" in flash.notes
    assert "code" not in flash.leaves_out  # a budget on it holds all the same
    assert "code is not counted" not in tabulate("flash", "imx500").notes
