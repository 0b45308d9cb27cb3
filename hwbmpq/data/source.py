"""What is asked of a source of images, and what it finds."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hwbmpq.data.dataset import ArrayImages, Part, Size, StoredPart
from hwbmpq.errors import HwbmpqError


@dataclass(frozen=True, kw_only=True)
class Request:
    """Where to look; ``detail`` is what follows the colon of ``spec``."""

    spec: str
    detail: str
    root: Path
    download: bool
    needs_test: bool
    classes: int | None
    """How many the network has, if that is known."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DataParts:
    """The parts of a data set, before anybody says in which size they are wanted."""

    train: Part
    test: Part | None
    """None only if none was asked for."""
    classes: int
    image_size: Size
    remarks: tuple[str, ...] = ()


def parts_in_memory(
    request: Request, train: StoredPart, test: StoredPart | None, remarks: tuple[str, ...] = ()
) -> DataParts:
    """Images in memory, once their labels are known to belong together."""
    assert isinstance(train.images, ArrayImages)
    if test is not None:
        _check_classes(train.labels, test.labels, request.spec)
    return DataParts(
        train=train,
        test=test,
        classes=int(train.labels.max()) + 1,
        image_size=train.images.size,
        remarks=remarks,
    )


def _check_classes(train: Tensor, test: Tensor, spec: str) -> None:
    unknown = test[~torch.isin(test, train)]
    if len(unknown):
        classes = ", ".join(map(str, sorted(set(unknown.tolist()))[:5]))
        raise HwbmpqError(
            f"{spec}: {len(unknown)} test images are of classes that no training image has: {classes}",
            hint="number the classes of both parts alike",
        )
