"""Whether two allocators decided alike and hold the same weights."""

from typing import Any

import torch

from hwbmpq import BitAllocator


def decisions(allocator: BitAllocator) -> list[dict[str, Any]]:
    found = [decision.to_dict() for decision in allocator.history]
    for entry in found:
        entry["allocation"].pop("seconds")
    return found


def assert_same(found: BitAllocator, expected: BitAllocator) -> None:
    assert len(expected.history) == 3
    assert decisions(found) == decisions(expected)
    assert found.bits == expected.bits
    assert found.sensitivities == expected.sensitivities
    for name, value in expected.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value), name
