"""What has no figure: layers at a rate that the profile does not list, layers in float, work outside of layers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.costs import CostTable, tabulate
from hwbmpq.errors import MissingFigureError, UnsupportedPrecisionError
from hwbmpq.hardware import HardwareProfile, load_profile
from hwbmpq.hardware.widths import WidthFinder
from hwbmpq.testing import conv_layer, linear_layer
from hwbmpq.values import Precision

Write = Callable[..., HardwareProfile]
Tabulate = Callable[..., CostTable]
Value = Callable[..., float]
W4A8, W8A8 = (Precision(weight_bits=bits, activation_bits=8) for bits in (4, 8))
W4A32, W32A32 = (Precision(weight_bits=bits, activation_bits=32) for bits in (4, 32))
RATES = """
clock: {core_hz: {value: 1.0e+6, kind: assumed}}
compute:
  kind: assumed
  table:
    - {op: conv2d, kernel_size: [3, 3], macs_per_cycle: 4}
    - {op: conv2d, kernel_size: [1, 1], macs_per_cycle: 2}
    - {op: linear, w: int8, macs_per_cycle: 1}
"""


def test_another_kernel_size_takes_the_slowest_rate_of_the_operation(
    write: Write, tabulate: Tabulate
) -> None:
    layer = conv_layer(8, 8, size=8, kernel_size=5)
    table = tabulate("throughput_table", write(RATES), layer)
    assert table["conv"][W8A8] == pytest.approx(layer.macs / 2e6 * 1e3)
    assert table.origins["conv"][W8A8] == "conv2d 5x5 has no figure: counted as conv2d 1x1"
    assert table.estimated == ("conv",)
    assert table.estimated_share({"conv": W8A8}) == 1.0
    exact = tabulate("throughput_table", write(RATES), conv_layer(8, 8, size=8))
    assert exact.estimated == ()
    assert exact.origins == {}


def test_another_operation_takes_the_slowest_rate_of_its_widths(write: Write, tabulate: Tabulate) -> None:
    layer = conv_layer(8, 8, size=8, kernel_size=3, name="up")
    other = type(layer)(**{**_fields(layer), "kind": "conv_transpose2d"})
    table = tabulate("throughput_table", write(RATES), other)
    assert table["up"][W8A8] == pytest.approx(other.macs / 1e6 * 1e3)  # as linear, the slowest of all


def _fields(layer: object) -> dict[str, object]:
    return {name: getattr(layer, name) for name in layer.__slots__}  # type: ignore[attr-defined]


def test_a_layer_without_a_figure_at_one_width_is_costed_at_none(write: Write, tabulate: Tabulate) -> None:
    profile = write(RATES.replace("{op: conv2d, kernel_size: [3, 3],", "{op: conv2d, kernel_size: [3, 3], w: int8,")
                    .replace("    - {op: conv2d, kernel_size: [1, 1], macs_per_cycle: 2}\n", ""))  # fmt: skip
    conv, head = conv_layer(8, 8, size=8), linear_layer(64, 10)
    candidates = {"conv": [W4A8, W8A8], "linear": [W8A8]}
    table = tabulate("throughput_table", profile, conv, head, bits=candidates)
    assert list(table.rows[0].costs) == ["linear"]
    (left_out,) = table.uncosted
    assert (left_out.name, left_out.macs) == ("conv", conv.macs)
    assert left_out.share == conv.macs / (conv.macs + head.macs)
    assert "no compute.table row for conv2d 3x3 at int4×int8" in left_out.why
    assert table.is_lower_bound
    assert table.total({"conv": W4A8, "linear": W8A8}) == pytest.approx(640 / 1e6 * 1e3)
    with pytest.raises(MissingFigureError, match="conv2d 3x3 at int4×int8"):  # nothing can be costed
        tabulate("throughput_table", profile, conv, bits=[W4A8, W8A8])


def test_float_on_a_device_of_integers_is_stored_and_not_run() -> None:
    finder = WidthFinder(load_profile("stm32h743"))
    for precision in (W4A32, W32A32):
        found = finder.execution("linear", precision)
        assert (found.is_stored_only, found.is_promoted, found.pair.kernel) == (True, False, "none")
        assert found.pair.precision == precision
    with pytest.raises(UnsupportedPrecisionError, match="does not run linear at W5A32"):
        finder.execution("linear", Precision(weight_bits=5, activation_bits=32))
    promoted = WidthFinder(load_profile("mpic")).execution(
        "conv2d", Precision(weight_bits=3, activation_bits=32)
    )
    assert str(promoted.pair.precision) == "W4A32"


def test_weights_are_unpacked_for_the_float_kernel_of_a_device_that_has_one(value: Value) -> None:
    found = WidthFinder(load_profile("jetson_nano")).execution("linear", W4A32)
    assert (found.is_stored_only, found.pair.compute) == (False, "fp32")
    layer = linear_layer(64, 64, tokens=1000)
    assert value("throughput_table", "jetson_nano", layer, W4A32) == value(
        "throughput_table", "jetson_nano", layer, W32A32
    )
    assert value("stored_memory", "jetson_nano", layer, W4A32) == 64 * 64 * 4 + 32


@pytest.mark.parametrize("target", ["stm32h743", "gap8", "gap9_ne16", "mpic", "pynq_z1_bismo"])
def test_layers_in_float_are_uncosted_where_there_are_only_integers(target: str) -> None:
    layers = [conv_layer(8, 8, size=8, name="conv"), linear_layer(8, 8, name="head", weight_only=True)]
    profile = load_profile(target)
    run = Precision(weight_bits=8, activation_bits=8)
    choices = {"conv": (run,), "head": (Precision(weight_bits=8, activation_bits=32),)}
    costs = tabulate(layers, profile, costs=["memory", "latency"], choices=choices)
    assert [entry.name for entry in costs.table("latency").uncosted] == ["head"]
    assert costs.table("memory").rows[0].costs["head"] == {choices["head"][0]: 64 * 8 + 32}


class Attention(nn.Module):
    """A product of activations beside two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        found = self.first(x)
        mixed: Tensor = self.last(torch.matmul(found, found.transpose(1, 2)) @ found)
        return mixed


def test_products_of_activations_are_costed_in_float_or_named() -> None:
    graph = hwbmpq.describe(Attention(), torch.zeros(1, 6, 8))
    macs = 2 * 6 * 6 * 8
    assert graph.macs - graph.layer_macs == macs
    energy = tabulate(graph, load_profile("generic"), costs="energy").table("energy")
    moved = (6 * 8 + 8 * 6 + 6 * 6) + (6 * 6 + 6 * 8 + 6 * 8)  # elements read and made by either product
    assert not energy.is_lower_bound
    assert energy.rows[0].constant == pytest.approx((macs * 4.6 + moved * 32 * 20.3125) * 1e-6)
    bops = tabulate(graph, load_profile("generic"), costs="bops").table("bops")
    assert bops.rows[0].constant == macs * 32 * 32
    latency = tabulate(graph, load_profile("mpic"), costs="latency").table("latency")
    assert sum(entry.macs for entry in latency.uncosted) == macs
    assert sum(entry.share for entry in latency.uncosted) == pytest.approx(macs / graph.macs)
    memory = tabulate(graph, load_profile("mpic"), costs="memory").table("memory")
    assert not memory.is_lower_bound


def test_what_a_constant_is_for_is_said_in_a_note() -> None:
    graph = hwbmpq.describe(Attention(), torch.zeros(1, 6, 8))
    table = tabulate(graph, load_profile("jetson_nano"), costs="latency").table("latency")
    assert table.rows[0].constant > 0
    (note,) = [note for note in table.notes if note.startswith("computed outside of layers, in float: ")]
    assert note.endswith("of the MACs (matmul, matmul_1…)")


def test_only_a_width_that_is_estimated_counts_as_an_estimate(write: Write, tabulate: Tabulate) -> None:
    rates = RATES.replace("kernel_size: [3, 3],", "kernel_size: [3, 3], w: int8,")
    table = tabulate("throughput_table", write(rates), conv_layer(8, 8, size=8), bits=[W4A8, W8A8])
    assert table.origins["conv"] == {W4A8: "conv2d 3x3 has no figure: counted as conv2d 1x1"}
    assert table.estimated_share({"conv": W4A8}) == 1.0
    assert table.estimated_share({"conv": W8A8}) == 0.0


def test_the_constant_counts_as_an_estimate_if_it_is_one(write: Write) -> None:
    body = RATES.replace("w: int8, macs", "macs").replace(
        "- {op: linear", "- {op: conv2d, kernel_size: [7, 7]"
    )
    profile = write(
        "precisions: {pairs: [{w: int8, a: int8}, {w: fp32, a: fp32}]}\n"
        "cost_models: {latency: {model: throughput_table}}\n" + body
    )
    graph = hwbmpq.describe(Attention(), torch.zeros(1, 6, 8))
    choices = {layer.name: (W8A8,) for layer in graph}
    table = tabulate(graph, profile, costs="latency", choices=choices).table("latency")
    assert table.rows[0].constant > 0
    assert table.estimated_share({layer.name: W8A8 for layer in graph}) == pytest.approx(1.0)
