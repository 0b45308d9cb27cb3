"""What arrays in a file hold: images, other samples, labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hwbmpq.data.dataset import ArrayImages
from hwbmpq.data.stored_arrays import StoredArrays, is_ambiguous
from hwbmpq.errors import HwbmpqError

Samples = NDArray[np.generic]
_COLOURS = (1, 3)
_CHECKED_AT_ONCE = 1024
_ON_THE_GRID = 1e-3
"""How far a float may be from a whole number of 255ths: float32 rounds them by 2e-5."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """How the arrays of a data set are read, all parts alike."""

    are_images: bool
    channel_axis: int | None = None
    """Of images, without the batch; None if they have none."""
    scale: int = 1
    """What turns float pixels into bytes."""
    remarks: tuple[str, ...] = ()

    def stored(self, samples: Samples) -> ArrayImages | StoredArrays:
        if not self.are_images:
            return StoredArrays(values=_as_tensor(samples))
        if samples.dtype != np.uint8:
            samples = np.rint(samples.astype(np.float32) * np.float32(self.scale)).astype(np.uint8)
        pixels = (
            samples[..., None]
            if self.channel_axis is None
            else np.moveaxis(samples, self.channel_axis + 1, -1)
        )
        return ArrayImages(pixels=torch.from_numpy(np.ascontiguousarray(pixels)))


def recognise(
    named: Mapping[str, Samples], *, layout: str = "auto", floats_are_pixels: bool = False
) -> Contents:
    """What the parts of a data set hold, by where they stand.

    Bytes are pixels, and so are floats that are bytes in disguise (k or k/255); all else is taken as it is.

    Only what has the axes of an image is one: (H, W), (H, W, C) or (C, H, W).
    """
    (where, first), *_ = named.items()
    shape, parts = first.shape[1:], list(named.values())
    for place, samples in named.items():
        _check(samples, shape, place)
    scale = _pixel_scale(parts, floats_are_pixels) if _has_image_axes(shape, layout) else None
    axis = _channel_axis(shape, layout) if len(shape) == 3 else None
    has_colours = axis is None or shape[axis] in _COLOURS or floats_are_pixels
    if scale is not None and (has_colours or all(samples.dtype == np.uint8 for samples in parts)):
        either = layout == "auto" and axis is not None and {shape[0], shape[2]} <= set(_COLOURS)
        remark = f"{where}: images of {_text(shape)} are taken as channels last; --layout channels-first changes that"
        return Contents(are_images=True, channel_axis=axis, scale=scale, remarks=(remark,) if either else ())
    remark = (
        f"{where}: arrays of {_text(shape)} are taken as channels first; --layout channels-last changes that"
    )
    return Contents(are_images=False, remarks=(remark,) if is_ambiguous(shape, layout) else ())


def _has_image_axes(shape: tuple[int, ...], layout: str) -> bool:
    """Two axes are an image unless somebody says that one of them is for channels."""
    return len(shape) == 3 or (len(shape) == 2 and layout == "auto")


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _check(samples: Samples, shape: tuple[int, ...], where: str) -> None:
    if samples.ndim < 2 or 0 in samples.shape:
        raise HwbmpqError(
            f"{where}: shape {samples.shape} is not a list of samples", hint="give (N, …), N at least 1"
        )
    if samples.shape[1:] != shape:
        raise HwbmpqError(
            f"{where}: samples of {_text(samples.shape[1:])} stand beside others of {_text(shape)}"
        )
    if samples.dtype.kind not in "fiub":
        raise HwbmpqError(
            f"{where}: values of type {samples.dtype} are not understood", hint="use float or integer"
        )
    if samples.dtype.kind == "f" and not np.isfinite(samples).all():
        raise HwbmpqError(
            f"{where}: holds values that are not finite (NaN or infinite)",
            hint="replace them, or leave these samples out: numpy.isfinite finds them",
        )


def _channel_axis(shape: tuple[int, ...], layout: str) -> int:
    """Of images: the axis of 1 or 3, else the shorter of the first and the last; the last if both would do."""
    if layout != "auto":
        return 0 if layout == "channels-first" else 2
    first, last = shape[0] in _COLOURS, shape[2] in _COLOURS
    return 0 if (first and not last) or (first == last and not last and shape[0] < shape[2]) else 2


def _pixel_scale(parts: Sequence[Any], floats_are_pixels: bool) -> int | None:
    """What turns floats among the values into bytes; None if the values are not pixels."""
    floats = [samples for samples in parts if samples.dtype != np.uint8]
    if not floats:
        return 1
    low, high = min(part.min() for part in floats), max(part.max() for part in floats)
    if any(part.dtype.kind != "f" for part in floats) or not 0 <= low <= high <= 255:
        return None
    scale = 1 if high > 1 else 255
    return scale if floats_are_pixels or all(_are_bytes(part, scale) for part in floats) else None


def _are_bytes(samples: Any, scale: int) -> bool:
    chunks = (samples[start : start + _CHECKED_AT_ONCE] for start in range(0, len(samples), _CHECKED_AT_ONCE))
    return all(np.abs(part * scale - np.rint(part * scale)).max() < _ON_THE_GRID for part in chunks)


def _as_tensor(samples: Any) -> Tensor:
    """Floats as float32, bytes as they are, other integers as int64."""
    kind: Any = (
        np.uint8 if samples.dtype == np.uint8 else np.float32 if samples.dtype.kind == "f" else np.int64
    )
    return torch.from_numpy(np.ascontiguousarray(samples.astype(kind, copy=False)))


def checked_labels(labels: Samples, where: str, *, has_classes: bool = True) -> Tensor:
    """Class numbers (N,); without classes, float32 or int64 targets of any shape."""
    if not has_classes and labels.ndim and len(labels) and labels.dtype.kind in "fiub":
        return torch.from_numpy(labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64))
    if labels.ndim == 2 and labels.shape[1] == 1:  # as Keras's CIFAR has them
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise HwbmpqError(
            f"{where}: {labels.dtype} of shape {labels.shape} are not labels",
            hint="give whole numbers from 0, (N,)",
        )
    if not len(labels) or labels.min() < 0 or labels.max() >= 2**31:
        raise HwbmpqError(f"{where}: is empty or holds labels that are not class numbers from 0")
    return torch.from_numpy(labels.astype(np.int64))
