"""Which normalisation inputs get: as it is asked for, or what suits the data."""

from collections.abc import Callable

import torch
from torch import Tensor

from hwbmpq.data.dataset import Size, StoredImages
from hwbmpq.errors import HwbmpqError
from hwbmpq.normalisation import NORMALISATIONS, Normalisation

_IMAGENET = Normalisation(
    mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), origin=NORMALISATIONS["imagenet"]
)
_MEASURED = 2048
_READ_AT_ONCE = 64
Choice = str | Normalisation | None
"""A word of ``NORMALISATIONS``, ``MEAN/STD``, or None for what suits the data."""
Measure = Callable[[], tuple[Tensor, Tensor, int]]
"""Mean and mean square of the data by channel, and which value counts as 1."""
_BYTE = 255


def image_normalisation(choice: Choice, images: StoredImages, input_size: Size) -> Normalisation:
    """For pixels from 0 to 1. By default ImageNet's for colour, which most networks expect; else the images' own."""
    default = "imagenet" if input_size[0] == 3 else "data"
    return _resolved(choice or default, input_size[0], lambda: _of_images(images, input_size))


def array_normalisation(choice: Choice, values: Tensor) -> Normalisation | None:
    """For arrays (N, C, …). By default none; for integers, which may be token ids, then nothing at all is done."""
    if choice in (None, "none") and values.dtype == torch.int64:
        return None
    return _resolved(choice or "none", values.shape[1] if values.ndim > 1 else 1, lambda: _of_arrays(values))


def _resolved(choice: str | Normalisation, channels: int, measure: Measure) -> Normalisation:
    if isinstance(choice, Normalisation):
        return choice.for_channels(channels)
    if choice == "none":
        return Normalisation(mean=(0.0,), std=(1.0,), origin="none").for_channels(channels)
    if choice == "data":
        return _measured(*measure(), channels)
    if choice != "imagenet":
        return Normalisation.parse(choice).for_channels(channels)
    if channels != len(_IMAGENET.mean):
        raise HwbmpqError(
            f"ImageNet's mean and deviation are for 3 channels, but the input has {channels}",
            hint="use --normalise data, none or MEAN/STD",
        )
    return _IMAGENET


def _measured(mean: Tensor, squares: Tensor, one: int, channels: int) -> Normalisation:
    mean = mean.expand(channels)
    std = (squares - mean.square()).clamp(min=0).sqrt()
    std = torch.where(std > 0, std, torch.full_like(std, one))  # one single value everywhere
    found = (tuple((values / one).tolist()) for values in (mean, std))
    return Normalisation(mean=next(found), std=next(found), origin=NORMALISATIONS["data"])


def _sample(count: int) -> Tensor:
    """Up to 2,048, spread evenly over all that are stored, so that a subset is normalised like the whole."""
    return torch.arange(0, count, max(1, -(-count // _MEASURED)))


def _of_images(images: StoredImages, input_size: Size) -> tuple[Tensor, Tensor, int]:
    indices = _sample(len(images))
    total = squares = torch.zeros(1, dtype=torch.float64)
    for chosen in torch.split(indices, _READ_AT_ONCE):
        pixels = images.read(chosen, input_size).double()
        total = total + pixels.mean((1, 2)).sum(0)
        squares = squares + pixels.square().mean((1, 2)).sum(0)
    return total / len(indices), squares / len(indices), _BYTE


def _of_arrays(values: Tensor) -> tuple[Tensor, Tensor, int]:
    chosen = values.index_select(0, _sample(len(values))).double()
    by_channel = chosen.reshape(len(chosen), chosen.shape[1] if chosen.ndim > 1 else 1, -1)
    one = _BYTE if values.dtype == torch.uint8 else 1
    return by_channel.mean((0, 2)), by_channel.square().mean((0, 2)), one
