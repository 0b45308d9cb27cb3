"""The learning rate at each step, as a function of how far the run is: nothing to save, nothing to restore."""

import math

from hwbmpq.training.settings import RunSettings

_ONE_CYCLE_RISE = 0.3  # share of the run in which the rate climbs
_ONE_CYCLE_START = 1 / 25


def learning_rate(settings: RunSettings, progress: float) -> float:
    """The rate at ``progress``, the share of all steps that are done (0 to 1)."""
    if settings.lr_schedule == "constant":
        return settings.lr
    if settings.lr_schedule == "step":
        # A hair of tolerance: 0.7 of 10 epochs is 7 of them, whatever floats say.
        passed = sum(progress >= share - 1e-9 for share in settings.lr_decay_at)
        return settings.lr * settings.lr_decay**passed
    if settings.lr_schedule == "cosine":
        return settings.lr * _half_cosine(progress)
    if progress < _ONE_CYCLE_RISE:
        rise = 1 - _half_cosine(progress / _ONE_CYCLE_RISE)
        return settings.lr * (_ONE_CYCLE_START + (1 - _ONE_CYCLE_START) * rise)
    return settings.lr * _half_cosine((progress - _ONE_CYCLE_RISE) / (1 - _ONE_CYCLE_RISE))


def _half_cosine(share: float) -> float:
    """From 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0)))
