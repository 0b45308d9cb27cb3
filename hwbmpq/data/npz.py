"""Images in Keras's layout: an ``.npz`` file with x_train, y_train, x_test and y_test."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hwbmpq.data.dataset import ArrayImages, StoredPart, hold_out
from hwbmpq.data.numpy_files import open_arrays
from hwbmpq.data.registry import DataParts, Request, parts_in_memory, register
from hwbmpq.errors import HwbmpqError
from hwbmpq.printable import cut

_PARTS = ("train", "test")
_HELD_OUT = 10
_LAYOUT_HINT = (
    "the file should hold x_train (N, H, W, C) or (N, H, W) and y_train (N), as Keras's data sets do"
)


@register("npz:PATH", "arrays x_train, y_train, x_test, y_test in a file of numpy's, as Keras has them")
def open_npz(request: Request) -> DataParts:
    """Both parts; if there is only one, it is for training, but for one image in ten."""
    parts = _read_parts(request.detail, wanted=len(_PARTS) if request.needs_test else 1)
    (name, (pixels, labels)), *others = parts.items()
    train = StoredPart(images=ArrayImages(pixels=pixels), labels=labels)
    if not request.needs_test:
        return parts_in_memory(request, train, None)
    if others:
        pixels, labels = parts["test"]
        return parts_in_memory(request, train, StoredPart(images=ArrayImages(pixels=pixels), labels=labels))
    train, test = hold_out(pixels, labels, every=_HELD_OUT, name=request.spec)
    missing = "test" if name == "train" else "train"
    remark = (
        f"{request.detail} has no x_{missing}: {len(test.labels)} of {len(labels)} images, always the same, "
        "are held out for testing"
    )
    return parts_in_memory(request, train, test, (remark,))


def _read_parts(path: str, wanted: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Images (N, H, W, C) as bytes and int64 labels of the first ``wanted`` parts that there are."""
    if not Path(path).is_file():
        raise HwbmpqError(f"{path}: no such file", hint="give the path of an npz file: npz:FILE")
    with open_arrays(path, hint=_LAYOUT_HINT) as archive:
        parts = [part for part in _PARTS if f"x_{part}" in archive and f"y_{part}" in archive]
        if not parts:
            held = cut(", ".join(archive)) or "nothing"
            raise HwbmpqError(f"{path}: holds no x_train with y_train, but {held}", hint=_LAYOUT_HINT)
        arrays = {part: (archive[f"x_{part}"], archive[f"y_{part}"]) for part in parts[:wanted]}
    return {part: _checked(images, labels, path, part) for part, (images, labels) in arrays.items()}


def _checked(
    images: NDArray[np.generic], labels: NDArray[np.generic], path: str, part: str
) -> tuple[Tensor, Tensor]:
    labels = _checked_labels(labels, f"{path}: y_{part}")
    images = _checked_images(images, f"{path}: x_{part}")
    if len(images) != len(labels):
        raise HwbmpqError(f"{path}: x_{part} has {len(images)} images, but y_{part} {len(labels)} labels")
    return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels)


def _checked_labels(labels: NDArray[np.generic], where: str) -> NDArray[np.int64]:
    if labels.ndim == 2 and labels.shape[1] == 1:  # as Keras's CIFAR has them
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise HwbmpqError(
            f"{where}: {labels.dtype} of shape {labels.shape} are not labels",
            hint="give whole numbers from 0, (N,)",
        )
    if not len(labels) or labels.min() < 0 or labels.max() >= 2**31:
        raise HwbmpqError(f"{where}: is empty or holds labels that are not class numbers from 0")
    return labels.astype(np.int64)


def _checked_images(images: NDArray[np.generic], where: str) -> NDArray[np.uint8]:
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or 0 in images.shape:
        raise HwbmpqError(f"{where}: shape {images.shape} is not a list of images", hint=_LAYOUT_HINT)
    if images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        raise HwbmpqError(f"{where}: shape {images.shape} has its channels first", hint=_LAYOUT_HINT)
    if images.dtype == np.uint8:
        return images.astype(np.uint8, copy=False)
    if not np.issubdtype(images.dtype, np.floating):
        raise HwbmpqError(
            f"{where}: pixels of type {images.dtype} are not understood", hint="use uint8 or float"
        )
    return _to_bytes(images.astype(np.float32), where)


def _to_bytes(pixels: NDArray[np.float32], where: str) -> NDArray[np.uint8]:
    low, high = float(pixels.min()), float(pixels.max())  # NaN if any is
    if not 0 <= low <= high <= 255:
        raise HwbmpqError(
            f"{where}: values from {low} to {high} are not pixels", hint="give pixels from 0 to 1 or 0 to 255"
        )
    return np.rint(pixels if high > 1 else pixels * np.float32(255)).astype(np.uint8)
