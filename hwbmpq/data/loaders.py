"""A user's own DataLoaders in the place of a data set."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hwbmpq.data.batches import LoaderBatches
from hwbmpq.data.images import ImageData
from hwbmpq.errors import HwbmpqError


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderImages:
    """Images that a loader yields in batches of its own size, augmented and normalised as it pleases."""

    name: str
    loader: Any
    classes: int
    input_size: tuple[int, ...]

    def __len__(self) -> int:
        """Of the data set behind the loader, if it has one; else its batches count."""
        return len(getattr(self.loader, "dataset", self.loader))

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All batches of the loader, cut where they are larger than ``batch_size``."""
        for images, labels in LoaderBatches(self.loader).epoch(0):
            for start in range(0, len(labels), batch_size):
                yield images[start : start + batch_size], labels[start : start + batch_size]


def from_loaders(train: Any, test: Any, *, classes: int, name: str = "own loaders") -> ImageData:
    """Training and test images for ``compress`` from two DataLoaders that yield (images, labels).

    The batch size, augmentation and order are the loaders'. A run resumes exactly only if they are reproducible.
    """
    first = next(LoaderBatches(train).epoch(0), None)
    if first is None:
        raise HwbmpqError("the training loader yields nothing")
    size = tuple(first[0].shape[1:])
    parts: Any = [LoaderImages(name=name, loader=x, classes=classes, input_size=size) for x in (train, test)]
    return ImageData(name=name, train=parts[0], test=parts[1], classes=classes, augment="none")
