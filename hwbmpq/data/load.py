"""Labelled images by specification, such as ``digits``, ``cifar10`` or ``folder:PATH``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwbmpq.data.dataset import Picked, Size
from hwbmpq.data.images import (
    RESIDENT_BYTES,
    ImageData,
    LabelledImages,
    OnImage,
    Streamed,
    normalisation,
    settle,
)
from hwbmpq.data.registry import DataParts, DataSource, Request, parse_data
from hwbmpq.errors import HwbmpqError

DEFAULT_ROOT = Path("data")
"""Where data sets are looked for, from the current folder."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenData:
    """A data set that has been found: what a network must know of it, before the images are brought to its size."""

    name: str
    source: DataSource
    parts: DataParts

    @property
    def classes(self) -> int:
        return self.parts.classes

    @property
    def image_size(self) -> Size:
        """(C, H, W) of the images as they are stored; of files, of the first one."""
        return self.parts.image_size

    @property
    def default_input_size(self) -> Size | None:
        """The default input size of a network for these images; None: the network's own."""
        return self.source.input_size

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.parts.remarks

    def sized(
        self,
        input_size: tuple[int, ...],
        *,
        train_limit: int | None = None,
        test_limit: int | None = None,
        seed: int = 0,
        resident_bytes: int = RESIDENT_BYTES,
        workers: int | None = None,
        on_image: OnImage | None = None,
    ) -> ImageData:
        """Both parts for a network that takes ``input_size`` (C, H, W).

        Images are resized so that their short side fits, and their centre is cropped. They are kept in memory as
        bytes if that takes up to ``resident_bytes``, each being read once (``on_image`` is told the progress);
        else they are read while they are used. ``workers`` is how many processes read; by default up to four for
        files and none for images in memory. A limit takes a random subset, always the same for one ``seed``.
        """
        if self.parts.test is None:
            raise HwbmpqError(f"{self.name}: was opened without its test part")
        parts = [
            self.parts.train.pick(_at_least_one(train_limit, "training images"), seed),
            self.parts.test.pick(_at_least_one(test_limit, "test images"), seed),
        ]
        train, test = self._labelled(
            parts, input_size, workers=workers, limit_bytes=resident_bytes, on_image=on_image
        )
        return ImageData(
            name=self.name,
            train=train,
            test=test,
            classes=self.classes,
            augment=self.source.augment,
            remarks=self.remarks,
        )

    def training_images(
        self, input_size: tuple[int, ...], *, count: int | None = None, seed: int = 0
    ) -> LabelledImages:
        """The training part only; see ``sized``."""
        train = self.parts.train.pick(_at_least_one(count, "images"), seed)
        return self._labelled([train], input_size)[0]

    def _labelled(
        self, parts: Sequence[Picked], size: tuple[int, ...], *, workers: int | None = None, **memory: Any
    ) -> list[LabelledImages]:
        """All parts normalised like the first one. ``memory`` are arguments of ``settle``."""
        if len(size) != 3 or min(size) < 1:
            raise HwbmpqError(
                f"images cannot be made to fit an input of {tuple(size)}", hint="give (C, H, W)"
            )
        input_size = (size[0], size[1], size[2])
        streamed = [Streamed(picked=part, input_size=input_size, workers=workers) for part in parts]
        pixels = settle(streamed, name=self.name, **memory)
        mean, std = normalisation(parts[0].images, input_size)
        return [
            LabelledImages(
                name=self.name,
                pixels=found,
                labels=part.picked.labels,
                classes=self.classes,
                input_size=input_size,
                mean=mean,
                std=std,
                originals=part,
            )
            for part, found in zip(streamed, pixels, strict=True)
        ]


def open_data(
    spec: str,
    *,
    root: Path | str | None = None,
    download: bool = False,
    classes: int | None = None,
    needs_test: bool = True,
) -> OpenData:
    """Find the images that ``spec`` names (a form of ``DATA_SOURCES``): their number of classes and their size.

    ``root`` is the folder that holds data sets (default: ``data``); nothing is downloaded unless ``download``
    says so. ``classes`` is how many outputs the network has, if that is known already: an error if there are
    more labels, and how many ``fake`` draws. Without ``needs_test`` no test part is read, nor held out of a
    file that has none.
    """
    source, detail = parse_data(spec)
    request = Request(
        spec=spec,
        detail=detail,
        root=DEFAULT_ROOT if root is None else Path(root),
        download=download,
        needs_test=needs_test,
        classes=_at_least_one(classes, "classes"),
    )
    parts = source.open(request)
    if classes is not None and parts.classes > classes:
        raise HwbmpqError(
            f"{spec}: has labels up to {parts.classes - 1}, but only {classes} classes are expected",
            hint=f"give the network {parts.classes} classes",
        )
    return OpenData(name=spec, source=source, parts=parts)


def load_data(
    spec: str,
    *,
    input_size: tuple[int, ...],
    root: Path | str | None = None,
    download: bool = False,
    train_limit: int | None = None,
    test_limit: int | None = None,
    seed: int = 0,
    classes: int | None = None,
    on_image: OnImage | None = None,
) -> ImageData:
    """The training and the test part of the images that ``spec`` names; see ``open_data`` and ``OpenData.sized``."""
    opened = open_data(spec, root=root, download=download, classes=classes)
    return opened.sized(
        input_size, train_limit=train_limit, test_limit=test_limit, seed=seed, on_image=on_image
    )


def load_images(
    spec: str,
    *,
    input_size: tuple[int, ...],
    count: int | None = None,
    seed: int = 0,
    classes: int | None = None,
    root: Path | str | None = None,
    download: bool = False,
) -> LabelledImages:
    """The training part of the images that ``spec`` names; ``count`` takes a random subset."""
    opened = open_data(spec, root=root, download=download, classes=classes, needs_test=False)
    return opened.training_images(input_size, count=count, seed=seed)


def _at_least_one(number: int | None, what: str) -> int | None:
    if number is not None and number < 1:
        raise HwbmpqError(f"{number} {what} are too few", hint="give at least 1")
    return number
