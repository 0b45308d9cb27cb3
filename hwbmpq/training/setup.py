"""What has to fit before training starts: network, images and machine."""

import ctypes
import platform
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from hwbmpq import distributed
from hwbmpq.data.batches import Batches, LoaderBatches, LoaderImages, TrainingBatches
from hwbmpq.data.chance import chance_remark
from hwbmpq.data.images import ImageData, LabelledImages
from hwbmpq.data.inputs import ModelInputs, first_tensor, map_tensors
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant.layers import eval_mode
from hwbmpq.tasks import Task, check_task, get_task
from hwbmpq.training.settings import RunSettings

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
_LARGEST_INT = 2**31 - 1
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next training step; whether that was possible.

    By default it hands large blocks back to the operating system, which clears them page by page when the
    same tensors are allocated again in the next step. Helps training on CPU; the process keeps the memory
    of its busiest moment. Does nothing where the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    kept = libc.mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and kept)


HESSIAN_IMAGES = 64
"""For the method hawq: traces are slow."""
CALIBRATION_BATCH = 16
"""Images in a batch of a calibration pass."""


def find_device(name: str, local_rank: int = 0) -> torch.device:
    """``auto``, ``cpu``, ``cuda``, ``mps``, or a device as torch spells it."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, is_there in found.items() if is_there)
    kind = name.partition(":")[0]
    if kind not in found or not found[kind]:
        there = ", ".join(kind for kind, is_there in found.items() if is_there)
        raise HwbmpqError(
            f"this machine has no device {name!r} that torch could use", hint=f"it has {there}; or use auto"
        )
    return torch.device(f"cuda:{local_rank}" if name == "cuda" else name)


def place(network: nn.Module, device: torch.device, data: ImageData) -> nn.Module:
    """Change ``network`` in place: move it to a device, its convolutions laid out channels last, which is faster."""
    if len(data.train.input_size) == 3:
        return network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return network.to(device)


def seed_everything(settings: RunSettings) -> None:
    """Networks may draw from either generator; a run that starts over must draw the same."""
    seed = settings.seed + distributed.rank()  # ranks that drop out the same neurons would learn less
    torch.manual_seed(seed)
    random.seed(seed)


def get_ready(network: nn.Module, data: ImageData, settings: RunSettings, task: Task) -> None:
    """Memory, random numbers and the network's place, once it is known to fit the data."""
    keep_freed_memory()
    seed_everything(settings)
    check_outputs(network, data, task)
    place(network, find_device(settings.device, distributed.local_rank()), data)


def example_input(network: nn.Module, images: LabelledImages | LoaderImages) -> ModelInputs:
    """The inputs of one sample, where the network is."""
    return example_batch(network, images)[0]


def example_batch(network: nn.Module, images: LabelledImages | LoaderImages) -> tuple[ModelInputs, Any]:
    """One sample, inputs and target, where the network is."""
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    inputs, targets = next(iter(images.batches(1)))
    return ModelInputs.of(inputs).on(device), map_tensors(targets, lambda tensor: tensor.to(device))


def training_batches(images: LabelledImages | LoaderImages, *, batch_size: int, **options: Any) -> Batches:
    """Batches to train on: ours by ``options``, or those of a user's own loader, which has its own."""
    if isinstance(images, LoaderImages):
        if options.get("augment", "none") != "none":
            raise HwbmpqError(
                f"{images.name}: your own loaders augment their inputs themselves", hint="leave out --augment"
            )
        return LoaderBatches(images.loader)
    return TrainingBatches(images, batch_size=batch_size, **options)


def calibration_batches(
    images: LabelledImages | LoaderImages, count: int, *, batch_size: int = CALIBRATION_BATCH, seed: int = 0
) -> Iterator[tuple[Any, Any]]:
    """About ``count`` images in random order (stored, they may be sorted by class), in whole batches."""
    size = min(batch_size, count, len(images))
    if isinstance(images, LoaderImages):
        return images.first(count, size)
    batches = training_batches(images, batch_size=size, seed=seed)
    return islice(batches.epoch(0), max(1, count // size))


def check_outputs(
    network: nn.Module, data: ImageData, task: Task | str = "classification", *, at_least: bool = False
) -> None:
    """An error unless the network's outputs are what the task takes.

    A classifier has one output for each class of the images (``at_least``: or more).
    """
    task = get_task(task)
    inputs, targets = example_batch(network, data.train)
    try:
        with eval_mode(network), torch.no_grad():
            outputs = inputs.call(network)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise HwbmpqError(
            f"the network cannot take {data.samples} of {inputs.shape_text}: {error}",
            hint="give a size that it takes with --input"
            if data.samples == "images"
            else "channels that are last come first with --layout channels-last; --normalise 0/1 makes floats of integers",
        ) from error
    if task.has_classes:
        _check_scores(first_tensor(outputs), data, at_least)
        return
    with eval_mode(network):
        check_task(task, lambda: inputs.call(network), targets)


def _check_scores(scores: Tensor | None, data: ImageData, at_least: bool) -> None:
    if scores is None or scores.dim() != 2:
        raise HwbmpqError(
            "the network returns no scores, one per image and class: it is not a classifier",
            hint="name what it is trained for: --task regression, segmentation or file:task.py:Task",
        )
    outputs, classes = scores.shape[1], data.classes
    if classes is None:
        raise HwbmpqError(
            f"{data.name} does not say how many classes it has",
            hint="give from_loaders classes, or another task than classification",
        )
    if outputs < classes or (outputs > classes and not at_least):
        raise HwbmpqError(
            f"the network has {outputs} outputs, but {data.name} has {classes} classes",
            hint=f"give images of at most {outputs} classes"
            if at_least
            else f"build the network with {classes} classes (--num-classes {classes})",
        )


def starts_from_weights(settings: RunSettings) -> bool:
    """Whether the network may be trained already: weights are given, fetched, or brought along by a user's own file."""
    return bool(settings.weights or settings.pretrained or settings.model.startswith("file:"))


def may_be_random(settings: RunSettings) -> bool:
    """Whether nobody knows: a function that builds a network may load weights, or not; an exported network has its own."""
    return not (settings.weights or settings.pretrained or settings.model.endswith(".pt2"))


def float_remark(
    accuracy: float | None, data: ImageData, settings: RunSettings, task: Task
) -> tuple[str, ...]:
    """A warning if weights that a run starts from are hardly better than guessing before anything is quantized."""
    # Pretrained weights may get a new head, which is random until it is trained.
    has_new_head = settings.pretrained and settings.epochs and not settings.weights
    if has_new_head or not starts_from_weights(settings):
        return ()
    found = chance_remark(
        accuracy,
        len(data.test),
        data.classes if task.has_classes else None,
        inputs=data.inputs,
        what="in float the network",
        name=data.name,
        may_be_random=may_be_random(settings),
    )
    return () if found is None else (found,)
