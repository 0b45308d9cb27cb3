"""Images in files, decoded when they are read."""

import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hwbmpq.data.dataset import Size, centred_window, to_grey
from hwbmpq.errors import HwbmpqError

EXTENSIONS = frozenset({".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_THREADS = min(16, os.cpu_count() or 1)  # Pillow lets go of the interpreter while it decodes and resizes
_SPARE_RESOLUTION = 2
_UNREADABLE = (
    OSError,
    SyntaxError,  # what Pillow calls a broken PNG
    ValueError,
    EOFError,
    struct.error,
    Image.DecompressionBombError,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class FileImages:
    """Image files of any size, read as RGB.

    Each is resized so that its short side fits, and its centre is cropped. Orientation tags of cameras are
    not followed, as torchvision's ``ImageFolder`` does not.
    """

    paths: Sequence[Path]

    @property
    def channels(self) -> int:
        return 3

    def __len__(self) -> int:
        return len(self.paths)

    def in_memory(self, input_size: Size) -> None:
        return None

    def read(self, indices: Tensor, input_size: Size) -> Tensor:
        channels, height, width = input_size
        pixels = torch.empty((len(indices), height, width, 3), dtype=torch.uint8)
        targets = pixels.numpy()

        def decode_into(place: int, index: int) -> None:
            targets[place] = decode(self.paths[index], height, width)

        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(decode_into, range(len(indices)), indices.tolist()):
                pass  # an error of a thread is raised here, and what is left is cancelled
        return to_grey(pixels) if channels == 1 else pixels


def decode(path: Path, height: int, width: int) -> NDArray[np.uint8]:
    """(height, width, 3) of the centre of an image file."""
    try:
        with Image.open(path) as image:
            # JPEG can be decoded at a half, a quarter or an eighth of its size: for photographs much faster.
            image.draft("RGB", (width * _SPARE_RESOLUTION, height * _SPARE_RESOLUTION))
            top, left, tall, wide = centred_window(image.height, image.width, height, width)
            box = (left, top, left + wide, top + tall)
            resized = _rgb(image).crop(box).resize((width, height), Image.Resampling.BILINEAR)
            return np.asarray(resized)
    except _UNREADABLE as error:
        raise HwbmpqError(
            f"{path}: cannot be decoded: {error}", hint="replace the file, or take it out of the folder"
        ) from error


def image_size(path: Path) -> Size:
    """(3, H, W) as a file's head says; nothing is decoded."""
    try:
        with Image.open(path) as image:
            return 3, image.height, image.width
    except _UNREADABLE as error:
        raise HwbmpqError(f"{path}: is no image: {error}", hint="replace the file, or remove it") from error


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns if such a palette becomes RGB at once
    return image.convert("RGB")
