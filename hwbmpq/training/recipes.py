"""Defaults by data set: the paper's for CIFAR and Tiny-ImageNet, a short sensible run elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hwbmpq.errors import UnknownNameError


@dataclass(frozen=True, kw_only=True)
class PaperRecipe:
    """A run that the paper reports."""

    reported: str
    """Where, and what came out."""
    settings: Mapping[str, Any]
    """Network, data, method, budget and epochs; the rest is what the data set gets anyway."""


def get_paper_recipe(name: str) -> PaperRecipe:
    if name not in PAPER_RECIPES:
        raise UnknownNameError("recipe", name, PAPER_RECIPES, hint="docs/training.md lists them all")
    return PAPER_RECIPES[name]


def _table_1(network: str, data: str, ratio: float, reported: str) -> PaperRecipe:
    return PaperRecipe(
        reported=f"Table 1: {reported}",
        settings={**_network(network, data), **_bmpq(ratio), "epochs": _EPOCHS[data]},
    )


def _table_2(network: str, data: str, method: Mapping[str, Any], accuracy: float) -> PaperRecipe:
    """The paper compares before the end of its own runs: 120 of 200 epochs, or 60 of 100, one decay behind them."""
    epochs = _EPOCHS[data] * 3 // 5
    return PaperRecipe(
        reported=f"Table 2: {accuracy} % after {epochs} epochs",
        settings={**_network(network, data), **method, "epochs": epochs, "lr_decay_at": (2 / 3,)},
    )


def _network(name: str, data: str) -> dict[str, Any]:
    return {"model": f"hwbmpq:{name}", "data": data, "target": "generic"}


def _bmpq(ratio: float) -> dict[str, Any]:
    return {"bits": (2, 4), "budgets": {"weight_memory": f"{ratio}x"}}


_AD = {"method": "ad"}
_EPOCHS = {"cifar10": 200, "cifar100": 200, "tinyimagenet": 100}
PAPER_RECIPES = {
    "bmpq-cifar10-vgg16": _table_1("vgg16", "cifar10", 10.51, "93.56 % at 10.5x"),
    "bmpq-cifar10-vgg16-small": _table_1("vgg16", "cifar10", 15.46, "93.21 % at 15.4x"),
    "bmpq-cifar10-resnet18": _table_1("resnet18", "cifar10", 13.79, "94.54 % at 13.4x"),
    "bmpq-cifar100-vgg16": _table_1("vgg16", "cifar100", 14.33, "72.2 % at 14.6x"),
    "bmpq-cifar100-vgg16-small": _table_1("vgg16", "cifar100", 15.15, "71.26 % at 15.4x"),
    "bmpq-cifar100-resnet18": _table_1("resnet18", "cifar100", 9.20, "75.98 % at 9.4x"),
    "bmpq-tinyimagenet-vgg16": _table_1("vgg16", "tinyimagenet", 9.76, "59.29 % at 10x"),
    "bmpq-tinyimagenet-resnet18": _table_1("resnet18", "tinyimagenet", 8.59, "63.27 % at 8.8x"),
    "ad-cifar10-vgg16": _table_2("vgg16", "cifar10", _AD, 91.62),
    "ad-cifar100-resnet18": _table_2("resnet18", "cifar100", _AD, 71.51),
    "ad-tinyimagenet-resnet18": _table_2("resnet18", "tinyimagenet", _AD, 44),
    "bmpq-cifar10-vgg16-120": _table_2("vgg16", "cifar10", _bmpq(10.51), 92.28),
    "bmpq-cifar100-resnet18-120": _table_2("resnet18", "cifar100", _bmpq(9.20), 73.96),
    "bmpq-tinyimagenet-resnet18-60": _table_2("resnet18", "tinyimagenet", _bmpq(8.59), 58.54),
}
"""The last three are the first epochs of runs above them. Of VGG16's two, the paper does not say which it compares."""


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
_ELSEWHERE: dict[str, Any] = {
    "epochs": 30,
    "lr": 0.05,
    "batch_size": 128,
    "objective": "error",
    "inertia": 0.25,
}
_BY_DATA: dict[str, dict[str, Any]] = {
    # 1,437 images: small batches, or there are too few steps.
    "digits": {"epochs": 20, "batch_size": 64, "lr": 0.05},
    "fake": {"epochs": 4},
}
_WITHOUT_TRAINING = {"per_channel": True, "objective": "error", "activation_bits": "auto"}
"""Nothing makes up for rounding: a scale for every channel, widths by expected error, wide activations."""
_LEARNED_CALIBRATION = {"quantizer": "learned", "calibration_images": 4096}
_FROM_WEIGHTS = {"lr": 0.01, "lr_schedule": "cosine"}
"""A trained network is not to be thrown far."""
_LEARNED = {"quantizer": "learned", "per_channel": True, "objective": "error", "alpha_weight_decay": 0.0}
"""From trained weights, where the paper's own recipes are not asked for."""
_FINE_TUNED = {**_FROM_WEIGHTS, **_LEARNED, "nesterov": True, "weight_decay": 1e-4}
"""Weights that were fetched get a new head, which has to be trained: nobody could teach it."""
_FROM_CALIBRATION = {
    **_LEARNED,
    "start": "calibrated",
    "settle": 0.5,
    "inertia": 0.25,
    "distill": 1.0,
    "norms": "frozen",
    "lr_schedule": "cosine",
    "optimizer": "adam",
    "weight_decay": 0.0,
    "clip_norm": 1.0,
}
"""A network that knows its task imitates itself in float: its statistics still hold, and small steps are enough.

On a ResNet-20 SGD ends where Adam does; on one of 6,000 weights, its steps were too large at any rate that was tried.
"""
_CALIBRATION_RATES = {"adam": 0.0005, "adamw": 0.0005, "sgd": 0.01}


def recipe_for(
    given: Mapping[str, Any], *, epochs: int | None, named: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Settings for what was ``given``; warm-up and intervals in proportion where ``epochs`` are fewer or more.

    Given weights know the task; fetched ones know another. ``named`` is a paper's recipe: its own data set says how to
    train, wherever the images are.
    """
    data = str(given.get("data", "digits"))
    named = named or {}
    kind = str(named.get("data", data)).partition(":")[0]
    if kind in PAPER_DATA:
        own_epochs, interval = PAPER_DATA[kind]
        recipe: dict[str, Any] = {**_PAPER, "epochs": own_epochs, **named}
        if named:
            recipe["validation"] = 0  # the paper trains on all training images
        own_epochs = recipe["epochs"]
    else:
        recipe = {**_ELSEWHERE, **_BY_DATA.get(kind, {})}
        own_epochs, interval = 10, 1  # a tenth
    if epochs == 0:
        recipe |= _WITHOUT_TRAINING
    else:
        recipe |= _from_weights(given, is_paper=bool(named))
    if given.get("teacher"):
        recipe["distill"] = 1.0
    if given.get("calibrate") == "best":
        recipe |= _LEARNED_CALIBRATION
    if epochs == 0:
        return recipe
    total = recipe["epochs"] if epochs is None else epochs
    scaled = max(1, round(total * interval / own_epochs))
    return {**recipe, "warmup_epochs": scaled, "interval_epochs": scaled}


def _from_weights(given: Mapping[str, Any], *, is_paper: bool) -> dict[str, Any]:
    """Less is changed the less the network knows, or is quantized."""
    if not (given.get("weights") or given.get("pretrained")):
        return {}
    if is_paper or given.get("method") == "fp32":
        return _FROM_WEIGHTS
    if not given.get("weights") or given.get("start") == "widest":
        return _FINE_TUNED
    optimizer = str(given.get("optimizer") or _FROM_CALIBRATION["optimizer"])
    own = {
        "lr": _CALIBRATION_RATES.get(optimizer, _CALIBRATION_RATES["adam"]),
        "nesterov": optimizer == "sgd",
    }
    return {**_FROM_CALIBRATION, **own}
