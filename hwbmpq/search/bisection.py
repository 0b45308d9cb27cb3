"""The smallest cost at which something still holds, found with few tries."""

from collections.abc import Callable

MOST_TRIES = 8
"""Both ends and six steps between them: a sixty-fourth of the range."""
_CLOSE = 0.005
"""Of the range: closer than that is no gain that anybody would notice."""


def least_that_holds(
    smallest: float,
    largest: float,
    snap: Callable[[float], float],
    holds: Callable[[float], bool],
    *,
    most: int = MOST_TRIES,
) -> float | None:
    """The smallest budget found to hold, or None if not even the largest does.

    ``snap`` gives what the best choice within a budget really costs, so that no choice is tried twice; ``holds`` tries
    it, which is slow. More cost is taken to be better; where it is not, what is found still holds, since it was tried.
    """
    if not holds(largest):
        return None
    if smallest >= largest or holds(smallest):
        return smallest
    tries, good = 2, largest
    failed = bound = (
        smallest  # the costliest choice that failed, and the budget up to which there is no other
    )
    while tries < most and good - bound > _CLOSE * (largest - smallest):
        middle = bound + (good - bound) / 2
        budget = snap(middle)
        if budget > failed:
            tries += 1
            if holds(budget):
                good = budget
                continue
            failed = budget
        bound = middle
    return good
