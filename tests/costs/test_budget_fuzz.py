"""Whatever somebody gives for a budget: a budget that can be used, or one short sentence with the valid forms."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwbmpq.cli.options.settings import read_budgets
from hwbmpq.costs import BudgetError, cost_models, parse_budget
from hwbmpq.errors import HwbmpqError

COSTS = sorted(name for name, entry in cost_models().items() if entry.entry is not None)
WORDS = "0 1 12 350 -3 +7 1e400 1e-400 . , _ e % x × X KiB KB kB MB Mbit ms us s uJ mJ BOP GBOP bit B b/weight µ nan inf ٣ ²"
PIECES = st.sampled_from([*WORDS.split(), " ", "\n", "\t", "\0", "=", "9" * 400])
TEXTS = st.lists(PIECES, max_size=6).map("".join) | st.text(max_size=80) | st.text(min_size=500, max_size=600)


def refusal_of(cost: str, value: Any) -> BudgetError | None:
    """The sentence, or None for a budget that can be used; nothing else comes out."""
    try:
        budget = parse_budget(cost, value)
    except BudgetError as error:
        return error
    assert 0 < budget.value < math.inf
    return None


def assert_ends_well(cost: str, value: Any) -> bool:
    """Whether it was taken."""
    refusal = refusal_of(cost, value)
    assert refusal is None or (len(str(refusal)) < 400 and f"{cost}=" in refusal.hint)
    return refusal is None


@settings(max_examples=2000)
@given(cost=st.sampled_from(COSTS), text=TEXTS)
def test_any_text_is_a_budget_or_one_sentence(cost: str, text: str) -> None:
    assert_ends_well(cost, text)


@settings(max_examples=500)
@given(
    cost=st.sampled_from(COSTS),
    value=st.integers() | st.floats() | st.none() | st.booleans() | st.lists(st.integers(), max_size=2),
)
def test_any_value_is_a_budget_or_one_sentence(cost: str, value: Any) -> None:
    assert_ends_well(cost, value)


@pytest.mark.parametrize(
    "value",
    [10**400, -(10**400), 10**5000, None, [1], True, {}],
    ids="big small huge none list bool dict".split(),
)
def test_what_is_no_number_at_all_is_refused(value: Any) -> None:
    assert not assert_ends_well("latency", value)


@settings(max_examples=500)
@given(
    words=st.lists(
        st.tuples(st.sampled_from([*COSTS, "", "memry"]), st.sampled_from(["=", "", "=="]), TEXTS), max_size=3
    )
)
def test_any_words_of_the_command_line_are_budgets_or_one_sentence(words: list[tuple[str, str, str]]) -> None:
    try:
        budgets = read_budgets(["".join(word) for word in words])
    except HwbmpqError:
        return
    for name, text in budgets.items():
        if name in COSTS:
            assert_ends_well(name, text)
