"""Random windows and mirror images, as arithmetic on pixel indices."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from hwbmpq.errors import UnknownNameError


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What is done at random to an image each time it is shown."""

    name: str
    description: str
    shifts: bool = False
    flips: bool = False


AUGMENTATIONS: Mapping[str, Augmentation] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Augmentation(name="none", description="images as they are"),
            Augmentation(
                name="crop",
                description="shifted by up to an eighth of the size, edges reflected: for digits and other "
                "pictures whose mirror image means something else",
                shifts=True,
            ),
            Augmentation(
                name="flip-crop",
                description="shifted as with crop, and mirrored left to right every other time",
                shifts=True,
                flips=True,
            ),
        )
    }
)


def get_augmentation(name: str) -> Augmentation:
    if name not in AUGMENTATIONS:
        raise UnknownNameError("augmentation", name, AUGMENTATIONS, hint=f"use {', '.join(AUGMENTATIONS)}")
    return AUGMENTATIONS[name]


@dataclass(frozen=True, kw_only=True, eq=False)
class Windows:
    """Which row and which column of its image each pixel of a batch is taken from."""

    rows: Tensor
    """(B, H), int64."""
    columns: Tensor
    """(B, W), int64."""

    def part(self, start: int, end: int) -> "Windows":
        """Those of some of the images."""
        return Windows(rows=self.rows[start:end], columns=self.columns[start:end])

    def of(self, pixels: Tensor) -> Tensor:
        """The windows of the images (B, H, W, C), in the same shape."""
        count, height, width, channels = pixels.shape
        # Rows are copied whole and columns gathered: several times as fast as indexing pixels one by one.
        rows = (torch.arange(count)[:, None] * height + self.rows).flatten()
        tall = pixels.reshape(count * height, width * channels).index_select(0, rows)
        columns = (self.columns[:, :, None] * channels + torch.arange(channels)).view(count, 1, -1)
        wide = tall.view(count, height, width * channels).gather(2, columns.expand(-1, height, -1))
        return wide.view(count, height, width, channels)


def draw_windows(
    augmentation: Augmentation, count: int, height: int, width: int, generator: torch.Generator
) -> Windows | None:
    """Windows for a batch of ``count`` images; None if nothing is changed.

    As if each image were padded by an eighth of its size (4 pixels of 32) with its reflection, a window
    of its size cut out anywhere, and that mirrored with probability one half.
    """
    if not (augmentation.shifts or augmentation.flips):
        return None
    rows = _shifted(count, height, augmentation.shifts, generator)
    columns = _shifted(count, width, augmentation.shifts, generator)
    if augmentation.flips:
        is_flipped = torch.randint(0, 2, (count, 1), generator=generator, dtype=torch.bool)
        columns = torch.where(is_flipped, columns.flip(1), columns)
    return Windows(rows=rows, columns=columns)


def _shifted(count: int, length: int, shifts: bool, generator: torch.Generator) -> Tensor:
    """(count, length): positions 0 to length - 1, moved by a random number of pixels and reflected at the ends."""
    most = length // 8 if shifts else 0
    moves = torch.randint(-most, most + 1, (count, 1), generator=generator)
    positions = (torch.arange(length) + moves).abs()
    last = length - 1
    return last - (last - positions).abs()
