"""Validation images: held out of the training part, so that test images decide nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from hwbmpq.data.batches import LoaderImages
from hwbmpq.data.images import ImageData, LabelledImages, Resident
from hwbmpq.errors import HwbmpqError

DEFAULT_SHARE = 0.1
MOST_BY_DEFAULT = 5000
"""More validation images would hardly make the choice of an epoch any surer."""


def hold_out_validation(data: ImageData, amount: float | None = None, *, seed: int = 0) -> ImageData:
    """The same data, some of its training images held out for validation; always the same for one ``seed``.

    ``amount`` below 1 is a share, from 1 on a number; 0 holds out nothing. By default it is a tenth, up to 5,000, or
    nothing where the data cannot be split. Labelled images are held out of all classes alike, and every class stays in
    the training part. Data that has a validation part already stays as it is.
    """
    if data.validation is not None or amount == 0:
        return data
    total = len(data.train)
    count = _count(total, amount)
    split: Callable[..., Any] = _loader_split if isinstance(data.train, LoaderImages) else _image_split
    parts = split(data.train, count, seed) if 1 <= count <= total // 2 else None
    if parts is None and amount is not None:
        raise HwbmpqError(
            f"{data.name}: {count} of {total} training images cannot be held out for validation",
            hint="hold out at most half, give a validation loader of your own, or --validation 0 (then test images decide)",
        )
    return data if parts is None else replace(data, train=parts[0], validation=parts[1])


def _count(total: int, amount: float | None) -> int:
    if amount is None:
        return min(MOST_BY_DEFAULT, max(1, round(DEFAULT_SHARE * total)))
    return max(1, round(amount * total)) if amount < 1 else int(amount)


def held_out(labels: Tensor | None, total: int, count: int, seed: int) -> Tensor:
    """Which ``count`` of ``total`` samples are for validation, at most half; evenly from all classes if there are labels."""
    # numpy promises that RandomState never changes its numbers; torch promises nothing of the kind.
    order = np.random.RandomState(seed % 2**32).permutation(total)
    if labels is not None and labels.dim() == 1 and not labels.is_floating_point():
        numbers = labels.numpy()[order]
        _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        by_class = numbers.argsort(kind="stable")
        several = by_class[counts[place[by_class]] > 1]  # a class's only image stays in the training part
        order = order[several if len(several) >= 2 * count else by_class]
    # Evenly spaced, at least two apart: never all images of a class.
    places = np.arange(count) * len(order) // count
    return torch.from_numpy(order[places]).sort().values


def _image_split(images: LabelledImages, count: int, seed: int) -> tuple[LabelledImages, LabelledImages]:
    held = held_out(images.labels, len(images), count, seed)
    kept = torch.ones(len(images), dtype=torch.bool).index_fill_(0, held, False).nonzero().flatten()
    return subset(images, kept), subset(images, held)


def subset(images: LabelledImages, indices: Tensor) -> LabelledImages:
    """Some of the images; those in memory are not copied."""

    def of(streamed: Any) -> Any:
        picked = streamed.picked
        fewer = replace(picked, indices=picked.indices[indices], labels=picked.labels[indices])
        return replace(streamed, picked=fewer)

    pixels: Any = images.pixels
    if isinstance(pixels, Resident):
        pixels = replace(pixels, indices=indices if pixels.indices is None else pixels.indices[indices])
    else:
        pixels = of(pixels)
    originals = None if images.originals is None else of(images.originals)
    return replace(images, pixels=pixels, labels=images.labels[indices], originals=originals)


def _loader_split(images: LoaderImages, count: int, seed: int) -> tuple[LoaderImages, LoaderImages] | None:
    """A plain ``DataLoader`` over a data set with a length is split; nobody knows what others would yield."""
    loader = images.loader
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset) or not loader.batch_size:
        return None
    sampler = loader.sampler
    if type(sampler) not in (RandomSampler, SequentialSampler, DistributedSampler):
        return None
    if isinstance(sampler, RandomSampler) and sampler.replacement:
        return None
    total = len(loader.dataset)  # type: ignore[arg-type]
    held = set(held_out(None, total, count, seed).tolist())
    kept = [index for index in range(total) if index not in held]
    names = "batch_size num_workers collate_fn pin_memory timeout worker_init_fn multiprocessing_context"
    options = {name: getattr(loader, name) for name in f"{names} prefetch_factor persistent_workers".split()}
    # A generator of its own, even for a fixed order: each pass draws from it, which must not shift the training's order.
    validation = DataLoader(Subset(loader.dataset, sorted(held)), generator=torch.Generator(), **options)
    fewer = Subset(loader.dataset, kept)
    if isinstance(sampler, DistributedSampler):
        ranks = sampler.num_replicas
        order = {name: getattr(sampler, name) for name in "num_replicas rank shuffle seed drop_last".split()}
        options |= {"batch_size": max(1, min(loader.batch_size, len(kept) // ranks))}
        options |= {"sampler": DistributedSampler(fewer, **order)}
    else:
        options |= {"shuffle": isinstance(sampler, RandomSampler)}
    train = DataLoader(fewer, drop_last=loader.drop_last, generator=loader.generator, **options)
    return replace(images, loader=train), replace(images, loader=validation)
