"""A memory budget counts the whole network, whatever it is made of."""

import pytest
import whole_networks
from networks import NETWORKS


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
