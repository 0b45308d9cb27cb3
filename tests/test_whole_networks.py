"""A memory budget counts the whole network, whatever it is made of."""

import pytest
import whole_networks
from networks import NETWORKS, build

import hwbmpq

STORED_AS = {3: 4, 5: 8}
"""What mpic makes of widths that it does not have."""


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_budgeted_is_what_the_file_holds_to_the_byte(name: str, per_channel: bool) -> None:
    found = whole_networks.measure(name, per_channel=per_channel)
    assert found["memory_bytes"] <= found["budget_bytes"]
    assert found["memory_bytes"] + found["lines"]["file header"] == found["file_bytes"]
    assert found["loaded_is_equal"]


@pytest.mark.parametrize("name", NETWORKS)
def test_nearly_all_parameters_are_quantized(name: str) -> None:
    assert whole_networks.measure(name)["covered_parameters"] > 0.95


@pytest.mark.parametrize("name", NETWORKS)
def test_a_device_without_some_widths_stores_their_bytes_beside_those_of_the_file(name: str) -> None:
    found = whole_networks.measure(name, target="mpic", bits=tuple(STORED_AS))
    example = build(name)
    # No kernel reads the weights of weight-only layers: they are stored at any width.
    read = [layer for layer in hwbmpq.describe(example.model, example.args) if not layer.weight_only]
    widths = [(layer.parameters, found["weight_bits"][layer.name]) for layer in read]
    wider = sum(packed(count, STORED_AS.get(bits, bits)) - packed(count, bits) for count, bits in widths)
    assert wider or not any(bits in STORED_AS for _, bits in widths)
    assert found["memory_bytes"] <= found["budget_bytes"]
    assert found["memory_bytes"] - wider + found["lines"]["file header"] == found["file_bytes"]
    assert found["loaded_is_equal"]


def packed(count: int, bits: int) -> int:
    """Bytes of so many integers of so many bits."""
    return (count * bits + 7) // 8


@pytest.mark.parametrize(
    ("name", "kept"), [("gru", "gru.*"), ("U-Net", "up*"), ("transformer encoder", "*.self_attn.*")]
)
def test_layers_that_stay_in_float_are_budgeted_as_the_file_holds_them(name: str, kept: str) -> None:
    found = whole_networks.measure(name, keep_float=(kept,))
    assert 32 in found["weight_bits"].values()
    assert any(bits < 32 for bits in found["weight_bits"].values())
    assert found["memory_bytes"] <= found["budget_bytes"]
    assert found["memory_bytes"] + found["lines"]["file header"] == found["file_bytes"]
    assert found["loaded_is_equal"]
