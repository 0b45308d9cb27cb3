"""HAWQ-V3's published case."""

import hawq_resnet18 as hawq
import pytest


def test_the_latency_limit_is_half_way() -> None:
    assert round(hawq.limit("latency", 0.5), 5) == 4.24618


def test_the_known_optimum_under_the_latency_limit(solver: str) -> None:
    allocation = hawq.solve_under("latency", share=0.5, solver=solver)
    assert allocation.optimal
    assert round(allocation.costs["latency"], 5) == 4.22010
    assert round(-allocation.objective, 6) == 0.202674


@pytest.mark.parametrize("cost", ["size", "bops", "latency"])
@pytest.mark.parametrize("share", hawq.SHARES)
def test_the_published_assignment_is_found(solver: str, cost: str, share: float) -> None:
    assert hawq.solve_under(cost, share=share, solver=solver).bits == hawq.published_bits(cost, share)


@pytest.mark.parametrize("share", hawq.SHARES)
def test_all_limits_at_once_hold(solver: str, share: float) -> None:
    allocation = hawq.solve_under(*hawq.COSTS, share=share, solver=solver)
    assert allocation.optimal
    assert all(slack >= 0 for slack in allocation.slack.values())


@pytest.mark.parametrize("tie", hawq.TIES, ids=lambda tie: tie[0])
def test_downsample_layers_have_the_width_of_their_neighbour(tie: tuple[str, str]) -> None:
    bits = hawq.solve_under("latency", share=0.5).bits
    assert bits[tie[0]] == bits[tie[1]]
