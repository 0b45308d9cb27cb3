"""``memory`` of 0.1.0 was the weights alone: its runs and states go on with what it meant."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hwbmpq
from hwbmpq.search import BitAllocator
from hwbmpq.training import read_settings, resolve_settings

WEIGHTS = 40 + 25 + 15
CONFIG = "model: own\ntarget: mpic\nbudgets: {memory: 6x}\nepochs: 4\n"


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))


def allocator(target: str = "mpic", *, memory: str | float, **settings: Any) -> BitAllocator:
    budgets = {"memory": memory}
    return BitAllocator(net(), torch.zeros(1, 8), target=target, budgets=budgets, epochs=4, **settings)


@pytest.mark.parametrize(
    ("target", "beside"),
    [("mpic", 0), ("stm32h743", (5 + 5 + 3) * (32 + 32)), ("imx500", (5 + 5 + 3) * 32)],
    ids=["weights", "scales and biases of channels", "scales of channels"],
)
def test_memory_is_what_the_profile_then_said(target: str, beside: int) -> None:
    found = allocator(target, memory="100%", bits=(4, 8), memory_as_in="0.1.0")
    ends, inner = 8 * (40 + 15), 8 * 25
    assert found.space.costs.table("memory").total(found.space.widest) == ends + inner + beside
    assert found.space.costs.table("memory").float_total == 32 * WEIGHTS


def test_a_config_that_0_1_0_wrote_means_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"# written by: hwbmpq 0.1.0, Python 3.11.7\n# begun: 2026-11-18\n{CONFIG}")
    old = resolve_settings(read_settings(path))
    assert (old.memory_as_in, old.inertia) == ("0.1.0", 0)
    for header in ("", f"# written by: hwbmpq {hwbmpq.__version__}, Python 3.11.7\n"):
        path.write_text(header + CONFIG)
        assert resolve_settings(read_settings(path)).memory_as_in is None


def test_a_state_of_0_1_0_goes_on_with_its_own_meaning() -> None:
    before, found = allocator(memory="2x", memory_as_in="0.1.0"), allocator(memory="2x")
    state = before.state_dict()
    del state["memory_as_in"]  # which 0.1.0 did not write
    assert found.space.limits != before.space.limits == {"memory": 32 * WEIGHTS / 2}
    found.load_state_dict(state)
    again = allocator(memory="2x")
    again.load_state_dict(found.state_dict())
    for one in (found, again):
        assert one.space.limits == before.space.limits
        assert one.space.costs.table("memory").rows == before.space.costs.table("memory").rows


def test_a_state_of_another_budget_is_still_refused() -> None:
    state = allocator(memory=640.0, memory_as_in="0.1.0").state_dict()
    del state["memory_as_in"]
    with pytest.raises(hwbmpq.HwbmpqError, match="another network, device or budget"):
        allocator(memory="2x").load_state_dict(state)
