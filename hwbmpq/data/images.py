"""Labelled images in a network's size: in memory if they fit, else read by a DataLoader while they are used."""

import math
import multiprocessing
import os
import signal
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
from hwbmpq.normalisation import Normalisation

RESIDENT_BYTES = 2 * 1024**3
"""How much memory the resized images of a data set may take; larger sets are read and resized while they are used."""
OnImage = Callable[[int, int], None]
"""Called with the number of images that are done, and of all images."""
_READ_AT_ONCE = 64
_MOST_WORKERS = 4
_PREFETCHED = 2
"""Batches that each worker reads ahead. With fewer batches than that, starting a worker is not worth its time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Resident:
    """Images in memory in their final size: a batch is a copy of some of them."""

    pixels: Tensor
    """(N, H, W, C), uint8, contiguous; of arrays, (N, …) of any type."""
    indices: Tensor | None = None
    """Which of them; None: all."""

    def take(self, indices: Tensor) -> Tensor:
        return self.pixels.index_select(0, indices if self.indices is None else self.indices[indices])

    def stream(self, orders: Iterable[Tensor]) -> Iterator[Tensor]:
        return (self.take(indices) for indices in orders)


@dataclass(frozen=True, kw_only=True, eq=False)
class Streamed:
    """Images that are read for each batch."""

    picked: Picked
    input_size: Size
    workers: int | None = None
    """Processes that read ahead; None: as many as suit the images."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, H, W, C) of all images in this size; C is 1 for grey images, whatever the network takes."""
        channels, height, width = self.input_size
        stored = self.picked.stored_images.channels
        if stored is None or channels == 1:
            stored = channels
        return len(self.picked), height, width, stored

    def take(self, indices: Tensor) -> Tensor:
        return self.picked.stored_images.read(self.picked.indices[indices], self.input_size)

    def stream(self, orders: Iterable[Tensor]) -> Iterator[Tensor]:
        return self._load([(self.picked.indices[indices], None) for indices in orders])

    def augmented(
        self, orders: Iterable[tuple[Tensor, Sequence[int]]], transform: Transform
    ) -> Iterator[Tensor]:
        """Batches of transformed images, each with its own random seed."""
        batches = self._load([(self.picked.indices[indices], seeds) for indices, seeds in orders], transform)
        return map(to_grey, batches) if self.input_size[0] == 1 else batches

    def _load(self, orders: Sequence[Any], transform: Transform | None = None) -> Iterator[Tensor]:
        images, workers = self.picked.stored_images, self.workers
        if workers is None:
            workers = min(_MOST_WORKERS, os.cpu_count() or 1) if isinstance(images, FileImages) else 0
        workers = min(workers, len(orders) // _PREFETCHED)
        slots = None
        if workers:
            largest = max(len(indices) for indices, _ in orders)
            slots = _Slots.allocate(workers * _PREFETCHED + 1, largest, self.input_size)
        loader = DataLoader(
            _Batches(images=images, input_size=self.input_size, transform=transform, slots=slots),
            sampler=[(number, *order) for number, order in enumerate(orders)],
            batch_size=None,
            num_workers=workers,
            prefetch_factor=_PREFETCHED if workers else None,
            collate_fn=_unchanged,
            worker_init_fn=_ignore_interrupts if workers else None,
            generator=torch.Generator(),  # else it draws from the common one
        )
        for number, batch in enumerate(loader):
            if isinstance(batch, HwbmpqError):
                raise batch
            yield torch.from_numpy(batch if slots is None else slots.get(number, batch).copy())


Pixels = Resident | Streamed


@dataclass(frozen=True, kw_only=True, eq=False)
class _Slots:
    """Memory that workers write batches into, each batch into the next slot.

    Pickling batches through a pipe costs a fifth more CPU time; torch's own way is /dev/shm, of which containers often
    have little, while ``RawArray`` turns to a temporary file if there is not enough.
    """

    memory: Any
    """A ``RawArray``, which a worker gets without a copy."""
    count: int
    """One more than the batches that are under way, so that a batch is not overwritten before it has been copied."""

    @classmethod
    def allocate(cls, count: int, images: int, input_size: Size) -> "_Slots":
        channels, height, width = input_size
        size = images * height * width * max(3, channels)
        return cls(memory=multiprocessing.RawArray("B", count * size), count=count)

    def get(self, number: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """The place of a batch."""
        start = number % self.count * (len(self.memory) // self.count)
        return np.frombuffer(self.memory, np.uint8, math.prod(shape), start).reshape(shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batches(Dataset[Any]):
    """Batches by their number, the numbers of their images, and seeds if there is a transform.

    Without slots a batch is an array; with them it is written there, and its shape is returned. An error is returned
    too, since a worker would wrap it into its own traceback.
    """

    images: StoredImages
    input_size: Size
    transform: Transform | None
    slots: _Slots | None

    def __getitem__(
        self, order: tuple[int, Tensor, Sequence[int] | None]
    ) -> NDArray[np.uint8] | tuple[int, ...] | HwbmpqError:
        number, indices, seeds = order
        try:
            if seeds is None:
                batch = self.images.read(indices, self.input_size).numpy()
            else:
                images = zip(indices.tolist(), seeds, strict=True)
                batch = np.stack([self._transformed(index, seed) for index, seed in images])
        except HwbmpqError as error:
            return error
        if self.slots is None:
            return batch
        self.slots.get(number, batch.shape)[:] = batch
        return batch.shape

    def _transformed(self, index: int, seed: int) -> NDArray[np.uint8]:
        assert self.transform is not None
        image = self.images.whole(index, self.input_size)
        with seeded(seed):
            return np.asarray(self.transform(image))


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches the workers too, and what the program does about it is not theirs to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _unchanged(batch: Any) -> Any:
    return batch


def settle(
    parts: Sequence[Streamed],
    *,
    name: str,
    limit_bytes: int = RESIDENT_BYTES,
    on_image: OnImage | None = None,
) -> list[Pixels]:
    """All parts in memory if they fit together within ``limit_bytes``, each image read once; else all streamed.

    Images that are in memory in this size already take nothing more.
    """
    for part in parts:
        if part.shape[3] not in (1, part.input_size[0]):
            raise HwbmpqError(
                f"{name}: images of {part.shape[3]} channels do not fit an input of {part.input_size[0]}",
                hint="give an input of as many channels, or of one",
            )
    new = [part for part in parts if part.picked.stored_images.in_memory(part.input_size) is None]
    streamed = new if sum(math.prod(part.shape) for part in new) > limit_bytes else []
    total, done = sum(len(part.picked) for part in parts if part not in streamed), 0

    def count(images: int) -> None:
        nonlocal done
        done += images
        if on_image is not None:
            on_image(done, total)

    return [part if part in streamed else _resident(part, count) for part in parts]


def _resident(part: Streamed, count: Callable[[int], None]) -> Resident:
    everything = part.picked.stored_images.in_memory(part.input_size)
    if everything is not None and torch.equal(part.picked.indices, torch.arange(len(everything))):
        return Resident(pixels=everything)  # not copied: it may be most of the memory there is
    pixels = torch.empty(part.shape, dtype=torch.uint8)
    places = torch.split(pixels, _READ_AT_ONCE)
    orders = torch.split(torch.arange(len(pixels)), _READ_AT_ONCE)
    for place, batch in zip(places, part.stream(orders), strict=True):
        place.copy_(batch)
        count(len(batch))
    return Resident(pixels=pixels)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledImages:
    """Images in a network's size, and how they are normalised for it."""

    name: str
    pixels: Pixels
    """Bytes (N, H, W, C); C is 1 for grey images, which are repeated for each channel of the network."""
    labels: Tensor
    """(N,), int64; where the targets are not classes, any numbers."""
    classes: int | None
    input_size: tuple[int, ...]
    """(C, H, W) that ``batches`` yields."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    origin: str = "as given"
    """Whose mean and deviation these are."""
    originals: Streamed | None = None
    """The images as they are stored, for augmentations that take parts of whole photographs."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def normalisation(self) -> Normalisation:
        return Normalisation(mean=self.mean, std=self.std, origin=self.origin)

    @property
    def inputs(self) -> str:
        """What the network gets, and how to change that."""
        if self.normalisation.is_identity:
            return "pixels from 0 to 1, not normalised; --normalise imagenet, data or MEAN/STD changes that"
        return f"normalised with {self.normalisation.described()}; --normalise none feeds 0 to 1"

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images in order, normalised, and their labels; the last batch may be smaller.

        Images are float32 (B, C, H, W) of ``input_size``, channels last in memory.
        """
        if batch_size < 1:
            raise HwbmpqError(f"a batch cannot have {batch_size} images", hint="give at least 1")
        orders = torch.split(torch.arange(len(self)), batch_size)
        for indices, pixels in zip(orders, self.pixels.stream(orders), strict=True):
            yield self.normalised(pixels), self.labels[indices]

    def normalised(self, pixels: Tensor) -> Tensor:
        """Bytes (B, H, W, C) as float32 (B, C, H, W), channels last in memory."""
        channels, height, width = self.input_size
        values = pixels.expand(-1, -1, -1, channels).to(torch.float32, memory_format=torch.contiguous_format)
        # One row per image: an inner dimension of three channels would take ten times as long.
        rows = values.view(len(pixels), -1)
        rows -= torch.tensor([255 * value for value in self.mean]).repeat(height * width)
        rows /= torch.tensor([255 * value for value in self.std]).repeat(height * width)
        return values.permute(0, 3, 1, 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageData:
    """A data set in a network's size: what it is trained on, and what it is measured on."""

    name: str
    train: LabelledImages
    test: LabelledImages
    classes: int | None
    """None where there are no classes."""
    augment: str
    """The augmentation that suits these images: a name of ``AUGMENTATIONS``."""
    remarks: tuple[str, ...] = ()
    validation: LabelledImages | None = None
    """What epochs are compared on, if that is not the test part; see ``hold_out_validation``."""

    @property
    def inputs(self) -> str:
        """How inputs reach the network: one line for the head of a run."""
        return f"inputs: {self.train.inputs}"

    @property
    def samples(self) -> str:
        """What they are called: images can be augmented, other samples cannot."""
        return "images" if type(self.train) is LabelledImages else "samples"

    @property
    def normalise(self) -> str:
        """What ``--normalise`` would have to be for the same inputs."""
        origin = getattr(self.train, "origin", "")  # DataLoaders have none
        return "none" if origin in ("", "none") else str(self.train.normalisation)
