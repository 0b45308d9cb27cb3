"""A test part for images that come without one."""

import numpy as np
import torch
from torch import Tensor

from hwbmpq.data.dataset import ArrayImages, StoredPart
from hwbmpq.errors import HwbmpqError


def hold_out(pixels: Tensor, labels: Tensor, *, every: int, name: str) -> tuple[StoredPart, StoredPart]:
    """A training and a test part: one image in ``every`` is for testing, of all classes alike; always the same.

    A class's only image stays in the training part.
    """
    # numpy promises that RandomState never changes its numbers; torch promises nothing of the kind.
    shuffled = np.random.RandomState(0).permutation(len(labels))
    numbers = labels.numpy()[shuffled]
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    by_class = numbers.argsort(kind="stable")
    test = torch.from_numpy(shuffled[by_class[counts[place[by_class]] > 1]][::every]).sort().values
    if not len(test):
        raise HwbmpqError(
            f"{name}: no class has two images, so that none can be held out for testing",
            hint="give more images, or a test part",
        )
    is_test = torch.zeros(len(labels), dtype=torch.bool).index_fill_(0, test, True)
    train = torch.arange(len(labels))[~is_test]
    return _part(pixels, labels, train), _part(pixels, labels, test)


def _part(pixels: Tensor, labels: Tensor, indices: Tensor) -> StoredPart:
    images = ArrayImages(pixels=pixels.index_select(0, indices))
    return StoredPart(images=images, labels=labels[indices])
