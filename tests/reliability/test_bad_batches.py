"""Batches and files with pixels that are no numbers."""

from collections.abc import Callable

import numpy as np
import pytest
from faults import Trial, bad_batch
from runs import assert_clear_error


def test_a_batch_with_a_pixel_that_is_no_number_ends_the_run_and_costs_nothing(
    trial: Callable[[int], Trial],
) -> None:
    bad_batch(trial(0))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_file_with_a_pixel_that_is_no_number_is_refused_before_training(
    value: float, trial: Callable[[int], Trial]
) -> None:
    at_hand = trial(0)
    pixels = np.random.default_rng(0).random((40, 8, 8, 3)).astype(np.float32)
    pixels[7, 3, 3, 1] = value
    labels = np.arange(40) % 10
    np.savez(at_hand.folder / "bad.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    words = at_hand.server.compress("run", "-q", "--data", "npz:bad.npz")
    assert_clear_error(at_hand.server.run(words, folder=at_hand.folder), "bad.npz: x_train", "try: ")
    assert not (at_hand.folder / "run").exists()
