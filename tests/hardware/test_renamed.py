"""Names of 0.1.0 that changed still work, with a warning."""

import pytest

import hwbmpq


@pytest.mark.parametrize(
    ("package", "old", "new"),
    [
        ("hardware", "Problem", "ProfileProblem"),
        ("hardware", "end_precision", "first_last_precision"),
        ("data", "DATA_FORMS", "DATA_SOURCES"),
    ],
)
def test_an_old_name_is_the_new_thing(package: str, old: str, new: str) -> None:
    module = getattr(hwbmpq, package)
    with pytest.warns(DeprecationWarning, match=f"hwbmpq.{package}.{old} is now hwbmpq.{package}.{new}"):
        assert getattr(module, old) is getattr(module, new)
