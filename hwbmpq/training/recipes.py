"""Defaults by data set: the paper's for CIFAR and Tiny-ImageNet, a short sensible run elsewhere."""

from collections.abc import Mapping
from typing import Any

PAPER_DATA = {
    # epochs, and epochs of warm-up and interval
    "cifar10": (200, 20),
    "cifar100": (200, 20),
    "tinyimagenet": (100, 20),
}
_PAPER = {
    # Section IV: SGD, 0.1, x0.1 at 80 and 140 of 200 epochs (40 and 70 of 100), batch 128, activations as weights.
    "activation_bits": "same",
    "lr": 0.1,
    "lr_schedule": "step",
    "batch_size": 128,
}
_ELSEWHERE: dict[str, Any] = {"epochs": 30, "lr": 0.05, "batch_size": 128}
_BY_DATA: dict[str, dict[str, Any]] = {
    # 1,437 images: small batches, or there are too few steps.
    "digits": {"epochs": 20, "batch_size": 64, "lr": 0.05},
    "fake": {"epochs": 4},
}
_WITHOUT_TRAINING = {"per_channel": True, "objective": "error", "activation_bits": "auto"}
"""Nothing makes up for rounding: a scale for every channel, widths by expected error, wide activations."""
_FROM_WEIGHTS = {"lr": 0.01, "lr_schedule": "cosine"}
"""A trained network is not to be thrown far."""


def recipe_for(
    data: str, *, epochs: int | None, has_weights: bool, named: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Settings for a data set; warm-up and intervals in proportion where ``epochs`` are fewer or more.

    ``named`` is a paper's recipe: its own data set says how to train, wherever the images are.
    """
    named = named or {}
    kind = str(named.get("data", data)).partition(":")[0]
    if kind in PAPER_DATA:
        own_epochs, interval = PAPER_DATA[kind]
        recipe: dict[str, Any] = {**_PAPER, "epochs": own_epochs, **named}
        own_epochs = recipe["epochs"]
    else:
        recipe = {**_ELSEWHERE, **_BY_DATA.get(kind, {})}
        own_epochs, interval = 10, 1  # a tenth
    if epochs == 0:
        return {**recipe, **_WITHOUT_TRAINING}
    if has_weights:
        recipe |= _FROM_WEIGHTS
    total = recipe["epochs"] if epochs is None else epochs
    scaled = max(1, round(total * interval / own_epochs))
    return {**recipe, "warmup_epochs": scaled, "interval_epochs": scaled}
