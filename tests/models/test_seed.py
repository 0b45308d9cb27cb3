"""Random weights that can be had again."""

import torch

from hwbmpq.models import load_model


def test_a_seed_gives_the_same_random_weights_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = load_model("hwbmpq:resnet8", seed=1).network.state_dict()
    assert torch.equal(torch.rand(1), expected)
    again = load_model("hwbmpq:resnet8", seed=1).network.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_without_a_seed_the_weights_differ() -> None:
    first, second = (load_model("hwbmpq:resnet8").network.conv1.weight for _ in range(2))
    assert not torch.equal(first, second)
