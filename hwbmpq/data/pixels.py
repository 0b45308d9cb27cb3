"""Images in a network's size: in memory if they fit, else read while they are used."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from hwbmpq.data.dataset import Picked, Size, StoredImages
from hwbmpq.errors import HwbmpqError

RESIDENT_BYTES = 2 * 1024**3
"""How much the resized images of a data set may take; bigger sets are resized, or decoded, while they are used."""
OnImage = Callable[[int, int], None]
"""Called with how many images are done, and of how many."""
_READ_AT_ONCE = 256
_BATCHES_AHEAD = 2


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
    """Images that are read for each batch, a few batches before they are wanted."""

    picked: Picked
    input_size: Size

    def take(self, indices: Tensor) -> Tensor:
        return self.picked.images.read(self.picked.indices[indices], self.input_size)

    def stream(self, orders: Iterable[Tensor]) -> Iterator[Tensor]:
        pool = ThreadPoolExecutor(1)
        waiting: deque[Future[Tensor]] = deque()
        try:
            for indices in orders:
                waiting.append(pool.submit(self.take, indices))
                if len(waiting) > _BATCHES_AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # whoever stops early does not wait for batches that nobody wants
            pool.shutdown(cancel_futures=True)


Pixels = Resident | Streamed


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
    parts: Sequence[Picked],
    input_size: Size,
    *,
    name: str,
    limit_bytes: int = RESIDENT_BYTES,
    on_image: OnImage | None = None,
) -> list[Pixels]:
    """All parts in memory if they fit together within ``limit_bytes``, each image read once; else all streamed."""
    sizes = [_new_bytes(part, input_size, name) for part in parts]
    if sum(sizes) > limit_bytes:
        return [
            Streamed(picked=part, input_size=input_size) if size else _resident(part, input_size, name)
            for part, size in zip(parts, sizes, strict=True)
        ]
    total = sum(len(part) for part in parts)
    settled: list[Pixels] = []
    for index, part in enumerate(parts):
        before = sum(len(earlier) for earlier in parts[:index])
        settled.append(_resident(part, input_size, name, _shifted(on_image, before, total)))
    return settled


def _new_bytes(part: Picked, input_size: Size, name: str) -> int:
    """Memory for images in this size; 0 if they are in memory as they are wanted."""
    channels = stored_channels(part.images, input_size[0], name)
    if part.images.in_memory(input_size) is not None:
        return 0
    return len(part) * input_size[1] * input_size[2] * channels


def _resident(
    part: Picked, input_size: Size, name: str, on_image: Callable[[int], None] | None = None
) -> Resident:
    channels, height, width = input_size
    whole = part.images.in_memory(input_size)
    if whole is not None and torch.equal(part.indices, torch.arange(len(whole))):
        return Resident(pixels=whole)  # not copied: it may be most of the memory there is
    shape = (len(part), height, width, stored_channels(part.images, channels, name))
    pixels = torch.empty(shape, dtype=torch.uint8)
    for start in range(0, len(part), _READ_AT_ONCE):
        indices = part.indices[start : start + _READ_AT_ONCE]
        pixels[start : start + len(indices)] = part.images.read(indices, input_size)
        if on_image is not None:
            on_image(start + len(indices))
    return Resident(pixels=pixels)


def _shifted(on_image: OnImage | None, before: int, total: int) -> Callable[[int], None] | None:
    """What counts the images of one part among those of all."""
    return None if on_image is None else lambda done: on_image(before + done, total)
