"""What holds for every cost model."""

from collections.abc import Callable

import pytest

from hwbmpq.costs import CostTable, cost_models
from hwbmpq.errors import MissingFigureError, UnsupportedLayerError
from hwbmpq.hardware import HardwareProfile
from hwbmpq.testing import conv_layer
from hwbmpq.values import Precision

Write = Callable[..., HardwareProfile]
Tabulate = Callable[..., CostTable]
Value = Callable[..., float]
W2A8, W4A8, W8A8 = (Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4, 8))
CONV = conv_layer(64, 64, size=56)


@pytest.mark.parametrize("name", sorted(cost_models()))
def test_no_model_invents_a_cost_for_a_profile_that_says_nothing(
    name: str, write: Write, tabulate: Tabulate
) -> None:
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
