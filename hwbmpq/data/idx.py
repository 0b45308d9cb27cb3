"""Fashion-MNIST, read from its IDX files."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hwbmpq.data.dataset import ArrayImages, StoredPart
from hwbmpq.data.registry import register
from hwbmpq.data.source import DataParts, Request, parts_in_memory
from hwbmpq.data.torchvision_sets import download_set
from hwbmpq.errors import HwbmpqError

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts them."""
_BYTES = 0x08  # the type of IDX's values


@register("fashion-mnist", "Fashion-MNIST's IDX files below the data root, or Debian's dataset-fashion-mnist")
def open_fashion_mnist(request: Request) -> DataParts:
    """From torchvision's folder FashionMNIST/raw, from ``root`` itself, or from Debian's package."""
    if request.download:
        download_set("FashionMNIST", request)
    folders = [request.root / "FashionMNIST" / "raw", request.root, DEBIAN_FOLDER]
    folder = next((place for place in folders if _file(place, "train-images-idx3-ubyte")), None)
    if folder is None:
        looked = ", ".join(str(place.absolute()) for place in folders)
        raise HwbmpqError(
            f"{request.spec}: no train-images-idx3-ubyte (or .gz) in {looked}",
            hint="apt install dataset-fashion-mnist, or --download, or --data-root DIR of the folder with the IDX files",
        )
    train = _part(folder, "train")
    test = _part(folder, "t10k") if request.needs_test else None
    return parts_in_memory(request, train, test)


def _part(folder: Path, name: str) -> StoredPart:
    pixels = read_idx(_needed(folder, f"{name}-images-idx3-ubyte"), dimensions=3)
    labels = read_idx(_needed(folder, f"{name}-labels-idx1-ubyte"), dimensions=1)
    if len(pixels) != len(labels):
        raise HwbmpqError(f"{folder}: {name} has {len(pixels)} images, but {len(labels)} labels")
    return StoredPart(images=ArrayImages(pixels=pixels.unsqueeze(3)), labels=labels.long())


def _needed(folder: Path, name: str) -> Path:
    path = _file(folder, name)
    if path is None:
        raise HwbmpqError(f"{folder}: has no {name} (or .gz)", hint="get all four files of the data set")
    return path


def _file(folder: Path, name: str) -> Path | None:
    paths = (folder / name, folder / f"{name}.gz")
    return next((path for path in paths if path.is_file()), None)


def read_idx(path: Path, *, dimensions: int) -> Tensor:
    """Bytes in the shape that the file's head gives: two zeros, type, dimensions, then each length (big-endian)."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise HwbmpqError(f"{path}: cannot be read: {error}", hint="get the file again") from error
    head = 4 + 4 * dimensions
    if len(content) < head or content[:4] != bytes((0, 0, _BYTES, dimensions)):
        raise HwbmpqError(f"{path}: is no IDX file of bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:head])
    if len(content) - head != math.prod(shape) or 0 in shape:
        raise HwbmpqError(
            f"{path}: should hold {' x '.join(map(str, shape))} bytes, but holds {len(content) - head}",
            hint="get the file again",
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy())
