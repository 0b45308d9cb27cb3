"""Labelled images by specification: ``digits``, ``fake`` or ``npz:FILE``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.training.npz import read_npz

DATA_FORMS = ("digits", "fake", "npz:FILE")
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_FAKE_IMAGES = 256
_FAKE_CLASSES = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledImages:
    """Images as they were stored, and how a network wants them."""

    name: str
    images: Tensor
    """(N, C, H, W) in their own size: uint8, or float in 0 to 1."""
    labels: Tensor
    """(N,), int64."""
    classes: int
    input_size: tuple[int, int, int]
    """(C, H, W) that ``batches`` yields."""
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised float32 images of ``input_size``, and labels; the last batch may be smaller."""
        if batch_size < 1:
            raise HwbmpqError(f"a batch cannot have {batch_size} images", hint="give at least 1")
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        for start in range(0, len(self), batch_size):
            images = to_channels(to_unit(self.images[start : start + batch_size]), self.input_size[0])
            yield (
                (_resized(images, self.input_size[1:]) - mean) / std,
                self.labels[start : start + batch_size],
            )


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What a source is asked for; ``detail`` is what follows the colon."""

    detail: str
    input_size: tuple[int, int, int]
    count: int | None
    seed: int
    classes: int | None


_Source = Callable[[_Request], tuple[Tensor, Tensor]]


def load_images(
    spec: str,
    *,
    input_size: tuple[int, ...],
    count: int | None = None,
    seed: int = 0,
    classes: int | None = None,
) -> LabelledImages:
    """The training part of the images that ``spec`` names, for a network that takes ``input_size`` (C, H, W).

    ``count`` takes a random subset, always the same for one ``seed``. ``classes`` is how many outputs the
    network has: an error if there are more labels, and how many ``fake`` draws.
    """
    kind, detail = _parsed(spec)
    request = _Request(
        detail=detail,
        input_size=_checked_size(input_size),
        count=_at_least_one(count, "images"),
        seed=seed,
        classes=_at_least_one(classes, "classes"),
    )
    images, labels = _SOURCES[kind](request)
    found = int(labels.max()) + 1
    if classes is not None and found > classes:
        raise HwbmpqError(f"{spec}: has labels up to {found - 1}, but only {classes} classes are expected")
    images, labels = _subset(images, labels, request)
    mean, std = _normalisation(images, request.input_size[0], spec)
    return LabelledImages(
        name=spec,
        images=images,
        labels=labels,
        classes=(classes or found) if kind == "fake" else found,
        input_size=request.input_size,
        mean=mean,
        std=std,
    )


def _parsed(spec: str) -> tuple[str, str]:
    """``digits`` and ``""``, or ``npz`` and the path."""
    kind, colon, detail = spec.partition(":")
    if kind not in _SOURCES or bool(detail) != (kind == "npz") or (colon and not detail):
        raise UnknownNameError("data", spec, DATA_FORMS, hint=f"use {', '.join(DATA_FORMS)}")
    return kind, detail


def to_unit(images: Tensor) -> Tensor:
    """Pixels as float32 from 0 to 1."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def to_channels(images: Tensor, channels: int) -> Tensor:
    """Grey images repeated for each channel, or channels averaged to grey."""
    if images.shape[1] == channels:
        return images
    return images.mean(1, keepdim=True) if channels == 1 else images.expand(-1, channels, -1, -1)


def _resized(images: Tensor, size: tuple[int, ...]) -> Tensor:
    if tuple(images.shape[2:]) == tuple(size):
        return images
    return F.interpolate(images, size=list(size), mode="bilinear", align_corners=False, antialias=True)


def _subset(images: Tensor, labels: Tensor, request: _Request) -> tuple[Tensor, Tensor]:
    if request.count is None or request.count >= len(labels):
        return images, labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(request.seed))
    chosen = order[: request.count]
    return images[chosen], labels[chosen]


def _normalisation(images: Tensor, channels: int, spec: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation by channel: ImageNet's for colour, which most networks expect, else the images' own."""
    if images.shape[1] not in (1, channels) and channels != 1:
        raise HwbmpqError(f"{spec}: images of {images.shape[1]} channels do not fit an input of {channels}")
    if channels == 3:
        return _IMAGENET_MEAN, _IMAGENET_STD
    std, mean = torch.std_mean(to_channels(to_unit(images), channels), dim=(0, 2, 3), correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))  # images of one single colour
    return tuple(mean.tolist()), tuple(std.tolist())


def _digits(request: _Request) -> tuple[Tensor, Tensor]:
    """Scikit-learn's 1,797 handwritten digits of 8 by 8 pixels, which come with the package."""
    # It takes a second to import: only who asks for digits pays.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    images = torch.from_numpy(digits.images).mul(255 / 16).round().to(torch.uint8)  # stored as 0 to 16
    return images.unsqueeze(1), torch.from_numpy(digits.target).long()


def _fake(request: _Request) -> tuple[Tensor, Tensor]:
    """Noise: for trying out the machinery, where real images do not matter."""
    generator = torch.Generator().manual_seed(request.seed)
    count = request.count or _FAKE_IMAGES
    images = torch.randint(0, 256, (count, *request.input_size), generator=generator, dtype=torch.uint8)
    return images, torch.randint(0, request.classes or _FAKE_CLASSES, (count,), generator=generator)


def _npz(request: _Request) -> tuple[Tensor, Tensor]:
    return read_npz(request.detail)


_SOURCES: dict[str, _Source] = {"digits": _digits, "fake": _fake, "npz": _npz}


def _checked_size(size: tuple[int, ...]) -> tuple[int, int, int]:
    if len(size) != 3 or min(size) < 1:
        raise HwbmpqError(f"images cannot be made to fit an input of {tuple(size)}", hint="give (C, H, W)")
    return (size[0], size[1], size[2])


def _at_least_one(number: int | None, what: str) -> int | None:
    if number is not None and number < 1:
        raise HwbmpqError(f"{number} {what} are too few", hint="give at least 1")
    return number
