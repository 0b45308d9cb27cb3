"""Images as a data set stores them, how they are split, and how they are made to fit a network."""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from hwbmpq.data.stored_arrays import StoredArrays
from hwbmpq.errors import HwbmpqError

Size = tuple[int, int, int]
"""(C, H, W)."""


class StoredImages(Protocol):
    """Images that can be read in any size."""

    @property
    def channels(self) -> int | None:
        """How many each image has; None if it has as many as the network wants."""

    def __len__(self) -> int: ...

    def in_memory(self, input_size: Size) -> Tensor | None:
        """All of them, if they are already in memory just as ``read`` would return them."""

    def read(self, indices: Tensor, input_size: Size) -> Tensor:
        """(B, H, W, C) as uint8 bytes, in the height and width of ``input_size``.

        C is 1 for grey images, whatever the network takes: they are repeated when they are normalised.
        """

    def whole(self, index: int, input_size: Size) -> Image.Image:
        """One image as it is stored, in colour. Only images without a size of their own use ``input_size``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayImages:
    """Images of one size, all in memory."""

    pixels: Tensor
    """(N, H, W, C), uint8."""

    def __post_init__(self) -> None:
        assert self.pixels.dtype == torch.uint8
        assert self.pixels.ndim == 4

    @property
    def channels(self) -> int:
        return self.pixels.shape[3]

    @property
    def size(self) -> Size:
        _, height, width, channels = self.pixels.shape
        return channels, height, width

    def __len__(self) -> int:
        return len(self.pixels)

    def only(self, indices: Tensor) -> "ArrayImages":
        return replace(self, pixels=self.pixels.index_select(0, indices))

    def in_memory(self, input_size: Size) -> Tensor | None:
        is_ready = self.size[1:] == input_size[1:] and (self.channels == 1 or input_size[0] > 1)
        return self.pixels if is_ready else None

    def read(self, indices: Tensor, input_size: Size) -> Tensor:
        # index_select copies whole images; indexing with brackets takes ten times as long.
        return fitted(self.pixels.index_select(0, indices), input_size)

    def whole(self, index: int, input_size: Size) -> Image.Image:
        return to_image(self.pixels[index])


@dataclass(frozen=True, kw_only=True, eq=False)
class Picked:
    """Some of the stored images, and their labels."""

    images: StoredImages | StoredArrays
    indices: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def stored_images(self) -> StoredImages:
        assert not isinstance(self.images, StoredArrays)
        return self.images


class Part(Protocol):
    """The training or the test part of a data set."""

    def pick(self, limit: int | None, seed: int) -> Picked:
        """All, or a random subset of ``limit`` images: always the same for one ``seed``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredPart:
    """Stored images, one label each (int64)."""

    images: StoredImages | StoredArrays
    labels: Tensor

    def pick(self, limit: int | None, seed: int) -> Picked:
        count = len(self.labels)
        if limit is None or limit >= count:
            return Picked(images=self.images, indices=torch.arange(count), labels=self.labels)
        indices = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:limit]
        return Picked(images=self.images, indices=indices, labels=self.labels[indices])


def fitted(pixels: Tensor, input_size: Size) -> Tensor:
    """Images (B, H, W, C) in the height and width of ``input_size``, and grey if that has one channel."""
    channels, height, width = input_size
    if tuple(pixels.shape[1:3]) != (height, width):
        top, left, tall, wide = centred_window(pixels.shape[1], pixels.shape[2], height, width)
        window = pixels[:, top : top + tall, left : left + wide].permute(0, 3, 1, 2)
        resized = F.interpolate(
            window, size=(height, width), mode="bilinear", align_corners=False, antialias=True
        )
        pixels = resized.permute(0, 2, 3, 1).contiguous()
    return to_grey(pixels) if channels == 1 else pixels


def to_image(pixels: Tensor) -> Image.Image:
    """An image (H, W, C) of one or three channels in colour."""
    return Image.fromarray(pixels.expand(-1, -1, 3).numpy())


def to_grey(pixels: Tensor) -> Tensor:
    """The mean of the channels."""
    if pixels.shape[3] == 1:
        return pixels
    return pixels.float().mean(3, keepdim=True).round_().to(torch.uint8)


def centred_window(
    height: int, width: int, target_height: int, target_width: int
) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the largest window in the middle with the target's proportions.

    Resizing it is what "resize the short side, then crop the centre" gives, without resizing what is
    cropped. Nothing is stretched.

    >>> centred_window(100, 60, 32, 32)
    (20, 0, 60, 60)
    """
    scale = min(height / target_height, width / target_width)
    tall = max(1, min(height, round(target_height * scale)))
    wide = max(1, min(width, round(target_width * scale)))
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def hold_out(
    images: ArrayImages | StoredArrays, labels: Tensor, *, every: int, name: str
) -> tuple[StoredPart, StoredPart]:
    """A training and a test part: one image in ``every`` is for testing, of all classes alike; always the same.

    A class's only image stays in the training part. Targets that are not classes count as one.
    """
    # numpy promises that RandomState never changes its numbers; torch promises nothing of the kind.
    shuffled = np.random.RandomState(0).permutation(len(labels))
    has_classes = labels.ndim == 1 and not labels.is_floating_point()
    numbers = (labels if has_classes else labels.new_zeros(len(labels))).numpy()[shuffled]
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    by_class = numbers.argsort(kind="stable")
    test = torch.from_numpy(shuffled[by_class[counts[place[by_class]] > 1]][::every]).sort().values
    if not len(test):
        raise HwbmpqError(
            f"{name}: no class has two images, so none can be held out for testing",
            hint="give more images, or a test part",
        )
    is_test = torch.zeros(len(labels), dtype=torch.bool).index_fill_(0, test, True)
    train = torch.arange(len(labels))[~is_test]
    first, second = (StoredPart(images=images.only(part), labels=labels[part]) for part in (train, test))
    return first, second
