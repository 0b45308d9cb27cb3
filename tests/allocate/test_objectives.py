"""From sensitivities to values."""

from collections.abc import Iterator

import pytest

from hwbmpq.allocate import AllocationError, objectives, register_objective, values_for
from hwbmpq.allocate.objectives import weight_bits
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.registry import OBJECTIVES
from hwbmpq.values import Precision, Sensitivity

SENSITIVITY = Sensitivity(
    method="hessian_trace",
    scores={"a": 2.0, "b": 0.5, "stem": 9.0},
    errors={"a": {2: 1.0, 4: 0.25, 8: 0.0625}, "b": {2: 8.0, 4: 2.0, 8: 0.5}},
)
CHOICES = {"stem": [16], "a": [2, 4, 8], "b": [4, 2]}


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = set(OBJECTIVES.names())
    yield
    for name in set(OBJECTIVES.names()) - before:
        OBJECTIVES.remove(name)


def test_linear_is_sensitivity_times_position() -> None:
    values = values_for(SENSITIVITY, CHOICES, "linear")
    assert (values["a"], values["b"]) == ({2: 0.0, 4: 2.0, 8: 4.0}, {2: 0.0, 4: 0.5})


def test_linear_counts_positions_among_the_widths_of_all_layers() -> None:
    values = values_for(SENSITIVITY, {"a": [2, 4, 8], "b": [4, 8]})
    assert values["b"] == {4: 0.5, 8: 1.0}


def test_layers_without_a_choice_do_not_shift_the_positions() -> None:
    assert values_for(SENSITIVITY, {"stem": [3], "a": [2, 4]})["a"] == {2: 0.0, 4: 2.0}


@pytest.mark.parametrize("objective", ["linear", "error", "hawq"])
def test_a_layer_without_a_choice_is_worth_nothing(objective: str) -> None:
    assert values_for(SENSITIVITY, CHOICES, objective)["stem"] == {16: 0.0}


def test_error_is_what_is_saved_against_the_narrowest() -> None:
    values = values_for(SENSITIVITY, CHOICES, "error")
    assert (values["a"], values["b"]) == ({2: 0.0, 4: 0.75, 8: 0.9375}, {4: 6.0, 2: 0.0})


def test_hawq_weighs_the_saved_error_with_the_score() -> None:
    values = values_for(SENSITIVITY, CHOICES, "hawq")
    assert (values["a"], values["b"]) == ({2: 0.0, 4: 1.5, 8: 1.875}, {4: 3.0, 2: 0.0})


def test_linear_is_the_default() -> None:
    assert values_for(SENSITIVITY, CHOICES) == values_for(SENSITIVITY, CHOICES, "linear")


@pytest.mark.parametrize("objective", ["linear", "error", "hawq"])
def test_pairs_and_precisions_go_by_their_weights(objective: str) -> None:
    plain = values_for(SENSITIVITY, {"a": [2, 4]}, objective)["a"]
    pairs = values_for(SENSITIVITY, {"a": [(2, 8), (4, 8)]}, objective)["a"]
    precisions = [Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4)]
    exact = values_for(SENSITIVITY, {"a": precisions}, objective)["a"]
    assert list(plain.values()) == list(pairs.values()) == list(exact.values())


@pytest.mark.parametrize(
    "choice", [4, (4, 8), Precision(weight_bits=4, activation_bits=8)], ids=["int", "pair", "Precision"]
)
def test_the_weight_bits_of_a_choice(choice: object) -> None:
    assert weight_bits(choice) == 4  # type: ignore[arg-type]


def test_layers_without_a_sensitivity_are_named() -> None:
    with pytest.raises(AllocationError, match=r"no sensitivity for 1 of 2 layers: c") as caught:
        values_for(SENSITIVITY, {"a": [2, 4], "c": [2, 4]})
    assert caught.value.hint == "was it measured on this network?"


@pytest.mark.parametrize("objective", ["error", "hawq"])
def test_missing_errors_are_named(objective: str) -> None:
    with pytest.raises(AllocationError, match=r"no error of layer 'a' at 3, 5 bits"):
        values_for(SENSITIVITY, {"a": [2, 3, 5]}, objective)


def test_an_unknown_objective_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"no objective named 'best': known: error, hawq, linear"):
        values_for(SENSITIVITY, CHOICES, "best")


def test_every_objective_has_a_summary() -> None:
    assert set(objectives()) >= {"linear", "error", "hawq"}
    assert all(objective.summary for objective in objectives().values())


def test_a_registered_objective_can_be_used() -> None:
    @register_objective("bits")
    def bits(sensitivity: Sensitivity, choices: dict[str, list[int]]) -> dict[str, dict[int, float]]:
        """The more the better."""
        return {layer: {c: float(c) for c in options} for layer, options in choices.items()}

    assert values_for(SENSITIVITY, {"a": [2, 4]}, "bits") == {"a": {2: 2.0, 4: 4.0}}
    assert objectives()["bits"].summary == "The more the better."


def test_a_name_is_registered_once() -> None:
    with pytest.raises(HwbmpqError, match=r"objective 'linear' is already registered by hwbmpq"):
        register_objective("linear")(lambda sensitivity, choices: {})
