"""Batches for training, the same for the same seed, epoch and step; and DataLoaders of one's own in their place."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from hwbmpq.data.arrays import LabelledArrays
from hwbmpq.data.augment import draw_windows, generator_for, get_augmentation, photograph_transform
from hwbmpq.data.images import ImageData, LabelledImages
from hwbmpq.data.inputs import ModelInputs, first_tensor, part_of, sample_count
from hwbmpq.errors import HwbmpqError


class Batches(Protocol):
    """What a training loop needs from its data."""

    def __len__(self) -> int:
        """Steps in an epoch."""

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Inputs, such as images (B, C, H, W), and targets, such as labels (B,), of an epoch, from step ``start`` on."""


@dataclass(frozen=True)
class TrainingBatches:
    """Shuffled and augmented batches. Nothing is remembered between them.

    The order depends on ``seed`` and the epoch; what augmentation does on ``seed``, the epoch and the step.
    So ``epoch(n, start=k)`` gives what an uninterrupted epoch would have given from step k on, bit for bit.
    Images that do not fill a batch are left out of the epoch; the next one shuffles again.

    ``rank`` of ``ranks`` processes gets its share of every batch: side by side, the shares are the batch
    that a single process would get.
    """

    images: LabelledImages
    _: KW_ONLY
    batch_size: int
    """Of all ranks together."""
    augment: str = "none"
    seed: int = 0
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.images, LabelledArrays) and self.augment != "none":
            raise HwbmpqError(
                f"{self.images.name}: {self.augment} is for images, which these arrays are not",
                hint="use none",
            )
        is_photographic = get_augmentation(self.augment).resizes
        if is_photographic and (self.images.originals is None or self.images.input_size[0] not in (1, 3)):
            raise HwbmpqError(
                f"{self.images.name}: {self.augment} is for photographs, grey or in colour",
                hint="use flip-crop",
            )
        if self.batch_size < 1:
            raise HwbmpqError(f"a batch cannot have {self.batch_size} images", hint="give at least 1")
        if not 0 <= self.rank < self.ranks:
            raise HwbmpqError(f"there is no rank {self.rank} among {self.ranks}", hint="ranks count from 0")
        if self.images_per_step % self.ranks:
            raise HwbmpqError(
                f"{self.images.name}: a batch of {self.images_per_step} images cannot be shared by {self.ranks} ranks",
                hint=f"give a batch size that is a multiple of {self.ranks}, and at least as many images",
            )

    @property
    def images_per_step(self) -> int:
        """Of all ranks together: the batch size, or all images if there are fewer."""
        return min(self.batch_size, len(self.images))

    def __len__(self) -> int:
        return len(self.images) // self.images_per_step

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Float32 images (B, C, H, W), channels last in memory, and labels; from step ``start`` on."""
        if not 0 <= start <= len(self):
            raise HwbmpqError(f"an epoch of {len(self)} steps cannot start at step {start}")
        return self._steps(number, range(start, len(self)))

    def _steps(self, number: int, steps: range) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.images), generator=generator_for("order", self.seed, number))
        orders = [order[self._share(step * self.images_per_step)] for step in steps]
        shown = self._photographs if get_augmentation(self.augment).resizes else self._windows
        for indices, pixels in zip(orders, shown(number, steps, orders), strict=True):
            yield self.images.normalised(pixels), self.images.labels[indices]

    def _share(self, start: int = 0) -> slice:
        """This rank's part of a batch that begins at ``start``."""
        share = self.images_per_step // self.ranks
        return slice(start + self.rank * share, start + (self.rank + 1) * share)

    def _windows(self, number: int, steps: range, orders: Sequence[Tensor]) -> Iterator[Tensor]:
        shown = self.images.pixels.stream(orders)
        if isinstance(self.images, LabelledArrays):
            yield from shown
            return
        _, height, width = self.images.input_size
        for step, pixels in zip(steps, shown, strict=True):
            # Drawn for the whole batch and then shared, so that it does not matter how many ranks there are.
            generator = generator_for("augment", self.seed, number, step)
            windows = draw_windows(
                get_augmentation(self.augment), self.images_per_step, height, width, generator
            )
            yield pixels if windows is None else windows.part(self._share()).of(pixels)

    def _photographs(self, number: int, steps: range, orders: Sequence[Tensor]) -> Iterator[Tensor]:
        assert self.images.originals is not None
        _, height, width = self.images.input_size
        transform = photograph_transform(get_augmentation(self.augment), height, width)
        places = range(self.images_per_step)[self._share()]
        seeds = [
            [generator_for("augment", self.seed, number, step, place).initial_seed() for place in places]
            for step in steps
        ]
        return self.images.originals.augmented(zip(orders, seeds, strict=True), transform)


@dataclass(frozen=True)
class LoaderBatches:
    """Batches of a ``DataLoader``, or of anything with a length that yields inputs and targets.

    Inputs are a tensor, a tuple of arguments or a dict of keyword arguments of the network; targets are what the task
    takes, a tensor or a nest of tuples, lists and dicts.

    A sampler that has ``set_epoch`` is told the epoch. Starting in the middle loads and drops what comes
    before; it is exact only if the loader yields the same batches in the same order every time it is asked
    for an epoch.
    """

    loader: Iterable[Any]

    def __post_init__(self) -> None:
        if not hasattr(self.loader, "__len__"):
            raise HwbmpqError(
                f"a {type(self.loader).__name__} has no length: the end of an epoch is unknown",
                hint="give a DataLoader over a data set with a length",
            )

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(number)
        return (_pair(batch) for batch in islice(self.loader, start, None))


def _pair(batch: Any) -> tuple[Any, Any]:
    match batch:
        case (inputs, targets) if first_tensor(inputs) is not None:
            return inputs, targets
    raise HwbmpqError(
        f"the loader yields a {type(batch).__name__} that is not a pair of inputs and targets",
        hint="let it yield (inputs, targets); inputs may be a tensor, a tuple of arguments or a dict of keyword arguments",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderImages:
    """Images that a loader yields in batches of its own size, augmented and normalised in its own way."""

    name: str
    loader: Any
    classes: int | None
    input_size: tuple[int, ...]

    @property
    def inputs(self) -> str:
        return "as the loaders give them"

    def __len__(self) -> int:
        """Of the data set behind the loader, if it has one; else its batches count."""
        return len(getattr(self.loader, "dataset", self.loader))

    def batches(self, batch_size: int) -> Iterator[tuple[Any, Any]]:
        """All batches of the loader, cut where they are larger than ``batch_size``."""
        for inputs, targets in LoaderBatches(self.loader).epoch(0):
            count = sample_count(inputs)
            if count <= batch_size:
                yield inputs, targets
                continue
            for start in range(0, count, batch_size):
                part = slice(start, start + batch_size)
                yield ModelInputs.of(inputs).part(part).given, part_of(targets, part, count)

    def first(self, count: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Whole batches of about ``count`` images."""
        shown = 0
        for images, labels in self.batches(batch_size):
            yield images, labels
            shown += len(labels)
            if shown >= count:
                return


def from_loaders(
    train: Any,
    test: Any,
    *,
    classes: int | None = None,
    validation: Any = None,
    name: str = "own loaders",
    input_size: tuple[int, ...] | None = None,
) -> ImageData:
    """Data for ``compress`` from DataLoaders that yield (inputs, targets).

    Inputs are a tensor, a tuple of arguments or a dict of keyword arguments of the network. ``classes`` is for
    classification. Epochs are compared on ``validation``; without it, some of the training part is held out, if that
    is a plain ``DataLoader`` over a data set with a length. The batch size, augmentation and order are the loaders'. A
    run resumes exactly only if they are reproducible. ``input_size`` is read off the first batch if it is not given.
    """
    size = input_size or _first_size(train)
    parts: Any = [
        None if loader is None else LoaderImages(name=name, loader=loader, classes=classes, input_size=size)
        for loader in (train, test, validation)
    ]
    return ImageData(
        name=name, train=parts[0], test=parts[1], validation=parts[2], classes=classes, augment="none"
    )


def _first_size(loader: Any) -> tuple[int, ...]:
    """Of the first tensor that a loader yields, without the batch."""
    first = next(LoaderBatches(loader).epoch(0), None)
    if first is None:
        raise HwbmpqError("the training loader yields nothing")
    example = first_tensor(first[0])
    assert example is not None
    return tuple(example.shape[1:])
