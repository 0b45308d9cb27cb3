"""A solver that crashes, hangs or talks nonsense."""

from collections.abc import Callable

import pytest
from faults import Trial
from glpsol import false_glpsol
from runs import assert_clear_error, assert_finished, result_of


def same_weights(trial: Trial) -> bool:
    return result_of(trial.folder / "run")["state"]["model"] == trial.expected["state"]["model"]


@pytest.mark.parametrize("way", ["raise", "nan"])
def test_another_solver_takes_over(way: str, trial: Callable[[int], Trial]) -> None:
    at_hand = trial(0)
    ended = at_hand.begin(kind="solver", way=way)
    assert_finished(ended)
    assert "trying glpk" in ended.err
    assert "Warning" not in ended.err
    assert same_weights(at_hand)


def test_without_another_solver_the_run_ends_in_a_sentence_and_goes_on_later(
    trial: Callable[[int], Trial],
) -> None:
    at_hand = trial(0)
    ended = at_hand.begin("--solver", "highs", kind="solver", way="raise", decision=2)
    assert_clear_error(ended, "highs was made to fail", "--solver auto tries all that there are")
    assert_finished(at_hand.resume())
    assert same_weights(at_hand)


@pytest.mark.parametrize("way", ["crash", "talk nonsense"])
def test_a_glpsol_that_fails_gives_way_to_the_library(way: str, trial: Callable[[int], Trial]) -> None:
    at_hand = trial(0)
    path = false_glpsol(at_hand.folder, way)
    hurried = {"kind": "solver", "way": "zero", "decision": 10**6, "solver": "glpk", "seconds": 0.5}
    ended = at_hand.begin("--solver", "glpk", environment={"PATH": path}, **hurried)
    assert_finished(ended)
    assert "glpsol failed" in ended.err
    assert "using the swiglpk library instead" in ended.err
    assert same_weights(at_hand)
