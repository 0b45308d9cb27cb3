"""Budgets as people say them."""

import pytest

from hwbmpq.costs import BudgetError, parse_budget
from hwbmpq.costs.network import Budget
from hwbmpq.errors import UnknownNameError


@pytest.mark.parametrize(
    ("cost", "text", "field", "value"),
    [
        ("memory", "350KiB", "amount", 350 * 1024 * 8),
        ("memory", "350 KiB", "amount", 350 * 1024 * 8),
        ("memory", "1.5 MB", "amount", 12e6),
        ("memory", "4 Mbit", "amount", 4e6),
        ("memory", "12x", "ratio", 12),
        ("flash", "10.5×", "ratio", 10.5),
        ("ram", "256KiB", "amount", 256 * 1024 * 8),
        ("latency", "8ms", "amount", 8),
        ("latency", "250 us", "amount", 0.25),
        ("latency", "1.5 s", "amount", 1500),
        ("energy", "40uJ", "amount", 40),
        ("energy", "1.2 mJ", "amount", 1200),
        ("bops", "30%", "share", 0.3),
        ("bops", "30 GBOP", "amount", 30e9),
        ("bops", "3e9", "amount", 3e9),
        ("latency", 8, "amount", 8),
        ("lookup_table", "3 ms or uJ", "amount", 3),
    ],
)
def test_a_budget_is_read(cost: str, text: str | float, field: str, value: float) -> None:
    budget = parse_budget(cost, text)
    assert getattr(budget, field) == pytest.approx(value)
    others = {"amount", "share", "ratio"} - {field}
    assert isinstance(budget, Budget)
    assert all(getattr(budget, other) is None for other in others)


@pytest.mark.parametrize(
    ("cost", "text", "message"),
    [
        ("memory", "350", "'350' has no unit; write it like 350KiB"),
        ("memory", "350 KB", "'KB' is ambiguous: write kB"),
        ("latency", "3 MHz", "'MHz' is not a unit of a quantity in ms"),
        ("latency", "12x", "only a memory can be so many times smaller than in float"),
        ("energy", "-3 uJ", "must be greater than zero"),
        ("memory", "0x", "must be greater than zero"),
        ("memory", "0%", "must be greater than zero"),
        ("memory", "-3x", "must be greater than zero"),
        ("bops", "130%", "is more than every layer at its widest"),
        ("latency", float("nan"), "must be greater than zero"),
        ("latency", "fast", "'fast' is not a quantity in ms"),
        ("latency", "", "'' is not a quantity"),
    ],
)
def test_a_wrong_budget_gets_one_sentence_and_the_valid_forms(
    cost: str, text: str | float, message: str
) -> None:
    with pytest.raises(BudgetError, match=message) as caught:
        parse_budget(cost, text)
    assert caught.value.hint.startswith(f"write {cost}=")


def test_an_unknown_cost_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match="no cost named 'latncy': did you mean latency"):
        parse_budget("latncy", "8 ms")
