"""How far a file's answers are from a network's."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.export.runtime.comparison import Agreement, agreement, compare


def test_differences_are_shares_of_the_range_by_the_worst_output_of_each_input() -> None:
    expected = np.array([[0.0, 10.0], [4.0, 2.0], [1.0, 3.0]], np.float32)
    found = expected + np.array([[0.0, 0.1], [0.5, 0.0], [0.0, 1.0]], np.float32)
    result = agreement(expected, found)
    assert result.inputs == 3
    assert result.median_difference == pytest.approx(0.05)
    assert result.largest_difference == pytest.approx(0.1)
    assert result.top1_agreement == 1.0


def test_top1_counts_inputs_with_the_same_highest_score() -> None:
    expected = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], np.float32)
    found = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], np.float32)
    assert agreement(expected, found).top1_agreement == 0.75


def test_outputs_that_are_no_scores_have_no_top1() -> None:
    assert agreement(np.zeros((2, 3, 4), np.float32), np.zeros((2, 3, 4), np.float32)).top1_agreement is None


def test_nan_is_no_small_difference() -> None:
    found = agreement(np.ones((2, 2), np.float32), np.full((2, 2), np.nan, np.float32))
    assert np.isnan(found.largest_difference)
    assert not found.is_plausible


@pytest.mark.parametrize(
    ("median", "largest", "top1", "plausible"),
    [
        (1e-7, 1e-5, 1.0, True),
        (0.3, 0.5, 0.9, True),  # random 2-bit networks flip
        (0.05, 0.5, 0.2, True),
        (0.3, 0.5, 0.2, False),
        (0.3, 0.5, None, False),
        (0.05, np.inf, 1.0, False),
    ],
)
def test_another_network_is_not_plausible(
    median: float, largest: float, top1: float | None, plausible: bool
) -> None:
    found = Agreement(inputs=9, median_difference=median, largest_difference=largest, top1_agreement=top1)
    assert found.is_plausible is plausible


def test_compare_runs_both_on_the_same_batches() -> None:
    batches = [torch.randn(3, 4), torch.randn(2, 4)]
    seen: list[int] = []

    def file(images: np.ndarray) -> np.ndarray:
        seen.append(len(images))
        return images * 2

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    assert compare(Twice(), file, batches).largest_difference == 0
    assert seen == [3, 2]
    with pytest.raises(HwbmpqError, match="no inputs"):
        compare(Twice(), file, [])
    with pytest.raises(HwbmpqError, match=r"of shape \(3, 2\)"):
        compare(Twice(), lambda images: images[:, :2], batches[:1])
