"""Images that need no files: scikit-learn's digits, and noise."""

from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from hwbmpq.data.augment import generator_for
from hwbmpq.data.dataset import ArrayImages, Picked, Size, hold_out, to_image
from hwbmpq.data.registry import DataParts, Request, parts_in_memory, register
from hwbmpq.errors import HwbmpqError

_FAKE_CLASSES = 10
_FAKE_SIZE = (3, 32, 32)
_FAKE_TRAIN = 256
_FAKE_TEST = 64
_MOST_FAKE = 2_000_000
"""More than any usual data set; a file of settings may ask for any number, and labels take memory."""


@register(
    "digits",
    "1,797 handwritten digits of 8x8 that come with scikit-learn; nothing to download",
    augment="crop",
    input_size=(3, 32, 32),
)
def open_digits(request: Request) -> DataParts:
    """Scikit-learn's 1,797 handwritten digits of 8 by 8 pixels, which come with the package; a fifth for testing."""
    # Imported here, since it takes a second.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    pixels = torch.from_numpy(digits.images).mul(255 / 16).round().to(torch.uint8)  # stored as 0 to 16
    labels = torch.from_numpy(digits.target).long()
    images = ArrayImages(pixels=pixels.unsqueeze(3))
    return parts_in_memory(request, *hold_out(images, labels, every=5, name=request.spec))


@register("fake", "noise, for trying things out", augment="none")
def open_fake(request: Request) -> DataParts:
    """Noise, for trials in which real images do not matter."""
    classes = request.classes or _FAKE_CLASSES
    test = FakePart(name="test", classes=classes, count=_FAKE_TEST)
    return DataParts(
        train=FakePart(name="train", classes=classes, count=_FAKE_TRAIN),
        test=test if request.needs_test else None,
        classes=classes,
        image_size=_FAKE_SIZE,
    )


@dataclass(frozen=True, kw_only=True)
class FakePart:
    """As many images of noise as are asked for."""

    name: str
    classes: int
    count: int
    """Without a limit."""

    def pick(self, limit: int | None, seed: int) -> Picked:
        count = self.count if limit is None else limit
        if count > _MOST_FAKE:
            raise HwbmpqError(f"fake: {count:,} {self.name} images are asked for, more than {_MOST_FAKE:,}")
        labels = torch.randint(0, self.classes, (count,), generator=generator_for(self.name, seed))
        images = FakeImages(part=self.name, count=count, seed=seed)
        return Picked(images=images, indices=torch.arange(count), labels=labels)


@dataclass(frozen=True, kw_only=True)
class FakeImages:
    """Noise of any size, drawn when it is read."""

    part: str
    count: int
    seed: int

    @property
    def channels(self) -> None:
        return None

    def __len__(self) -> int:
        return self.count

    def in_memory(self, input_size: Size) -> None:
        return None

    def read(self, indices: Tensor, input_size: Size) -> Tensor:
        channels, height, width = input_size
        pixels = torch.empty((len(indices), height, width, channels), dtype=torch.uint8)
        for image, index in zip(pixels, indices.tolist(), strict=True):
            image.random_(0, 256, generator=generator_for(self.part, self.seed, index))
        return pixels

    def whole(self, index: int, input_size: Size) -> Image.Image:
        return to_image(self.read(torch.tensor([index]), (3, *input_size[1:]))[0])
