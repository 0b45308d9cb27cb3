"""What ``--normalise``, ``--mean`` and ``--std`` mean."""

import pytest

from hwbmpq.errors import HwbmpqError
from hwbmpq.normalisation import Normalisation, given_normalisation


def test_a_normalisation_is_read_as_it_was_written() -> None:
    found = Normalisation(mean=(0.1 + 0.2, 1 / 3), std=(2.0,))
    assert Normalisation.parse(str(found)) == found


def test_one_number_is_for_all_channels() -> None:
    assert Normalisation.parse("0.5/0.25").for_channels(3) == Normalisation.parse(
        "0.5,0.5,0.5/0.25,0.25,0.25"
    )


def test_as_many_numbers_as_channels_are_needed() -> None:
    with pytest.raises(HwbmpqError, match="the mean has 2 values, but the input has 3 channels"):
        Normalisation.parse("0.5,0.4/0.25").for_channels(3)


@pytest.mark.parametrize("text", ["0.5", "half/0.25", "0.5/0.25/1", "/", "imagenett", "0.5/"])
def test_what_is_not_a_normalisation_is_told_how_to_write_one(text: str) -> None:
    with pytest.raises(HwbmpqError, match="cannot read the normalisation") as raised:
        given_normalisation(text, None, None)
    assert "none, imagenet, data or MEAN/STD" in raised.value.hint


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, True, 3, [[1], [2]]], ids=str)
def test_what_a_file_may_hold_in_its_place_is_one_sentence_too(value: object) -> None:
    for given in ((value, None, None), (None, value, "x"), (None, [0.5], {"b": 2})):
        with pytest.raises(HwbmpqError, match="cannot read the normalisation"):
            given_normalisation(*given)


@pytest.mark.parametrize("text", ["0.5/0", "nan/1", "0/inf", "0.5/-1"])
def test_numbers_that_nothing_can_be_divided_by_are_refused(text: str) -> None:
    with pytest.raises(HwbmpqError, match="cannot normalise with"):
        given_normalisation(text, None, None)


def test_mean_and_std_are_the_same_thing_in_two_flags() -> None:
    assert given_normalisation(None, (0.5, 0.4), (0.25,)) == "0.5,0.4/0.25"
    assert given_normalisation("data", None, None) == "data"
    assert given_normalisation(None, None, None) is None


@pytest.mark.parametrize("given", [(None, (0.5,), None), (None, None, (0.5,)), ("none", (0.5,), (0.5,))])
def test_half_of_a_normalisation_or_two_are_refused(
    given: tuple[str | None, tuple[float], tuple[float]],
) -> None:
    with pytest.raises(HwbmpqError, match="give --mean and --std together, without --normalise"):
        given_normalisation(*given)


def test_many_equal_numbers_are_shown_once_and_many_others_cut() -> None:
    assert Normalisation(mean=(0.0,) * 64, std=(1.0,) * 64).described() == "mean 0, std 1 (as given)"
    many = Normalisation(mean=tuple(map(float, range(40))), std=(1.0,))
    assert many.described() == "mean 0, 1, 2, 3 … (40 values), std 1 (as given)"
