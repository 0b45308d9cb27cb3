"""The smallest cost that holds, against trying all."""

import random
from bisect import bisect_right

import pytest

from hwbmpq.search.bisection import MOST_TRIES, least_that_holds


class Choices:
    """Costs to choose from, of which those from a threshold on hold."""

    def __init__(self, costs: list[float], threshold: float) -> None:
        self.costs, self.threshold = sorted(costs), threshold
        self.tried: list[float] = []

    def snap(self, budget: float) -> float:
        return self.costs[bisect_right(self.costs, budget) - 1]

    def holds(self, budget: float) -> bool:
        assert budget in self.costs, "only what can be had is tried"
        self.tried.append(budget)
        return budget >= self.threshold

    def find(self) -> float | None:
        return least_that_holds(self.costs[0], self.costs[-1], self.snap, self.holds)


@pytest.mark.parametrize("seed", range(30))
def test_few_choices_are_found_exactly(seed: int) -> None:
    draw = random.Random(seed)
    costs = [float(cost) for cost in draw.sample(range(10, 70), draw.randint(1, 6))]
    choices = Choices(costs, draw.choice(costs))
    assert choices.find() == choices.threshold
    assert len(choices.tried) == len(set(choices.tried)) <= MOST_TRIES


@pytest.mark.parametrize("threshold", [0, 1, 137, 499, 998, 1000])
def test_among_many_choices_it_is_within_a_sixty_fourth(threshold: int) -> None:
    choices = Choices([float(cost) for cost in range(1001)], threshold)
    found = choices.find()
    assert found is not None
    assert threshold <= found <= threshold + 1000 / 64 + 1
    assert len(choices.tried) <= MOST_TRIES


def test_what_never_holds_is_tried_once() -> None:
    choices = Choices([1.0, 2.0, 3.0], 4.0)
    assert choices.find() is None
    assert choices.tried == [3.0]
