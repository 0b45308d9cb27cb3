"""When widths are decided, and which epochs a decision looks back on."""

import pytest

from hwbmpq.errors import HwbmpqError
from hwbmpq.search.schedule import DecisionSchedule


def periodic(epochs: int, warmup: int, interval: int) -> DecisionSchedule:
    return DecisionSchedule.periodic(epochs=epochs, warmup_epochs=warmup, interval_epochs=interval)


def windows(schedule: DecisionSchedule) -> list[tuple[int, int, int]]:
    """(first epoch, last epoch, decided after) of every decision."""
    due = [epoch for epoch in range(1, schedule.epochs + 1) if schedule.is_due(epoch)]
    return [(schedule.interval_start(epoch), epoch, epoch) for epoch in due]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        pytest.param(
            periodic(200, 20, 20),
            [
                (1, 20, 20),
                (21, 40, 40),
                (41, 60, 60),
                (61, 80, 80),
                (81, 100, 100),
                (101, 120, 120),
                (121, 140, 140),
                (141, 160, 160),
                (161, 180, 180),
            ],
            id="the paper's: none after epoch 200",
        ),
        pytest.param(
            periodic(10, 4, 2), [(3, 4, 4), (5, 6, 6), (7, 8, 8)], id="the last epochs of a long warm-up"
        ),
        pytest.param(periodic(11, 4, 2), [(3, 4, 4), (5, 6, 6), (7, 8, 8), (9, 10, 10)], id="an odd end"),
        pytest.param(periodic(9, 2, 3), [(1, 2, 2), (3, 5, 5), (6, 8, 8)], id="a short warm-up"),
        pytest.param(periodic(8, 2, 3), [(1, 2, 2), (3, 5, 5)], id="none at the end of the last epoch"),
        pytest.param(periodic(2, 1, 1), [(1, 1, 1)], id="the shortest run"),
        pytest.param(periodic(5, 4, 9), [(1, 4, 4)], id="an interval that outlasts the run"),
        pytest.param(
            DecisionSchedule.at(20, [3, 4, 11]), [(1, 3, 3), (4, 4, 4), (5, 11, 11)], id="aperiodic"
        ),
        pytest.param(DecisionSchedule.at(5, [4]), [(1, 4, 4)], id="aperiodic, once"),
        pytest.param(periodic(10, 4, 2).once(), [(3, 4, 4)], id="the first decision only"),
    ],
)
def test_decisions_and_what_they_look_back_on(
    schedule: DecisionSchedule, expected: list[tuple[int, int, int]]
) -> None:
    assert windows(schedule) == expected


def test_the_warmup_ends_with_the_first_decision() -> None:
    assert periodic(10, 4, 2).warmup_epochs == 4
    assert DecisionSchedule.at(20, [3, 4, 11]).warmup_epochs == 3


@pytest.mark.parametrize(
    ("epoch", "start"),
    [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (7, 7), (8, 7), (9, 9), (10, 9)],
)
def test_the_interval_that_an_epoch_belongs_to(epoch: int, start: int) -> None:
    assert periodic(10, 4, 2).interval_start(epoch) == start


@pytest.mark.parametrize("epochs", [1, 4, 5])
def test_a_warmup_that_fills_the_run_is_an_error(epochs: int) -> None:
    with pytest.raises(
        HwbmpqError, match=f"5 of {epochs} epochs are warm-up: the budget would never be enforced"
    ) as error:
        periodic(epochs, 5, 1)
    assert "more epochs" in error.value.hint


@pytest.mark.parametrize(("warmup", "interval", "name"), [(0, 1, "warmup_epochs"), (1, 0, "interval_epochs")])
def test_no_epochs_to_learn_from_is_an_error(warmup: int, interval: int, name: str) -> None:
    with pytest.raises(HwbmpqError, match=f"{name} is 0"):
        periodic(5, warmup, interval)


@pytest.mark.parametrize(
    ("decide_after", "message"),
    [
        ([], "epochs none: give ascending numbers from 1"),
        ([4, 2], "epochs 4, 2: give ascending numbers"),
        ([2, 2], "epochs 2, 2: give ascending numbers"),
        ([0, 2], "epochs 0, 2: give ascending numbers from 1"),
        ([2, 10], "a decision after epoch 10 of 10 comes too late"),
        ([2, 12], "a decision after epoch 12 of 10 comes too late"),
        ([10], "after epoch 10 of 10 comes too late"),
    ],
)
def test_aperiodic_epochs_that_make_no_sense(decide_after: list[int], message: str) -> None:
    with pytest.raises(HwbmpqError, match=message):
        DecisionSchedule.at(10, decide_after)
