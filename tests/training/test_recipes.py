"""What a data set gets if nobody says otherwise."""

from typing import Any

import pytest

from hwbmpq.training.recipes import recipe_for
from hwbmpq.training.settings import resolve_settings


@pytest.mark.parametrize(
    ("data", "epochs", "interval"), [("cifar10", 200, 20), ("cifar100", 200, 20), ("tinyimagenet", 100, 20)]
)
def test_the_papers_data_sets_get_the_papers_recipe(data: str, epochs: int, interval: int) -> None:
    found = resolve_settings({"model": "m", "target": "mpic", "data": data})
    assert (found.epochs, found.warmup_epochs, found.interval_epochs) == (epochs, interval, interval)
    assert (found.optimizer, found.lr, found.batch_size, found.activation_bits) == ("sgd", 0.1, 128, "same")
    assert (found.lr_schedule, found.lr_decay_at, found.lr_decay) == ("step", (0.4, 0.7), 0.1)
    assert (found.objective, found.activation_widths) == ("linear", None)


@pytest.mark.parametrize("data", ["digits", "fake", "folder:here", "npz:x.npz"])
def test_elsewhere_widths_are_decided_by_the_loss_that_they_cost(data: str) -> None:
    given = {"model": "m", "target": "mpic", "data": data}
    assert resolve_settings(given).objective == "error"
    assert resolve_settings({**given, "objective": "linear"}).objective == "linear"


@pytest.mark.parametrize(
    ("data", "epochs", "expected"),
    [
        ("cifar10", 10, 1),
        ("cifar10", 50, 5),
        ("cifar10", 400, 40),
        ("tinyimagenet", 10, 2),
        ("tinyimagenet", 50, 10),
        ("digits", 20, 2),
        ("digits", 2, 1),
        ("folder:here", 30, 3),
    ],
)
def test_warmup_and_intervals_are_in_proportion(data: str, epochs: int, expected: int) -> None:
    recipe = recipe_for({"data": data}, epochs=epochs)
    assert (recipe["warmup_epochs"], recipe["interval_epochs"]) == (expected, expected)


def test_without_epochs_the_recipes_own_count() -> None:
    assert recipe_for({}, epochs=None)["warmup_epochs"] == 2


def test_a_trained_network_is_not_thrown_far() -> None:
    cifar = {"data": "cifar10"}
    fresh = recipe_for(cifar, epochs=None)
    fetched = recipe_for({**cifar, "pretrained": True}, epochs=None)
    given = recipe_for({**cifar, "weights": "net.pt"}, epochs=None)
    assert given["lr"] < fetched["lr"] < fresh["lr"]


@pytest.mark.parametrize(
    "given", [{"pretrained": True}, {"weights": "net.pt", "start": "widest"}], ids=["fetched", "widest"]
)
def test_what_nobody_could_teach_learns_from_labels(given: dict[str, Any]) -> None:
    recipe = recipe_for({"data": "folder:photos", **given}, epochs=15)
    assert recipe["quantizer"] == "learned"
    assert not recipe.keys() & {"distill", "start", "norms"}


def test_a_network_in_float_does_not_imitate_itself() -> None:
    recipe = recipe_for({"weights": "net.pt", "method": "fp32"}, epochs=15)
    assert not recipe.keys() & {"distill", "start", "norms", "quantizer"}


def test_a_teacher_is_learned_from_without_weights_too() -> None:
    assert recipe_for({"teacher": "hwbmpq:resnet56=net.pt"}, epochs=15)["distill"] == 1


def test_the_rate_from_given_weights_suits_the_optimizer_that_was_asked_for() -> None:
    def recipe(**given: str) -> tuple[float, bool]:
        found = recipe_for({"weights": "net.pt", **given}, epochs=4)
        return found["lr"], found["nesterov"]

    assert recipe() == recipe(optimizer="adam") == recipe(optimizer="adamw") == (0.0005, False)
    assert recipe(optimizer="sgd") == (0.01, True)


def test_without_training_nothing_is_scheduled_and_scales_are_per_channel() -> None:
    recipe = recipe_for({"data": "cifar10", "weights": "net.pt"}, epochs=0)
    assert recipe["per_channel"] is True
    assert "warmup_epochs" not in recipe
