"""Accuracies that guessing gives, and those that only look like it."""

import pytest

from hwbmpq.data import chance_remark, is_chance


@pytest.mark.parametrize(
    ("accuracy", "samples", "classes"),
    [
        (0.125, 360, 10),
        (0.097, 360, 10),
        (0.0, 360, 10),
        (0.0012, 10_000, 1000),
        (0.52, 400, 2),
        (0.125, 32, 10),
        (0.006, 10_000, 1000),
    ],
)
def test_what_guessing_gives_is_chance(accuracy: float, samples: int, classes: int) -> None:
    assert is_chance(accuracy, samples, classes)


@pytest.mark.parametrize(
    ("accuracy", "samples", "classes"),
    [
        (0.2, 360, 10),
        (0.2, 10_000, 10),
        (0.995, 360, 10),
        (0.11, 10_000, 1000),
        (0.6, 400, 2),
        (0.5, 32, 10),
        (0.8, 80, 2),
    ],
)
def test_what_is_better_is_not(accuracy: float, samples: int, classes: int) -> None:
    assert not is_chance(accuracy, samples, classes)


def test_more_samples_do_not_silence_the_warning() -> None:
    assert all(is_chance(0.125, samples, 10) for samples in (360, 1_000, 10_000, 1_000_000))


@pytest.mark.parametrize(("samples", "classes"), [(8, 2), (16, 2), (2, 10), (100, 1)])
def test_nothing_is_said_about_so_few_samples_that_nobody_could_tell(samples: int, classes: int) -> None:
    assert not is_chance(1 / classes, samples, classes)


def test_the_remark_names_the_likely_causes() -> None:
    remark = chance_remark(0.097, 360, 10, inputs="inputs: pixels; more", what="the network", name="digits")
    assert remark is not None
    assert remark.startswith("WARNING: the network is right on 9.7% of 360 samples of digits")
    for cause in (
        "not normalised as in its training (now: pixels; --normalise)",
        "RGB or BGR",
        "other classes",
    ):
        assert cause in remark
    assert remark.endswith("weights that are not trained")


def test_a_good_network_and_other_tasks_get_no_remark() -> None:
    for accuracy, classes in ((0.9, 10), (None, 10), (0.1, None)):
        assert chance_remark(accuracy, 360, classes, inputs="", what="", name="") is None
