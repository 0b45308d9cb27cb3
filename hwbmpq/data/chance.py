"""Whether an accuracy is hardly better than guessing, and what that may come from."""

from math import sqrt

_DEVIATIONS = 2.33
"""How many standard deviations above guessing are still called guessing: one guesser in 100 does better."""
_SHARE = 0.1
"""Of the way from guessing to perfect: less is called guessing, however surely many samples tell it from guessing."""


def is_chance(accuracy: float, samples: int, classes: int) -> bool:
    """Whether an accuracy cannot be told from guessing, is worse, or is better by very little.

    Guessing is right on ``1/classes`` of the samples, with a binomial deviation. With so few samples that a network
    halfway between guessing and perfect could not be told from guessing either, nothing is called chance.
    """
    if classes < 2:
        return False
    chance = 1 / classes
    limit = chance + _DEVIATIONS * sqrt(chance * (1 - chance) / samples)
    return limit <= (1 + chance) / 2 and accuracy <= max(limit, chance + _SHARE * (1 - chance))


def chance_remark(
    accuracy: float | None,
    samples: int,
    classes: int | None,
    *,
    inputs: str,
    what: str,
    name: str,
    may_be_random: bool = False,
) -> str | None:
    """A warning with the likely causes if an accuracy is about that of guessing.

    ``inputs`` says how these are normalised. ``may_be_random``: the weights may be meant to be random.
    """
    if accuracy is None or classes is None or not is_chance(accuracy, samples, classes):
        return None
    causes = "Unless its weights are random, likely causes" if may_be_random else "Likely causes"
    shown = inputs.removeprefix("inputs: ").partition(";")[0]
    return (
        f"WARNING: {what} is right on {accuracy:.1%} of {samples:,} samples of {name}: that is about what guessing gives, with {classes} "
        f"classes ({1 / classes:.1%}). {causes}: inputs that are not normalised as in its training (now: {shown}; --normalise); "
        "channels in another order (RGB or BGR, --layout); other classes than it was trained on, or in another order"
        + ("" if may_be_random else "; weights that are not trained")
    )
