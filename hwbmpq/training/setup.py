"""What has to fit before training starts: network, images and machine."""

import ctypes
import platform
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from hwbmpq.data.batches import Batches, LoaderBatches, LoaderImages, TrainingBatches
from hwbmpq.data.images import ImageData, LabelledImages
from hwbmpq.errors import HwbmpqError
from hwbmpq.inputs import first_tensor
from hwbmpq.quant.layers import eval_mode

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


def example_input(network: nn.Module, images: LabelledImages | LoaderImages) -> Tensor:
    """One image, where the network is."""
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    return next(images.batches(1))[0].to(device)


def training_batches(images: LabelledImages | LoaderImages, *, batch_size: int, **options: Any) -> Batches:
    """Batches to train on: ours by ``options``, or those of a user's own loader, which has its own."""
    if isinstance(images, LoaderImages):
        return LoaderBatches(images.loader)
    return TrainingBatches(images, batch_size=batch_size, **options)


def calibration_batches(
    images: LabelledImages | LoaderImages, count: int, *, batch_size: int = CALIBRATION_BATCH, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """About ``count`` images in random order (stored, they may be sorted by class), in whole batches."""
    size = min(batch_size, count, len(images))
    batches = training_batches(images, batch_size=size, seed=seed)
    return islice(batches.epoch(0), max(1, count // size))


def check_outputs(network: nn.Module, data: ImageData, *, at_least: bool = False) -> None:
    """An error unless the network has one output for each class of the images (``at_least``: or more)."""
    try:
        with eval_mode(network), torch.no_grad():
            output = first_tensor(network(example_input(network, data.train)))
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        size = "x".join(map(str, data.train.input_size))
        raise HwbmpqError(
            f"the network cannot take images of {size}: {error}",
            hint="give a size that it takes with --input",
        ) from error
    if output is None or output.dim() != 2:
        raise HwbmpqError(
            "the network returns no scores, one per image and class: only classifiers are trained"
        )
    outputs = output.shape[1]
    if outputs < data.classes or (outputs > data.classes and not at_least):
        raise HwbmpqError(
            f"the network has {outputs} outputs, but {data.name} has {data.classes} classes",
            hint=f"give images of at most {outputs} classes"
            if at_least
            else f"build the network with {data.classes} classes (--num-classes {data.classes})",
        )
