"""Labelled images as a network takes them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hwbmpq.data.dataset import Size, StoredImages
from hwbmpq.data.pixels import Pixels, Streamed
from hwbmpq.errors import HwbmpqError

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_MEASURED_IMAGES = 2048
_MEASURED_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledImages:
    """Images in a network's size, and how they are normalised for it."""

    name: str
    pixels: Pixels
    """Bytes (N, H, W, C); C is 1 for grey images, which are repeated for each channel of the network."""
    labels: Tensor
    """(N,), int64."""
    classes: int
    input_size: Size
    """(C, H, W) that ``batches`` yields."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    originals: Streamed | None = None
    """The images as they are stored, for augmentations that take parts of whole photographs."""

    def __len__(self) -> int:
        return len(self.labels)

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
        rows -= _in_bytes(self.mean, height * width)
        rows /= _in_bytes(self.std, height * width)
        return values.permute(0, 3, 1, 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageData:
    """A data set in a network's size: what it is trained on, and what it is measured on."""

    name: str
    train: LabelledImages
    test: LabelledImages
    classes: int
    augment: str
    """The augmentation that suits these images: a name of ``AUGMENTATIONS``."""
    remarks: tuple[str, ...] = ()


def normalisation(images: StoredImages, input_size: Size) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation by channel, of pixels from 0 to 1.

    ImageNet's for colour, which most networks expect; else the images' own, by up to 2,048 of them. These
    are spread evenly over all that are stored, so that a subset is normalised like the whole.
    """
    channels = input_size[0]
    if channels == 3:
        return _IMAGENET_MEAN, _IMAGENET_STD
    indices = torch.arange(0, len(images), max(1, -(-len(images) // _MEASURED_IMAGES)))
    total = squares = torch.zeros(1, dtype=torch.float64)
    for chosen in torch.split(indices, _MEASURED_AT_ONCE):
        pixels = images.read(chosen, input_size).double()
        total = total + pixels.mean((1, 2)).sum(0)
        squares = squares + pixels.square().mean((1, 2)).sum(0)
    mean = (total / len(indices)).expand(channels)
    std = (squares / len(indices) - mean.square()).clamp(min=0).sqrt()
    std = torch.where(std > 0, std, torch.full_like(std, 255))  # images of one single colour
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())


def _in_bytes(by_channel: tuple[float, ...], pixels: int) -> Tensor:
    """What belongs to each value of an image, on a scale to 255."""
    return torch.tensor([255 * value for value in by_channel]).repeat(pixels)
