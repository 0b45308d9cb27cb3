"""From the settings of a run to its network and its images."""

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import hwbmpq
from hwbmpq.cli.options.plan import progress
from hwbmpq.errors import ModelLoadError

if TYPE_CHECKING:
    from hwbmpq.data import ImageData, OpenData
    from hwbmpq.models import LoadedModel
    from hwbmpq.training import RunSettings


def build(settings: "RunSettings", *, download: bool = False) -> "tuple[LoadedModel, ImageData]":
    """The network with as many outputs as the data has classes, and the images in its size."""
    # Zoos and factories print; stdout is for the result.
    with redirect_stdout(sys.stderr):
        opened = hwbmpq.data.open_data(settings.data, root=settings.data_root, download=download)
        model = load_network(settings, opened)
    with progress(f"reading {settings.data}", 0) as advance:
        data = opened.sized(
            model.input_size,
            train_limit=settings.train_images,
            test_limit=settings.test_images,
            seed=settings.seed,
            workers=settings.workers,
            on_image=advance,
        )
    return model, data


def load_network(settings: "RunSettings", data: "OpenData") -> "LoadedModel":
    is_file = settings.model.startswith("file:")
    size = None if settings.input is None else hwbmpq.models.parse_input_size(settings.input)
    if size is None and not is_file:
        size = data.default_input_size
    classes = settings.num_classes or data.classes
    if not is_file:
        return _load(settings, size, classes)
    try:  # a factory may or may not take a class count
        return _load(settings, size or data.default_input_size, classes)
    except ModelLoadError as error:
        if "num_classes" not in str(error) and "--num-classes" not in error.hint:
            raise
    return _load(settings, size, None)


def _load(settings: "RunSettings", size: tuple[int, ...] | None, num_classes: int | None) -> "LoadedModel":
    return hwbmpq.models.load_model(
        settings.model,
        num_classes=num_classes,
        input_size=size,
        pretrained=settings.pretrained,
        weights=settings.weights,
        seed=settings.seed,
    )
