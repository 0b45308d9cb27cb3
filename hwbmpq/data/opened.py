"""A data set that has been found, and its parts as a network takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hwbmpq.data.arrays import LabelledArrays
from hwbmpq.data.batches import LoaderImages, from_loaders
from hwbmpq.data.dataset import ArrayImages, Picked
from hwbmpq.data.default_normalisation import Choice, array_normalisation, image_normalisation
from hwbmpq.data.images import (
    RESIDENT_BYTES,
    ImageData,
    LabelledImages,
    OnImage,
    Resident,
    Streamed,
    settle,
)
from hwbmpq.data.loader_part import LoaderPart
from hwbmpq.data.registry import DataParts, DataSource
from hwbmpq.data.stored_arrays import StoredArrays, own_size
from hwbmpq.errors import HwbmpqError

_CALIBRATION_BATCH = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenData:
    """A data set that has been found: what a network must know of it, before the images are brought to its size."""

    name: str
    source: DataSource
    parts: DataParts
    layout: str = "auto"

    @property
    def classes(self) -> int | None:
        return self.parts.classes

    @property
    def image_size(self) -> tuple[int, ...]:
        """(C, H, W) of the images as they are stored; of files, of the first one. Of arrays, as they are stored."""
        return self.parts.image_size

    @property
    def are_images(self) -> bool:
        """Whether they can be made to fit any input of (C, H, W)."""
        return not self.parts.holds_arrays and not isinstance(self.parts.train, LoaderPart)

    @property
    def common_size(self) -> tuple[int, ...] | None:
        """That of all images; None if each may have its own."""
        images = getattr(self.parts.train, "images", None)
        return self.image_size if isinstance(images, ArrayImages) else self.default_input_size

    def input_dtype(self, normalise: Choice = None) -> torch.dtype:
        """What a network gets: int64 for token ids, else float32."""
        images = getattr(self.parts.train, "images", None)
        if isinstance(images, StoredArrays) and images.values.dtype == torch.int64:
            return torch.int64 if normalise in (None, "none") else torch.float32
        return self.parts.dtype

    @property
    def default_input_size(self) -> tuple[int, ...] | None:
        """The default input size of a network for this data; None: the network's own."""
        if isinstance(self.parts.train, LoaderPart):
            return self.parts.image_size
        return (
            own_size(self.parts.image_size, self.layout)
            if self.parts.holds_arrays
            else self.source.input_size
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.parts.remarks

    def input_size_for(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """``wanted`` if the data can be made to fit it, else an error: only images can be resized."""
        if isinstance(self.parts.train, LoaderPart) and wanted != self.parts.image_size:
            given, taken = ("x".join(map(str, size)) for size in (self.parts.image_size, wanted))
            raise HwbmpqError(f"{self.name}: yields inputs of {given}, but the network takes {taken}")
        if self.parts.holds_arrays:
            StoredArrays(values=torch.empty(1, *self.parts.image_size)).arranged(
                wanted, self.layout, self.name
            )
        return wanted

    def sized(
        self,
        input_size: tuple[int, ...],
        *,
        normalise: Choice = None,
        train_limit: int | None = None,
        test_limit: int | None = None,
        seed: int = 0,
        batch_size: int = 128,
        resident_bytes: int = RESIDENT_BYTES,
        workers: int | None = None,
        on_image: OnImage | None = None,
    ) -> ImageData:
        """Both parts for a network that takes ``input_size``, without the batch.

        Images are resized so that their short side fits, and their centre is cropped. They are kept in memory as
        bytes if that takes up to ``resident_bytes``, each being read once (``on_image`` is told the progress);
        else they are read while they are used. ``workers`` is how many processes read; by default up to four for
        files and none for images in memory. A limit takes a random subset, always the same for one ``seed``.
        Arrays that are not images are taken as they are, channels first.

        ``normalise`` is ``none``, ``imagenet``, ``data`` or ``MEAN/STD``. By default images in colour get ImageNet's,
        other images their own, and arrays none. ``batch_size`` is for data sets of a function of one's own.
        """
        if self.parts.test is None:
            raise HwbmpqError(f"{self.name}: was opened without its test part")
        limits = at_least_one(train_limit, "training images"), at_least_one(test_limit, "test images")
        if isinstance(self.parts.train, LoaderPart) or isinstance(self.parts.test, LoaderPart):
            return self._from_loaders(self.input_size_for(input_size), normalise, limits, seed, batch_size)
        parts = [self.parts.train.pick(limits[0], seed), self.parts.test.pick(limits[1], seed)]
        train, test = self._labelled(
            parts, input_size, normalise, workers=workers, limit_bytes=resident_bytes, on_image=on_image
        )
        return ImageData(
            name=self.name,
            train=train,
            test=test,
            classes=self.classes,
            augment="none" if isinstance(train, LabelledArrays) else self.source.augment,
            remarks=self.remarks,
        )

    def _from_loaders(
        self,
        input_size: tuple[int, ...],
        normalise: Choice,
        limits: tuple[int | None, int | None],
        seed: int,
        batch_size: int,
    ) -> ImageData:
        train, test, validation = self.parts.train, self.parts.test, self.parts.validation
        assert isinstance(train, LoaderPart)
        if normalise not in (None, "none") or self.layout != "auto":
            raise HwbmpqError(
                f"{self.name}: your own loaders normalise and arrange their inputs themselves",
                hint="leave out --normalise, --mean, --std and --layout",
            )
        return from_loaders(
            train.training_loader(batch_size=batch_size, limit=limits[0], seed=seed),
            test.test_loader(limit=limits[1], seed=seed) if isinstance(test, LoaderPart) else (),
            classes=self.classes,
            validation=validation.test_loader(limit=None, seed=seed)
            if isinstance(validation, LoaderPart)
            else None,
            name=self.name,
            input_size=input_size,
        )

    def training_images(
        self,
        input_size: tuple[int, ...],
        *,
        count: int | None = None,
        seed: int = 0,
        normalise: Choice = None,
    ) -> LabelledImages | LoaderImages:
        """The training part only; see ``sized``."""
        count = at_least_one(count, "images")
        if isinstance(self.parts.train, LoaderPart):
            size = self.input_size_for(input_size)
            return self._from_loaders(size, normalise, (count, None), seed, _CALIBRATION_BATCH).train
        return self._labelled([self.parts.train.pick(count, seed)], input_size, normalise)[0]

    def _labelled(
        self,
        parts: Sequence[Picked],
        size: tuple[int, ...],
        normalise: Choice,
        *,
        workers: int | None = None,
        **memory: Any,
    ) -> list[LabelledImages]:
        """All parts normalised like the first one. ``memory`` are arguments of ``settle``."""
        arrays = [_as_arrays(part.images, size) for part in parts]
        if arrays[0] is not None:
            return self._labelled_arrays(parts, arrays, size, normalise)
        if len(size) != 3 or min(size) < 1:
            raise HwbmpqError(
                f"images cannot be made to fit an input of {tuple(size)}", hint="give (C, H, W)"
            )
        input_size = (size[0], size[1], size[2])
        streamed = [Streamed(picked=part, input_size=input_size, workers=workers) for part in parts]
        pixels = settle(streamed, name=self.name, **memory)
        found = image_normalisation(normalise, parts[0].stored_images, input_size)
        return [
            LabelledImages(
                name=self.name,
                pixels=shown,
                labels=part.picked.labels,
                classes=self.classes,
                input_size=input_size,
                mean=found.mean,
                std=found.std,
                origin=found.origin,
                originals=part,
            )
            for part, shown in zip(streamed, pixels, strict=True)
        ]

    def _labelled_arrays(
        self, parts: Sequence[Picked], arrays: Sequence[Any], size: tuple[int, ...], normalise: Choice
    ) -> list[LabelledImages]:
        values = [stored.arranged(size, self.layout, self.name) for stored in arrays]
        found = array_normalisation(normalise, values[0])
        return [
            LabelledArrays(
                name=self.name,
                pixels=Resident(pixels=held, indices=part.indices),
                labels=part.labels,
                classes=self.classes,
                input_size=size,
                mean=() if found is None else found.mean,
                std=() if found is None else found.std,
                origin="" if found is None else found.origin,
            )
            for part, held in zip(parts, values, strict=True)
        ]


def _as_arrays(images: Any, size: tuple[int, ...]) -> StoredArrays | None:
    """Arrays, or images in memory for a network that takes no (C, H, W)."""
    if isinstance(images, StoredArrays):
        return images
    return StoredArrays(values=images.pixels) if isinstance(images, ArrayImages) and len(size) != 3 else None


def at_least_one(number: int | None, what: str) -> int | None:
    if number is not None and number < 1:
        raise HwbmpqError(f"{number} {what} are too few", hint="give at least 1")
    return number
