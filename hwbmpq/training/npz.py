"""Images in Keras's layout: an ``.npz`` file with x_train, y_train, x_test and y_test."""

import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from hwbmpq.errors import HwbmpqError

_PARTS = ("train", "test")  # in this order of preference
_LAYOUT_HINT = (
    "the file should hold x_train (N, H, W, C) or (N, H, W) and y_train (N), as Keras's data sets do"
)


def read_npz(path: str) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W), uint8 or float in 0 to 1, and int64 labels, of the training part if there is one."""
    if not Path(path).is_file():
        raise HwbmpqError(f"{path}: no such file", hint="give the path of an npz file: npz:FILE")
    try:
        # Opened here: numpy leaves a file open that turns out to be no archive.
        with Path(path).open("rb") as file:
            part, images, labels = _read_part(_opened(file, path), path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise HwbmpqError(f"{path}: cannot be read as an npz file: {error}", hint=_hint(error)) from error
    labels = _checked_labels(labels, f"{path}: y_{part}")
    images = _checked_images(images, f"{path}: x_{part}")
    if len(images) != len(labels):
        raise HwbmpqError(f"{path}: x_{part} has {len(images)} images, but y_{part} {len(labels)} labels")
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)


def _opened(file: BinaryIO, path: str) -> NpzFile:
    archive = np.load(file, allow_pickle=False)  # a pickle could run any code
    if not isinstance(archive, NpzFile):
        raise HwbmpqError(f"{path}: holds a single array, not an npz archive", hint=_LAYOUT_HINT)
    return archive


def _read_part(archive: NpzFile, path: str) -> tuple[str, NDArray[np.generic], NDArray[np.generic]]:
    """``train`` or ``test``, its images and its labels; nothing else is read."""
    for part in _PARTS:
        if f"x_{part}" in archive and f"y_{part}" in archive:
            return part, archive[f"x_{part}"], archive[f"y_{part}"]
    held = ", ".join(archive) or "nothing"
    raise HwbmpqError(f"{path}: holds no x_train with y_train, but {held}", hint=_LAYOUT_HINT)


def _hint(error: Exception) -> str:
    return "save it anew with np.savez, without pickled objects" if "pickle" in str(error) else _LAYOUT_HINT


def _checked_labels(labels: NDArray[np.generic], where: str) -> NDArray[np.int64]:
    if labels.ndim == 2 and labels.shape[1] == 1:  # as Keras's CIFAR has them
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise HwbmpqError(
            f"{where}: {labels.dtype} of shape {labels.shape} are no labels",
            hint="give whole numbers from 0, (N,)",
        )
    if not len(labels) or labels.min() < 0 or labels.max() >= 2**31:
        raise HwbmpqError(f"{where}: is empty or holds labels that are no class numbers from 0")
    return labels.astype(np.int64)


def _checked_images(images: NDArray[np.generic], where: str) -> NDArray[np.generic]:
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or 0 in images.shape:
        raise HwbmpqError(f"{where}: shape {images.shape} is no list of images", hint=_LAYOUT_HINT)
    if images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        raise HwbmpqError(f"{where}: shape {images.shape} has its channels first", hint=_LAYOUT_HINT)
    if images.dtype == np.uint8:
        return images
    if not np.issubdtype(images.dtype, np.floating):
        raise HwbmpqError(
            f"{where}: pixels of type {images.dtype} are not understood", hint="use uint8 or float"
        )
    pixels = images.astype(np.float32)
    low, high = float(pixels.min()), float(pixels.max())  # NaN if any is
    if not 0 <= low <= high <= 255:
        raise HwbmpqError(
            f"{where}: values from {low} to {high} are no pixels", hint="give pixels from 0 to 1 or 0 to 255"
        )
    return pixels / np.float32(255) if high > 1 else pixels
