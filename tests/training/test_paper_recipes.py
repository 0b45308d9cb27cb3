"""The paper's runs by name: what they are made of, and that each of them runs."""

from typing import Any

import paper_ratios
import pytest

import hwbmpq
from hwbmpq.data import load_data
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.pipeline import compress
from hwbmpq.training import PAPER_RECIPES, RunSettings, resolve_settings

TABLE_1 = [name for name, recipe in PAPER_RECIPES.items() if recipe.reported.startswith("Table 1")]
TABLE_2 = [name for name in PAPER_RECIPES if name not in TABLE_1]


def settings_of(name: str, **given: Any) -> RunSettings:
    return resolve_settings(given, recipe=name)


def test_all_quantized_rows_of_both_tables_have_a_recipe() -> None:
    assert len(TABLE_1) == len(paper_ratios.TABLE_1) == 8
    assert sum(name.startswith("ad-") for name in TABLE_2) == 3
    assert sum(name.startswith("bmpq-") for name in TABLE_2) == 3


@pytest.mark.parametrize(("name", "row"), list(zip(TABLE_1, paper_ratios.TABLE_1, strict=True)))
def test_the_papers_own_widths_just_fit_the_budget(name: str, row: Any) -> None:
    settings = settings_of(name)
    assert settings.model == f"hwbmpq:{row.network}"
    assert settings.data == row.dataset.lower().replace("-", "")
    assert f"at {row.papers_ratio:g}x" in PAPER_RECIPES[name].reported
    ratio = float(str(settings.budgets["weight_memory"]).removesuffix("x"))
    assert ratio <= paper_ratios.ratio(row) < ratio + 0.01


@pytest.mark.parametrize("name", TABLE_1)
def test_table_1_trains_as_the_paper_does(name: str) -> None:
    found = settings_of(name)
    epochs = 100 if "tiny" in name else 200
    assert (found.epochs, found.warmup_epochs, found.interval_epochs) == (epochs, 20, 20)
    assert (found.method, found.bits, found.activation_bits) == ("bmpq", (2, 4), "same")
    assert found.objective == "linear"
    assert (found.lr, found.lr_schedule, found.lr_decay_at, found.batch_size) == (
        0.1,
        "step",
        (0.4, 0.7),
        128,
    )


@pytest.mark.parametrize("name", TABLE_2)
def test_table_2_stops_where_the_paper_compares_with_the_rates_of_the_whole_run(name: str) -> None:
    found = settings_of(name)
    epochs, decay = (60, 40) if "tiny" in name else (120, 80)
    assert (found.epochs, found.warmup_epochs, found.interval_epochs) == (epochs, 20, 20)
    assert [share * found.epochs for share in found.lr_decay_at] == [pytest.approx(decay)]
    assert found.method == name.split("-")[0]


def test_what_is_given_wins_and_other_images_keep_the_schedule() -> None:
    found = settings_of("bmpq-cifar10-vgg16", data="npz:mine.npz", epochs=20, method="hpq", bits=(4,))
    assert (found.data, found.method, found.bits) == ("npz:mine.npz", "hpq", (4,))
    assert (found.epochs, found.warmup_epochs, found.lr, found.lr_schedule) == (20, 2, 0.1, "step")


def test_an_unknown_recipe_is_answered_with_one_that_exists() -> None:
    with pytest.raises(UnknownNameError, match="did you mean bmpq-cifar10-resnet18"):
        settings_of("bmpq-cifar10-resnet")


@pytest.mark.parametrize(
    ("most", "epochs", "warmup"), [(10, 10, 1), (50, 50, 5), (200, 200, 20), (1000, 200, 20)]
)
def test_a_dry_run_has_fewer_epochs_with_decisions_in_proportion(most: int, epochs: int, warmup: int) -> None:
    found = settings_of("bmpq-cifar10-vgg16", max_steps=most)
    assert (found.epochs, found.warmup_epochs, found.interval_epochs) == (epochs, warmup, warmup)


def test_a_dry_run_shortens_epochs_that_were_asked_for() -> None:
    assert settings_of("bmpq-cifar10-vgg16", epochs=40, max_steps=8).epochs == 8
    assert settings_of("bmpq-cifar10-vgg16", epochs=4, max_steps=8).epochs == 4


def test_epochs_that_are_no_number_are_named_whatever_the_steps() -> None:
    with pytest.raises(HwbmpqError, match="epochs: "):
        settings_of("bmpq-cifar10-vgg16", epochs="many", max_steps=3)


def test_steps_without_epochs_are_refused() -> None:
    with pytest.raises(HwbmpqError, match="without epochs there are no steps"):
        settings_of("bmpq-cifar10-vgg16", epochs=0, max_steps=3)


@pytest.mark.parametrize("most", [0, -3])
def test_a_run_without_steps_is_refused(most: int) -> None:
    with pytest.raises(HwbmpqError, match="max_steps"):
        settings_of("bmpq-cifar10-vgg16", max_steps=most)


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_every_recipe_runs_through_all_its_parts(name: str) -> None:
    """Full networks, noise for images, four steps: warm-up, decisions and decays all happen."""
    tiny = "tinyimagenet" in name
    classes = {"cifar10": 10, "cifar100": 100, "tinyimagenet": 200}[name.split("-")[1]]
    settings = settings_of(name, max_steps=4, batch_size=2)
    size = (3, 64, 64) if tiny else (3, 32, 32)
    data = load_data("fake", input_size=size, classes=classes, train_limit=4, test_limit=2)
    network = hwbmpq.models.load_model(settings.model, num_classes=classes, input_size=size, seed=0).network
    result = compress(network, data, settings)
    assert len(result.progress.records) == 4
    assert result.progress.learning_rate < settings.lr  # decayed
    assert result.plan is not None
    if settings.method == "ad":
        assert [decision.epoch for decision in result.decisions] == [1]
        return
    assert [decision.epoch for decision in result.decisions] == [1, 2, 3]
    memory = result.plan.costs["weight_memory"]
    assert memory.budget is not None
    assert memory.total <= memory.budget
