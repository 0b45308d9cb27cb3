"""Whether an accuracy is no better than guessing, and what that may come from."""

from math import sqrt

_DEVIATIONS = 2.33
"""How many standard deviations above guessing are still called guessing: one guesser in 100 does better."""


def is_chance(accuracy: float, samples: int, classes: int) -> bool:
    """Whether an accuracy cannot be told from guessing, or is worse.

    Guessing is right on ``1/classes`` of the samples, with a binomial deviation. With so few samples that a network
    halfway between guessing and perfect could not be told from guessing either, nothing is called chance.
    """
    if classes < 2:
        return False
    chance = 1 / classes
    limit = chance + _DEVIATIONS * sqrt(chance * (1 - chance) / samples)
    return accuracy <= limit <= (1 + chance) / 2


def chance_remark(
    accuracy: float | None, samples: int, classes: int | None, *, inputs: str, what: str, name: str
) -> str | None:
    """A warning with the likely causes if an accuracy is that of guessing; ``inputs`` says how these are normalised."""
    if accuracy is None or classes is None or not is_chance(accuracy, samples, classes):
        return None
    shown = inputs.removeprefix("inputs: ").partition(";")[0]
    return (
        f"WARNING: {what} is right on {accuracy:.1%} of {samples:,} samples of {name}: that is what guessing gives, with {classes} "
        f"classes ({1 / classes:.1%}). Likely causes: inputs that are not normalised as in its training (now: {shown}; --normalise); "
        "channels in another order (RGB or BGR, --layout); other classes than it was trained on, or in another order; "
        "weights that are not trained"
    )
