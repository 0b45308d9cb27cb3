"""Images in a network's size: in memory if they fit, else read by a DataLoader while they are used."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hwbmpq.data.augment import Transform, seeded
from hwbmpq.data.dataset import Picked, Size, StoredImages, to_grey
from hwbmpq.data.folder import FileImages
from hwbmpq.errors import HwbmpqError

RESIDENT_BYTES = 2 * 1024**3
"""How much the resized images of a data set may take; bigger sets are resized, or decoded, while they are used."""
OnImage = Callable[[int, int], None]
"""Called with how many images are done, and of how many."""
_READ_AT_ONCE = 64
_MOST_WORKERS = 4
_BATCHES_PER_WORKER = 2
"""A worker takes some time to start."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Resident:
    """Images in memory in their final size: a batch is a copy of some of them."""

    pixels: Tensor
    """(N, H, W, C), uint8, contiguous."""

    def take(self, indices: Tensor) -> Tensor:
        return self.pixels.index_select(0, indices)

    def stream(self, orders: Iterable[Tensor]) -> Iterator[Tensor]:
        return (self.take(indices) for indices in orders)


@dataclass(frozen=True, kw_only=True, eq=False)
class Streamed:
    """Images that are read for each batch."""

    picked: Picked
    input_size: Size
    workers: int | None = None
    """Processes that read ahead; None: as many as suit the images."""

    def take(self, indices: Tensor) -> Tensor:
        return self.picked.images.read(self.picked.indices[indices], self.input_size)

    def stream(self, orders: Iterable[Tensor]) -> Iterator[Tensor]:
        return self._load([(self.picked.indices[indices], None) for indices in orders])

    def augmented(
        self, orders: Iterable[tuple[Tensor, Sequence[int]]], transform: Transform
    ) -> Iterator[Tensor]:
        """Batches of transformed images, each with its own random seed."""
        batches = self._load([(self.picked.indices[indices], seeds) for indices, seeds in orders], transform)
        return map(to_grey, batches) if self.input_size[0] == 1 else batches

    def _load(self, orders: Sequence[Any], transform: Transform | None = None) -> Iterator[Tensor]:
        images = self.picked.images
        loader = DataLoader(
            _Batches(images=images, input_size=self.input_size, transform=transform),
            sampler=orders,
            batch_size=None,
            num_workers=_workers(images, self.workers, len(orders)),
            collate_fn=_unchanged,
            generator=torch.Generator(),  # else it draws from the common one
        )
        for batch in loader:
            if isinstance(batch, HwbmpqError):
                raise batch
            yield torch.from_numpy(batch)


Pixels = Resident | Streamed


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batches(Dataset[Any]):
    """Batches by the numbers of their images, and by seeds if there is a transform.

    They are arrays, which go to the training process through a pipe: containers often have little shared memory.
    """

    images: StoredImages
    input_size: Size
    transform: Transform | None

    def __getitem__(self, order: tuple[Tensor, Sequence[int] | None]) -> NDArray[np.uint8] | HwbmpqError:
        indices, seeds = order
        try:
            if self.transform is None or seeds is None:
                return self.images.read(indices, self.input_size).numpy()
            return np.stack([self._transformed(*one) for one in zip(indices.tolist(), seeds, strict=True)])
        except HwbmpqError as error:  # returned: a worker would wrap it into its own traceback
            return error

    def _transformed(self, index: int, seed: int) -> NDArray[np.uint8]:
        assert self.transform is not None
        image = self.images.whole(index, self.input_size)
        with seeded(seed):
            return np.asarray(self.transform(image))


def _unchanged(batch: Any) -> Any:
    return batch


def _workers(images: StoredImages, asked: int | None, batches: int) -> int:
    if asked is None:
        asked = min(_MOST_WORKERS, os.cpu_count() or 1) if isinstance(images, FileImages) else 0
    return min(asked, batches // _BATCHES_PER_WORKER)


def stored_channels(images: StoredImages, channels: int, name: str) -> int:
    """How many channels the images have in memory for a network that takes ``channels``."""
    if images.channels is None or channels == 1:
        return channels
    if images.channels not in (1, channels):
        raise HwbmpqError(
            f"{name}: images of {images.channels} channels do not fit an input of {channels}",
            hint="give an input of as many channels, or of one",
        )
    return images.channels


def settle(
    parts: Sequence[Streamed],
    *,
    name: str,
    limit_bytes: int = RESIDENT_BYTES,
    on_image: OnImage | None = None,
) -> list[Pixels]:
    """All parts in memory if they fit together within ``limit_bytes``, each image read once; else all streamed."""
    sizes = [_new_bytes(part, name) for part in parts]
    if sum(sizes) > limit_bytes:
        return [
            part if size else _resident(part, name, None) for part, size in zip(parts, sizes, strict=True)
        ]
    total, done = sum(len(part.picked) for part in parts), 0

    def count(images: int) -> None:
        nonlocal done
        done += images
        if on_image is not None:
            on_image(done, total)

    return [_resident(part, name, count) for part in parts]


def _new_bytes(part: Streamed, name: str) -> int:
    """Memory for images in this size; 0 if they are in memory as they are wanted."""
    channels, height, width = part.input_size
    channels = stored_channels(part.picked.images, channels, name)
    if part.picked.images.in_memory(part.input_size) is not None:
        return 0
    return len(part.picked) * height * width * channels


def _resident(part: Streamed, name: str, count: Callable[[int], None] | None) -> Resident:
    picked, (channels, height, width) = part.picked, part.input_size
    everything = picked.images.in_memory(part.input_size)
    if everything is not None and torch.equal(picked.indices, torch.arange(len(everything))):
        return Resident(pixels=everything)  # not copied: it may be most of the memory there is
    shape = (len(picked), height, width, stored_channels(picked.images, channels, name))
    pixels = torch.empty(shape, dtype=torch.uint8)
    orders = torch.split(torch.arange(len(picked)), _READ_AT_ONCE)
    for indices, batch in zip(orders, part.stream(orders), strict=True):
        pixels[indices[0] : indices[0] + len(indices)] = batch
        if count is not None:
            count(len(indices))
    return Resident(pixels=pixels)
