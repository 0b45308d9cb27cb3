"""Labelled images and arrays by specification, such as ``digits``, ``cifar10`` or ``npz:PATH``."""

from pathlib import Path

from hwbmpq.data.batches import LoaderImages
from hwbmpq.data.default_normalisation import Choice
from hwbmpq.data.images import ImageData, LabelledImages, OnImage
from hwbmpq.data.opened import OpenData as OpenData
from hwbmpq.data.opened import at_least_one
from hwbmpq.data.registry import DATA_SOURCES, DataParts, Request, parse_data
from hwbmpq.data.stored_arrays import LAYOUTS
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.registry import wrong_return

DEFAULT_ROOT = Path("data")
"""Where data sets are looked for, from the current folder."""


def open_data(
    spec: str,
    *,
    root: Path | str | None = None,
    download: bool = False,
    classes: int | None = None,
    needs_test: bool = True,
    layout: str = "auto",
    has_classes: bool = True,
    floats_are_pixels: bool = False,
) -> OpenData:
    """Find the data that ``spec`` names (a form of ``DATA_SOURCES``): their number of classes and their size.

    ``root`` is the folder that holds data sets (default: ``data``); nothing is downloaded unless ``download``
    says so. ``classes`` is how many outputs the network has, if that is known already: an error if there are
    more labels, and how many ``fake`` draws. Without ``needs_test`` no test part is read, nor held out of a
    file that has none. ``layout`` says where arrays have their channels: ``channels-first``, ``channels-last``, or
    ``auto``, which goes by their shape and the network's. Without ``has_classes``, targets may be any numbers.
    ``floats_are_pixels`` is for runs of 0.1.0, which took more arrays for images.
    """
    if layout not in LAYOUTS:
        raise UnknownNameError("layout", layout, LAYOUTS)
    source, detail = parse_data(spec)
    request = Request(
        spec=spec,
        detail=detail,
        root=DEFAULT_ROOT if root is None else Path(root),
        download=download,
        needs_test=needs_test,
        classes=at_least_one(classes, "classes"),
        layout=layout,
        has_classes=has_classes,
        floats_are_pixels=floats_are_pixels,
    )
    parts = source.open(request)
    if not isinstance(parts, DataParts):
        raise wrong_return(
            DATA_SOURCES, source.kind, parts, "hwbmpq.data.registry.DataParts(train=…, test=…, classes=…)"
        )
    if classes is not None and parts.classes is not None and parts.classes > classes:
        raise HwbmpqError(
            f"{spec}: has labels up to {parts.classes - 1}, but only {classes} classes are expected",
            hint=f"give the network {parts.classes} classes",
        )
    return OpenData(name=spec, source=source, parts=parts, layout=layout)


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
    normalise: Choice = None,
    layout: str = "auto",
    on_image: OnImage | None = None,
) -> ImageData:
    """The training and the test part of the data that ``spec`` names; see ``open_data`` and ``OpenData.sized``."""
    opened = open_data(spec, root=root, download=download, classes=classes, layout=layout)
    return opened.sized(
        input_size,
        normalise=normalise,
        train_limit=train_limit,
        test_limit=test_limit,
        seed=seed,
        on_image=on_image,
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
    normalise: Choice = None,
    layout: str = "auto",
) -> LabelledImages | LoaderImages:
    """The training part of the data that ``spec`` names; ``count`` takes a random subset."""
    opened = open_data(spec, root=root, download=download, classes=classes, needs_test=False, layout=layout)
    return opened.training_images(input_size, count=count, seed=seed, normalise=normalise)
