"""Random augmentation: windows and mirror images as arithmetic on pixel indices, which is fast for small images in
memory; torchvision's and timm's transforms for photographs. And the random numbers for it."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hwbmpq.data.torchvision_import import import_timm
from hwbmpq.errors import UnknownNameError

Transform = Callable[[Image.Image], Image.Image]
_RAND_AUGMENT = "rand-m9-inc1"
"""As timm trains ImageNet networks, but always at magnitude 9: at 10 its posterize asks for 0 bits, which Pillow refuses."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What is done at random to an image each time it is shown."""

    name: str
    description: str
    shifts: bool = False
    flips: bool = False
    resizes: bool = False
    """A random part of the image as it is stored, in the network's size; what follows comes after that."""
    distorts: bool = False


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
            Augmentation(
                name="random-resized-crop",
                description="a random part of the photograph in a random proportion, mirrored every other time",
                flips=True,
                resizes=True,
            ),
            Augmentation(
                name="rand-augment",
                description="as random-resized-crop, then timm's RandAugment: colours, contrast, rotation, …",
                flips=True,
                resizes=True,
                distorts=True,
            ),
        )
    }
)


def get_augmentation(name: str) -> Augmentation:
    if name not in AUGMENTATIONS:
        raise UnknownNameError("augmentation", name, AUGMENTATIONS, hint=f"use {', '.join(AUGMENTATIONS)}")
    return AUGMENTATIONS[name]


def photograph_transform(augmentation: Augmentation, height: int, width: int) -> Transform:
    """torchvision's and timm's transforms; they draw from the common random generators (see ``seeded``)."""
    import_timm()
    transforms: Any = import_module("torchvision.transforms.v2")
    steps = [transforms.RandomResizedCrop((height, width)), transforms.RandomHorizontalFlip()]
    if augmentation.distorts:
        auto_augment: Any = import_module("timm.data.auto_augment")
        steps.append(auto_augment.rand_augment_transform(_RAND_AUGMENT, {}))
    transform: Transform = transforms.Compose(steps)
    return transform


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The common generators of Python, numpy and torch at a seed, and afterwards as they were."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Windows:
    """Which row and which column of its image each pixel of a batch is taken from."""

    rows: Tensor
    """(B, H), int64."""
    columns: Tensor
    """(B, W), int64."""

    def part(self, images: slice) -> "Windows":
        """Those of some of the images."""
        return Windows(rows=self.rows[images], columns=self.columns[images])

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
    if augmentation.resizes or not (augmentation.shifts or augmentation.flips):
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


def generator_for(*key: int | str) -> torch.Generator:
    """A generator for each key: its numbers depend on what they are for, not on what was drawn before."""
    # Hashed: seeds that are sums or products of small numbers would repeat under other keys.
    digest = blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))
