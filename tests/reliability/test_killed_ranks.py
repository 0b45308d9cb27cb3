"""Ranks of a distributed run that are killed: the job ends by itself, says why, and resumes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import Trial
from ranks_killed import assert_told, forked_ranks, kill_rank, torchrun
from runs import ForkServer, assert_finished, assert_same_result, result_of


@pytest.fixture(scope="module")
def of_two_ranks(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of an undisturbed run of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    for ended in forked_ranks(server, folder, *server.compress("run", "-q")):
        assert_finished(ended)
    return result_of(folder / "run")


def test_a_killed_rank_ends_the_job_which_resumes_to_the_same_bits(
    trial: Callable[[int], Trial], of_two_ranks: dict[str, Any]
) -> None:
    """The network drops neurons out, so every rank must draw again what it drew."""
    at_hand = trial(0)
    server, folder = at_hand.server, at_hand.folder
    started = torchrun(server, folder, *server.compress("run", "-q"))
    assert_told(kill_rank(started, folder / "run", victim=1, seconds=0.0))
    at_hand.look_at()
    for ended in forked_ranks(server, folder, "compress", "--resume", "run", "--trust", "-q"):
        assert_finished(ended)
    assert_same_result(folder / "run", of_two_ranks)


def test_a_rank_that_is_left_alone_says_so_in_a_sentence(
    trial: Callable[[int], Trial], tmp_path: Path
) -> None:
    """The other is killed at its first checkpoint; without torchrun nobody ends the one that is left."""
    at_hand = trial(0)
    fault = {"kind": "kill_at_event", "folder": str(tmp_path / "run"), "event": 20}
    first, second = forked_ranks(
        at_hand.server, at_hand.folder, *at_hand.server.compress("run", "-q"), fault=fault
    )
    assert first.was_killed
    assert second.code == 2
    assert "error: rank 1: another rank was killed, or cannot be reached\ntry: start it again" in second.err
    assert "Traceback" not in second.err
