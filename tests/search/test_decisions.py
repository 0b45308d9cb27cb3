"""A decision as history keeps it: what moved, why, and whole after JSON."""

import json

from hwbmpq.allocate import Allocation
from hwbmpq.search.decisions import Decision, Move, find_moves
from hwbmpq.values import Precision, Sensitivity

W2, W4, W8 = (Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4, 8))


def decision() -> Decision:
    return Decision(
        epoch=3,
        method="bmpq",
        sensitivities={"a": 0.1 + 0.2, "b": 1e-17},
        decided_by=Sensitivity(
            method="enbg", scores={"a": 0.1 + 0.2, "b": 1e-17}, errors={"a": {2: 0.5, 4: 0.25}}
        ),
        objective="error",
        before={"a": W4, "b": W4},
        after={"a": W4, "b": W2},
        allocation=Allocation(
            bits={"a": W4, "b": W2},
            objective=1.5,
            bound=1.5,
            costs={"memory": 100, "latency": 0.1},
            budgets={"memory": 120},
            solver="highs",
            seconds=0.25,
        ),
        moves=(Move(layer="b", before=W4, after=W2, why="rank 2 of 2"),),
    )


def test_json_keeps_every_field() -> None:
    read = Decision.from_dict(json.loads(json.dumps(decision().to_dict(), allow_nan=False)))
    assert read == decision()
    assert read.decided_by.errors["a"] == {2: 0.5, 4: 0.25}


def test_costs_and_slack_are_those_of_the_allocation() -> None:
    assert decision().costs == {"memory": 100, "latency": 0.1}
    assert decision().slack == {"memory": 20}


def test_a_move_reads_as_a_sentence() -> None:
    assert str(decision().moves[0]) == "b W4A8 to W2A8: rank 2 of 2"


def test_only_layers_that_changed_have_moved() -> None:
    before, after = {"a": W4, "b": W4, "c": W8}, {"a": W2, "b": W4, "c": W8}
    scores = {"a": 1.0, "b": 3.0, "c": 9.0}
    (move,) = find_moves(before, after, scores, {}, {"a": 300, "b": 100})
    assert (move.layer, move.before, move.after) == ("a", W4, W2)


def test_a_reason_ranks_the_layer_among_those_that_have_a_choice() -> None:
    """The end "c" would be first by far."""
    before, after = {"a": W4, "b": W4, "c": W8}, {"a": W2, "b": W4, "c": W8}
    scores = {"a": 1.0, "b": 3.0, "c": 9.0}
    (move,) = find_moves(before, after, scores, {}, {"a": 300, "b": 100})
    assert move.why == "rank 2 of 2, 25.0% of the sensitivity for 75.0% of the weights"


def test_a_reason_says_what_the_rank_was_before() -> None:
    before, after = {"a": W4, "b": W2}, {"a": W2, "b": W4}
    moves = find_moves(before, after, {"a": 1.0, "b": 3.0}, {"a": 5.0, "b": 2.0}, {"a": 1, "b": 1})
    assert [move.why.partition(",")[0] for move in moves] == ["rank 2 of 2 (was 1)", "rank 1 of 2 (was 2)"]


def test_without_scores_a_move_has_a_reason_too() -> None:
    (move,) = find_moves({"a": W4}, {"a": W2}, {}, {}, {"a": 1})
    assert move.why == "the method looks at no scores"


def test_scores_of_zero_divide_nothing_by_zero() -> None:
    (move,) = find_moves({"a": W4}, {"a": W2}, {"a": 0.0}, {"a": 0.0}, {"a": 0})
    assert move.why == "rank 1 of 1 (was 1), 0.0% of the sensitivity for 0.0% of the weights"
