"""The learning rate over a run, against figures worked by hand."""

import math
from typing import Any

import pytest

from hwbmpq.training.settings import RunSettings
from hwbmpq.training.trainer import learning_rate


def settings(**given: Any) -> RunSettings:
    return RunSettings(**{"model": "m", "target": "mpic", "epochs": 200, "lr": 0.1, **given})


def by_epoch(given: RunSettings, steps: int = 7) -> list[float]:
    """At the first step of each epoch, as the trainer asks: by the share of steps that are done."""
    total = given.epochs * steps
    return [learning_rate(given, epoch * steps / total) for epoch in range(given.epochs)]


@pytest.mark.parametrize(
    ("epochs", "first", "second"), [(200, 80, 140), (100, 40, 70), (10, 4, 7), (30, 12, 21)]
)
def test_step_decays_exactly_at_four_and_seven_tenths(epochs: int, first: int, second: int) -> None:
    rates = by_epoch(settings(epochs=epochs, lr_schedule="step"))
    expected = [0.1] * first + [0.01] * (second - first) + [0.001] * (epochs - second)
    assert rates == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("steps", [1, 3, 7, 11, 45, 390, 391])
def test_the_last_step_before_a_decay_has_the_old_rate(steps: int) -> None:
    given = settings(lr_schedule="step")
    total = given.epochs * steps
    assert learning_rate(given, (80 * steps - 1) / total) == 0.1
    assert learning_rate(given, 80 * steps / total) == pytest.approx(0.01)
    assert learning_rate(given, (140 * steps - 1) / total) == pytest.approx(0.01)
    assert learning_rate(given, 140 * steps / total) == pytest.approx(0.001)


def test_decays_and_their_factor_can_be_chosen() -> None:
    given = settings(epochs=4, lr_schedule="step", lr_decay_at=(0.25, 0.5, 0.75), lr_decay=0.5)
    assert by_epoch(given) == pytest.approx([0.1, 0.05, 0.025, 0.0125])


def test_a_share_that_is_a_hair_above_a_whole_epoch_means_that_epoch() -> None:
    """0.1 + 0.2 is 0.30000000000000004."""
    given = settings(epochs=10, lr_schedule="step", lr_decay_at=(0.1 + 0.2,))
    assert by_epoch(given) == pytest.approx([0.1] * 3 + [0.01] * 7)


def test_cosine_falls_from_the_rate_to_zero() -> None:
    given = settings(lr_schedule="cosine")
    shares = [0, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1]
    expected = [0.1, 0.05 * (1 + math.sqrt(3) / 2), 0.05 * (1 + math.sqrt(0.5)), 0.075, 0.05, 0.025, 0.0]
    assert [learning_rate(given, share) for share in shares] == pytest.approx(expected, abs=1e-15)


def test_one_cycle_climbs_to_the_rate_at_three_tenths_and_falls_to_zero() -> None:
    given = settings(lr_schedule="onecycle")
    shares = [0, 0.15, 0.3, 0.65, 1]
    assert [learning_rate(given, share) for share in shares] == pytest.approx(
        [0.004, 0.052, 0.1, 0.05, 0.0], abs=1e-15
    )


def test_one_cycle_is_unimodal_and_never_above_its_rate() -> None:
    rates = by_epoch(settings(lr_schedule="onecycle"))
    peak = rates.index(max(rates))
    assert peak == 60
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert max(rates) == pytest.approx(0.1)


def test_constant_stays() -> None:
    assert set(by_epoch(settings(lr_schedule="constant"))) == {0.1}
