"""How inputs are normalised: what is subtracted and what they are divided by, as it is given, stored and shown."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from hwbmpq.errors import HwbmpqError, cut

NORMALISATIONS = {"none": "", "imagenet": "ImageNet's", "data": "of the data"}
"""Words for a normalisation, and how messages call them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalisation:
    """What is subtracted from inputs and what they are then divided by: one number for all channels, or one for each."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    origin: str = "as given"
    """Whose mean and deviation these are."""

    def __post_init__(self) -> None:
        numbers = (*self.mean, *self.std)
        if not self.mean or not self.std or not all(map(isfinite, numbers)) or min(self.std) <= 0:
            raise HwbmpqError(
                f"cannot normalise with mean {_listed(self.mean)} and std {_listed(self.std)}",
                hint="give finite numbers, deviations above 0: one for all channels, or one for each",
            )

    def __str__(self) -> str:
        """As ``--normalise`` takes it: ``0.5/0.25``, every digit kept."""
        return "/".join(",".join(map(repr, numbers)) for numbers in (self.mean, self.std))

    @property
    def is_identity(self) -> bool:
        return set(self.mean) == {0.0} and set(self.std) == {1.0}

    @classmethod
    def parse(cls, text: str) -> "Normalisation":
        """Read ``MEAN/STD``.

        >>> Normalisation.parse("0.5,0.4/0.2").mean
        (0.5, 0.4)
        """
        try:
            mean, std = (tuple(map(float, part.split(","))) for part in text.split("/"))
        except ValueError:
            raise HwbmpqError(
                f"cannot read the normalisation {cut(repr(text))}",
                hint=f"use {', '.join(NORMALISATIONS)} or MEAN/STD, such as 0.5/0.25 or 0.49,0.48,0.45/0.25,0.24,0.26",
            ) from None
        return cls(mean=mean, std=std)

    def for_channels(self, channels: int) -> "Normalisation":
        """With one number for each channel."""
        for what, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, channels):
                raise HwbmpqError(
                    f"the {what} has {len(numbers)} values, but the input has {channels} channels",
                    hint=f"give one value for all channels, or {channels}",
                )
        mean, std = (n * channels if len(n) == 1 else n for n in (self.mean, self.std))
        return Normalisation(mean=mean, std=std, origin=self.origin)

    def described(self) -> str:
        """``mean 0.485, 0.456, 0.406, std 0.229, 0.224, 0.225 (ImageNet's)``."""
        return f"mean {_listed(self.mean)}, std {_listed(self.std)} ({self.origin})"


def _listed(numbers: tuple[float, ...]) -> str:
    """To four digits; one number if all are the same, and no more than a few."""
    shown = [f"{number:.4g}" for number in (numbers[:1] if len(set(numbers)) == 1 else numbers)]
    return ", ".join(shown[:4]) + (f" … ({len(shown)} values)" if len(shown) > 4 else "")


def given_normalisation(normalise: Any, mean: Any, std: Any) -> str | None:
    """``normalise``, or ``mean`` and ``std`` in its form; None if nothing was given."""
    if mean is None and std is None:
        if normalise is None or (isinstance(normalise, str) and normalise in NORMALISATIONS):
            return normalise
        return str(Normalisation.parse(str(normalise)))
    if mean is None or std is None or normalise is not None:
        raise HwbmpqError(
            "give --mean and --std together, without --normalise", hint="for example --mean 0.5 --std 0.25"
        )
    numbers = (
        ",".join(map(str, given if isinstance(given, tuple | list) else [given])) for given in (mean, std)
    )
    return str(Normalisation.parse("/".join(numbers)))
