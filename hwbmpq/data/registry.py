"""The sources of images by name, what they are asked for and what they return; each is registered by the module that
opens it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hwbmpq.data.dataset import ArrayImages, Part, Size, StoredPart
from hwbmpq.data.loader_part import LoaderPart
from hwbmpq.data.stored_arrays import StoredArrays
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.registry import DATA_SOURCES as DATA_SOURCES


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
    layout: str = "auto"
    """Where arrays have their channels: a name of ``LAYOUTS``."""
    has_classes: bool = True
    """Whether targets have to be class numbers; else they may be any numbers of any shape."""
    floats_are_pixels: bool = False
    """Take every float array that can be as images, rounded to bytes: what 0.1.0 did."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DataParts:
    """The parts of a data set, in the size in which they are stored."""

    train: Part | LoaderPart
    test: Part | LoaderPart | None
    """None only if none was asked for."""
    validation: Part | LoaderPart | None = None
    """None: some of the training part is held out."""
    classes: int | None
    """None if the targets are not classes."""
    image_size: tuple[int, ...]
    """Of images (C, H, W); of arrays, as they are stored."""
    remarks: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32
    """Of the inputs that loaders yield."""

    @property
    def holds_arrays(self) -> bool:
        """Whether the samples are arrays in memory that are not images."""
        return isinstance(self.train, StoredPart) and isinstance(self.train.images, StoredArrays)


def parts_in_memory(
    request: Request, train: StoredPart, test: StoredPart | None, remarks: tuple[str, ...] = ()
) -> DataParts:
    """Parts of images or arrays in memory. All classes of the test part must occur in the training part."""
    assert isinstance(train.images, ArrayImages | StoredArrays)
    if test is not None and request.has_classes:
        _check_classes(train.labels, test.labels, request.spec)
    return DataParts(
        train=train,
        test=test,
        classes=int(train.labels.max()) + 1 if request.has_classes else None,
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


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """One way to name images."""

    form: str
    """As it is written; capitals stand for what the user fills in."""
    description: str
    open: Callable[[Request], DataParts]
    augment: str = "flip-crop"
    input_size: Size | None = None
    """The default input size of a network for these images; None: the network's own."""

    @property
    def kind(self) -> str:
        return self.form.partition(":")[0]


def register(
    form: str, description: str, *, augment: str = "flip-crop", input_size: Size | None = None
) -> Callable[[Callable[[Request], DataParts]], Callable[[Request], DataParts]]:
    """Function decorator: make a source of images known by what stands before the colon of ``form``."""

    def add(opener: Callable[[Request], DataParts]) -> Callable[[Request], DataParts]:
        source = DataSource(
            form=form, description=description, open=opener, augment=augment, input_size=input_size
        )
        DATA_SOURCES.add(source.kind, source)
        return opener

    return add


def parse_data(spec: str) -> tuple[DataSource, str]:
    """The source that a specification names, and what follows its colon."""
    kind, colon, detail = spec.partition(":")
    source = DATA_SOURCES.get(kind) if kind in DATA_SOURCES else None
    if source is None or (":" in source.form) != bool(detail) or (colon and not detail):
        known = [entry.form for entry in DATA_SOURCES.values()]
        raise UnknownNameError("data", spec, known, hint=f"use {', '.join(known)}")
    return source, detail
