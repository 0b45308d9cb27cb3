"""Data sets that torchvision reads and downloads: CIFAR-10 and CIFAR-100."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from hwbmpq.data.dataset import ArrayImages, StoredPart
from hwbmpq.data.registry import register
from hwbmpq.data.source import DataParts, Request, parts_in_memory
from hwbmpq.data.torchvision_import import import_torchvision
from hwbmpq.errors import HwbmpqError

_CIFAR = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}


@register("cifar10", "CIFAR-10, as cifar-10-batches-py below the data root")
@register("cifar100", "CIFAR-100, as cifar-100-python below the data root")
def open_cifar(request: Request) -> DataParts:
    """The original Python batches.

    They are pickles, which can run any code. torchvision compares the MD5 sum of every file with the
    published one before it opens any of them, and refuses if one differs.
    """
    if request.download:
        download_set(_CIFAR[request.spec], request)
    kind = _class(_CIFAR[request.spec])
    root = request.root
    if root.name == kind.base_folder:  # the folder itself was named, not the one that holds it
        root = root.parent
    train = _part(kind, root, request.spec, train=True)
    test = _part(kind, root, request.spec, train=False) if request.needs_test else None
    return parts_in_memory(request, train, test)


def download_set(class_name: str, request: Request) -> None:
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


def _part(kind: Any, root: Path, spec: str, *, train: bool) -> StoredPart:
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
