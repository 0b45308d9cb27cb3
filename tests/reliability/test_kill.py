"""A run that is killed at any moment, and resumed, ends in the weights of one that was not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from faults import Trial, killed
from runs import assert_finished, assert_same_result

from hwbmpq.training.run_directory import RunDirectory
from hwbmpq.training.settings import resolve_settings


def test_a_run_killed_at_random_ends_in_the_same_weights(trial: Callable[[int], Trial]) -> None:
    at_hand = trial(0)
    killed(at_hand)
    assert at_hand.counts["kills that hit"] > 0


def kill_at(trial: Trial, event: int) -> None:
    fault = {"kind": "kill_at_event", "folder": str(trial.folder / "run"), "is_power_cut": True}
    assert trial.begin(event=event, **fault).was_killed


@pytest.mark.parametrize("event", [5, 13])
def test_half_written_files_are_not_taken_for_whole_ones(event: int, trial: Callable[[int], Trial]) -> None:
    at_hand = trial(0)
    kill_at(at_hand, event)
    assert list((at_hand.folder / "run").glob("*.unfinished"))
    at_hand.finish()


def test_a_kill_between_the_last_checkpoint_and_its_history_loses_no_line(
    trial: Callable[[int], Trial],
) -> None:
    """As a kill there leaves it: the checkpoint says that the run is finished, the history ends an epoch before."""
    at_hand = trial(0)
    assert_finished(at_hand.begin())
    history = at_hand.folder / "run" / "history.jsonl"
    lines = history.read_text().splitlines(keepends=True)
    history.write_text("".join(lines[:-1]))
    assert_finished(at_hand.resume())
    assert len(history.read_text().splitlines()) == len(lines)
    assert_same_result(at_hand.folder / "run", at_hand.expected)


class KilledError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("moment", range(4))
def test_an_overwrite_that_is_killed_can_be_repeated(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "run").create()
    run.save_settings(resolve_settings({"model": "hwbmpq:resnet8", "target": "mpic"}), {})
    for save in (run.save_checkpoint, run.save_best, run.save_allocation):
        save({"number": 1})
    unlink, count = Path.unlink, 0

    def dying(path: Path, missing_ok: bool = False) -> None:
        nonlocal count
        if count == moment:
            raise KilledError
        count += 1
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dying)
        with pytest.raises(KilledError):
            run.create(overwrite=True)
    assert list(RunDirectory(run.path).create(overwrite=True).path.iterdir()) == []
