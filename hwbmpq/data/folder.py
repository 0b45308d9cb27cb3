"""Data sets that are folders of files: one folder per class, or as Tiny ImageNet has them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from hwbmpq.data.array_files import ARRAY_FILE, Samples, array_parts
from hwbmpq.data.dataset import Size, StoredPart, centred_window, to_grey
from hwbmpq.data.registry import DataParts, Request, register
from hwbmpq.data.torchvision_import import import_torchvision
from hwbmpq.errors import HwbmpqError, cut
from hwbmpq.io import open_regular, read_regular

_LAYOUT_HINT = "make it train/CLASS/IMAGE and val/CLASS/IMAGE (or test/)"
_TINY_FOLDER = "tiny-imagenet-200"
_TINY_HINT = "unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip and give the folder that holds it: --data-root DIR"
_SPARE_RESOLUTION = 2
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "PPM", "WEBP")
"""Whatever a file is called: for PostScript, Pillow would run Ghostscript."""
_MOST_FILE_BYTES = 1 << 30
_MOST_DECODED_BYTES = 200_000_000
"""A photograph of 66 million pixels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FileImages:
    """Image files of any size, read as RGB.

    Each is resized so that its short side fits, and its centre is cropped. Orientation tags of cameras are
    not followed, as torchvision's ``ImageFolder`` does not.
    """

    paths: Sequence[str | Path]

    @property
    def channels(self) -> int:
        return 3

    def __len__(self) -> int:
        return len(self.paths)

    def in_memory(self, input_size: Size) -> None:
        return None

    def read(self, indices: Tensor, input_size: Size) -> Tensor:
        channels, height, width = input_size
        decoded = [np.asarray(decode(self.paths[index], height, width)) for index in indices.tolist()]
        pixels = torch.from_numpy(np.stack(decoded))
        return to_grey(pixels) if channels == 1 else pixels

    def whole(self, index: int, input_size: Size) -> Image.Image:
        with _opened(self.paths[index]) as image:
            return _rgb(image)


def decode(path: str | Path, height: int, width: int) -> Image.Image:
    """The centre of an image file, as RGB in this size."""
    with _opened(path) as image:
        # JPEG can be decoded at a half, a quarter or an eighth of its size, much faster; torchvision's loader cannot.
        image.draft("RGB", (width * _SPARE_RESOLUTION, height * _SPARE_RESOLUTION))
        top, left, tall, wide = centred_window(image.height, image.width, height, width)
        box = (left, top, left + wide, top + tall)
        return _rgb(image).crop(box).resize((width, height), Image.Resampling.BILINEAR)


@contextmanager
def _opened(path: str | Path) -> Iterator[Image.Image]:
    try:
        with open_regular(path, _MOST_FILE_BYTES) as file, Image.open(file, formats=_FORMATS) as image:
            yield image
    except HwbmpqError:
        raise
    except Exception as error:  # Pillow raises many types; a broken PNG is a SyntaxError
        known = f"not an image, or none of {', '.join(_FORMATS)}"
        what = known if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
        raise HwbmpqError(
            f"{path}: cannot be decoded: {cut(what)}", hint="replace the file, or take it out of the folder"
        ) from error


def _rgb(image: Image.Image) -> Image.Image:
    bands = len(image.getbands()) * (4 if image.mode in ("I", "F") else 1)
    needed = image.width * image.height * (bands + (0 if image.mode == "RGB" else 3))
    if needed > _MOST_DECODED_BYTES:
        raise ValueError(f"{image.width}x{image.height} pixels take {needed >> 20} MiB; make it smaller")
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns if such a palette becomes RGB at once
    return image.convert("RGB")


@register("folder:PATH", "image or .npy files: PATH/train/CLASS/FILE and PATH/val/CLASS/FILE (or test)")
def open_folder(request: Request) -> DataParts:
    """``train`` and ``val`` (or ``test``), with a folder for each class, in alphabetical order.

    If the first class has ``.npy`` files, all files are arrays, read into memory at once; else they are images.
    """
    root = Path(request.detail)
    if not root.is_dir():
        raise HwbmpqError(f"{root}: no such folder", hint=f"give the path of a folder and {_LAYOUT_HINT}")
    classes = _class_names(root / "train")
    arrays = any((root / "train" / classes[0]).rglob(f"*{ARRAY_FILE}"))
    train = _samples(root / "train", classes, arrays=arrays)
    test, remarks = _test_samples(root, classes, arrays=arrays) if request.needs_test else (None, ())
    if arrays:
        return array_parts(request, train, test, remarks)
    return _parts(train, test, classes, remarks)


def _test_samples(root: Path, classes: Sequence[str], *, arrays: bool) -> tuple[Samples, tuple[str, ...]]:
    tests = [root / name for name in ("val", "test") if (root / name).is_dir()]
    if not tests:
        raise HwbmpqError(f"{root}: has neither val nor test", hint=_LAYOUT_HINT)
    test_classes = _class_names(tests[0])
    found = _samples(tests[0], test_classes, arrays=arrays)
    _check_same_classes(classes, test_classes, root, tests[0].name)
    remark = f"measured on {tests[0]}; {tests[-1]} is not used"
    return found, (remark,) if len(tests) > 1 else ()


@register("tinyimagenet", "Tiny ImageNet (200 classes), as tiny-imagenet-200 below the data root")
def open_tinyimagenet(request: Request) -> DataParts:
    """The original layout: train/CLASS/images, val/images with val_annotations.txt, and wnids.txt.

    Classes are numbered in alphabetical order, as torchvision's ``ImageFolder`` does.
    """
    root = request.root if (request.root / "wnids.txt").is_file() else request.root / _TINY_FOLDER
    if not (root / "wnids.txt").is_file():
        raise HwbmpqError(f"{request.spec}: there is no {root.absolute()}/wnids.txt", hint=_TINY_HINT)
    classes = sorted(_text(root / "wnids.txt").split())
    test = _tiny_test(root / "val", classes) if request.needs_test else None
    return _parts(_samples(root / "train", classes), test, classes)


def _text(path: Path) -> str:
    try:
        return read_regular(path, _MOST_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise HwbmpqError(f"{path}: cannot be read: {error}", hint=_TINY_HINT) from error


def _tiny_test(folder: Path, classes: Sequence[str]) -> Samples:
    annotations = folder / "val_annotations.txt"
    if not annotations.is_file():
        raise HwbmpqError(f"there is no {annotations.absolute()}", hint=_TINY_HINT)
    labels = {name: label for label, name in enumerate(classes)}
    samples: Samples = []
    for number, line in enumerate(_text(annotations).splitlines(), 1):
        file, name, *_ = [*line.split("\t"), ""]
        if name not in labels:
            raise HwbmpqError(
                f"{annotations}: line {number} names the class {name!r}, which wnids.txt does not"
            )
        samples.append((str(folder / "images" / file), labels[name]))
    missing = sorted(path for path, _ in samples if not Path(path).is_file())
    if missing:
        raise HwbmpqError(f"{annotations}: {len(missing)} of its images are missing, such as {missing[0]}")
    if not samples:
        raise HwbmpqError(f"{annotations}: names no images", hint=_TINY_HINT)
    return sorted(samples, key=lambda sample: sample[1])


def _class_names(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise HwbmpqError(f"there is no folder {folder}", hint=_LAYOUT_HINT)
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise HwbmpqError(f"{folder}: holds no folders, one for each class", hint=_LAYOUT_HINT)
    return names


def _samples(folder: Path, classes: Sequence[str], *, arrays: bool = False) -> Samples:
    """The files of all classes, also in folders inside theirs, in torchvision's order."""
    import_torchvision()
    torchvision: Any = import_module("torchvision.datasets.folder")
    endings = (ARRAY_FILE,) if arrays else torchvision.IMG_EXTENSIONS

    def is_sample(path: str) -> bool:
        return Path(path).suffix.lower() in endings and not Path(path).name.startswith(".")

    labels = {name: label for label, name in enumerate(classes)}
    samples: Samples = torchvision.make_dataset(
        str(folder), labels, is_valid_file=is_sample, allow_empty=True
    )
    for label in sorted(set(labels.values()) - {label for _, label in samples}):
        what, hint = "images", f"images end in {', '.join(sorted(endings))}; arrays in {ARRAY_FILE}"
        if arrays:
            what, hint = f"{ARRAY_FILE} files", "give all classes arrays, or all images"
        raise HwbmpqError(f"{folder / classes[label]}: holds no {what}", hint=hint)
    return samples


def _check_same_classes(train: Sequence[str], test: Sequence[str], root: Path, test_name: str) -> None:
    differences = [
        f"{part} alone has {', '.join(sorted(names)[:5])}{' …' if len(names) > 5 else ''}"
        for part, names in (("train", set(train) - set(test)), (test_name, set(test) - set(train)))
        if names
    ]
    if differences:
        raise HwbmpqError(
            f"{root}: train and {test_name} have different classes: {'; '.join(differences)}",
            hint="give both parts a folder of the same name for each class",
        )


def _parts(
    train: Samples, test: Samples | None, classes: Sequence[str], remarks: tuple[str, ...] = ()
) -> DataParts:
    with _opened(train[0][0]) as image:  # only the head of the file is read
        image_size = (3, image.height, image.width)
    return DataParts(
        train=_part(train),
        test=None if test is None else _part(test),
        classes=len(classes),
        image_size=image_size,
        remarks=remarks,
    )


def _part(samples: Samples) -> StoredPart:
    paths, labels = zip(*samples, strict=True)
    return StoredPart(images=FileImages(paths=paths), labels=torch.tensor(labels))
