"""Checkpoints and results that were damaged on the disk: never taken for good ones."""

from collections.abc import Callable

import pytest
from faults import Trial, damaged
from runs import assert_clear_error, assert_finished


@pytest.mark.parametrize("seed", [3, 7])
def test_damaged_checkpoints_give_way_or_are_refused(seed: int, trial: Callable[[int], Trial]) -> None:
    damaged(trial(seed))


def test_records_that_are_cut_short_are_a_sentence_not_a_traceback(trial: Callable[[int], Trial]) -> None:
    at_hand = trial(0)
    assert_finished(at_hand.begin())
    for name in ("facts.json", "allocation.json", "history.jsonl"):
        path = at_hand.folder / "run" / name
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) * 2 // 3])
        assert_clear_error(at_hand.server.run(["report", "run"], folder=at_hand.folder), name)
        path.write_bytes(whole)
