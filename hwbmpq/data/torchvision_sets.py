"""Data sets that torchvision downloads: CIFAR-10 and CIFAR-100, which it also reads, and Fashion-MNIST.

Fashion-MNIST's IDX files are read here: torchvision reads neither Debian's compressed ones nor any folder but its own.
"""

import gzip
import math
import struct
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hwbmpq.data.dataset import ArrayImages, StoredPart
from hwbmpq.data.registry import DataParts, Request, parts_in_memory, register
from hwbmpq.data.torchvision_import import import_torchvision
from hwbmpq.errors import HwbmpqError
from hwbmpq.io import open_regular

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts its files."""
_BYTES = 0x08  # the type of IDX's values
_MOST_BYTES = 1 << 28
_CIFAR = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}


@register("cifar10", "CIFAR-10, as cifar-10-batches-py below the data root")
@register("cifar100", "CIFAR-100, as cifar-100-python below the data root")
def open_cifar(request: Request) -> DataParts:
    """The original Python batches.

    They are pickles, which can run any code. torchvision compares the MD5 sum of every file with the
    published one before it opens any of them, and refuses if one differs.
    """
    if request.download:
        _download(_CIFAR[request.spec], request)
    kind = _class(_CIFAR[request.spec])
    root = request.root
    if root.name == kind.base_folder:  # the folder itself was named, not the one that holds it
        root = root.parent
    train = _cifar_part(kind, root, request.spec, train=True)
    test = _cifar_part(kind, root, request.spec, train=False) if request.needs_test else None
    return parts_in_memory(request, train, test)


def _download(class_name: str, request: Request) -> None:
    """Fetch a data set unless it is there already."""
    try:
        _class(class_name)(str(request.root), download=True)
    except (OSError, RuntimeError) as error:  # no network, no room, or not what it should be
        raise HwbmpqError(
            f"{request.spec}: cannot be downloaded to {request.root.absolute()}: {error}",
            hint="without --download, files that are there already are used: --data-root DIR",
        ) from error


def _class(name: str) -> Any:
    import_torchvision()
    return getattr(import_module("torchvision.datasets"), name)


def _cifar_part(kind: Any, root: Path, spec: str, *, train: bool) -> StoredPart:
    try:
        data = kind(str(root), train=train)
    except RuntimeError as error:
        raise _missing(kind, root, spec) from error
    pixels = torch.from_numpy(data.data).contiguous()
    return StoredPart(images=ArrayImages(pixels=pixels), labels=torch.tensor(data.targets))


def _missing(kind: Any, root: Path, spec: str) -> HwbmpqError:
    """Which files are not there; or, if all are, which are not what was published."""
    folder = root.absolute() / kind.base_folder
    sums = dict((*kind.train_list, *kind.test_list))
    sums[kind.meta["filename"]] = kind.meta["md5"]
    hint = f"give the folder that holds {kind.base_folder}: --data-root DIR; or fetch it: --download"
    missing = [name for name in sums if not (folder / name).is_file()]
    if missing:
        return HwbmpqError(f"{spec}: {folder} has no {', '.join(missing)}", hint=hint)
    check = import_module("torchvision.datasets.utils").check_integrity
    wrong = ", ".join(name for name, md5 in sums.items() if not check(str(folder / name), md5))
    return HwbmpqError(
        f"{spec}: {folder}: not opened, since MD5 sums are not the published ones: {wrong}", hint=hint
    )


@register("fashion-mnist", "Fashion-MNIST's IDX files below the data root, or Debian's dataset-fashion-mnist")
def open_fashion_mnist(request: Request) -> DataParts:
    """From torchvision's folder FashionMNIST/raw, from ``root`` itself, or from Debian's package."""
    if request.download:
        _download("FashionMNIST", request)
    folders = [request.root / "FashionMNIST" / "raw", request.root, DEBIAN_FOLDER]
    folder = next((place for place in folders if _file(place, "train-images-idx3-ubyte")), None)
    if folder is None:
        looked = ", ".join(str(place.absolute()) for place in folders)
        raise HwbmpqError(
            f"{request.spec}: no train-images-idx3-ubyte (or .gz) in {looked}",
            hint="apt install dataset-fashion-mnist, or --download, or --data-root DIR of the folder with the IDX files",
        )
    train = _idx_part(folder, "train")
    test = _idx_part(folder, "t10k") if request.needs_test else None
    return parts_in_memory(request, train, test)


def _idx_part(folder: Path, name: str) -> StoredPart:
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
        with open_regular(path, _MOST_BYTES) as file:
            stream = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            content = stream.read(_MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise HwbmpqError(f"{path}: cannot be read: {error}", hint="get the file again") from error
    head = 4 + 4 * dimensions
    if len(content) < head or content[:4] != bytes((0, 0, _BYTES, dimensions)):
        raise HwbmpqError(f"{path}: is not an IDX file of bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:head])
    if len(content) - head != math.prod(shape) or 0 in shape:
        raise HwbmpqError(
            f"{path}: should hold {' x '.join(map(str, shape))} bytes, but holds {len(content) - head}",
            hint="get the file again",
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy())
