"""Data sets that are folders of image files: one folder per class, or as Tiny ImageNet has them."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from hwbmpq.data.dataset import StoredPart
from hwbmpq.data.files import EXTENSIONS, FileImages, image_size
from hwbmpq.data.registry import register
from hwbmpq.data.source import DataParts, Request
from hwbmpq.errors import HwbmpqError

_LAYOUT_HINT = "make it train/CLASS/IMAGE and val/CLASS/IMAGE (or test/)"
_TINY_FOLDER = "tiny-imagenet-200"
_TINY_HINT = "unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip and give the folder that holds it: --data-root DIR"


@register("folder:PATH", "image files: PATH/train/CLASS/IMAGE and PATH/val/CLASS/IMAGE (or test)")
def open_folder(request: Request) -> DataParts:
    """``train`` and ``val`` (or ``test``), with a folder for each class, in alphabetical order."""
    root = Path(request.detail)
    if not root.is_dir():
        raise HwbmpqError(f"{root}: no such folder", hint=f"give the path of a folder and {_LAYOUT_HINT}")
    train = _by_class(root / "train")
    tests = [root / name for name in ("val", "test") if (root / name).is_dir()]
    if not request.needs_test:
        return _found(train, None)
    if not tests:
        raise HwbmpqError(f"{root}: has neither val nor test", hint=_LAYOUT_HINT)
    test = _by_class(tests[0])
    _check_same_classes(train, test, root, tests[0].name)
    remark = f"measured on {tests[0]}; {tests[-1]} is not used"
    return _found(train, test, (remark,) if len(tests) > 1 else ())


@register("tinyimagenet", "Tiny ImageNet (200 classes), as tiny-imagenet-200 below the data root")
def open_tinyimagenet(request: Request) -> DataParts:
    """The original layout: train/CLASS/images, val/images with val_annotations.txt, and wnids.txt.

    Classes are numbered in alphabetical order, as torchvision's ``ImageFolder`` does.
    """
    root = request.root if (request.root / "wnids.txt").is_file() else request.root / _TINY_FOLDER
    if not (root / "wnids.txt").is_file():
        raise HwbmpqError(f"{request.spec}: there is no {root.absolute()}/wnids.txt", hint=_TINY_HINT)
    classes = sorted((root / "wnids.txt").read_text().split())
    train = {name: _images_below(root / "train" / name) for name in classes}
    return _found(train, _tiny_test(root / "val", classes) if request.needs_test else None)


def _tiny_test(folder: Path, classes: Iterable[str]) -> dict[str, list[Path]]:
    annotations = folder / "val_annotations.txt"
    if not annotations.is_file():
        raise HwbmpqError(f"there is no {annotations.absolute()}", hint=_TINY_HINT)
    found: dict[str, list[Path]] = {name: [] for name in classes}
    for number, line in enumerate(annotations.read_text().splitlines(), 1):
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0]
        if name not in found:
            raise HwbmpqError(
                f"{annotations}: line {number} names the class {name!r}, which wnids.txt does not"
            )
        found[name].append(folder / "images" / file)
    missing = sorted({path for paths in found.values() for path in paths} - set(_walk(folder)))
    if missing:
        raise HwbmpqError(f"{annotations}: {len(missing)} of its images are missing, such as {missing[0]}")
    if not any(found.values()):
        raise HwbmpqError(f"{annotations}: names no images", hint=_TINY_HINT)
    return found


def _by_class(folder: Path) -> dict[str, list[Path]]:
    if not folder.is_dir():
        raise HwbmpqError(f"there is no folder {folder}", hint=_LAYOUT_HINT)
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise HwbmpqError(f"{folder}: holds no folders, one for each class", hint=_LAYOUT_HINT)
    return {name: _images_below(folder / name) for name in names}


def _images_below(folder: Path) -> list[Path]:
    """Image files of a class in a fixed order, also in folders inside it."""
    found = sorted(path for path in _walk(folder) if path.suffix.lower() in EXTENSIONS)
    if not found:
        raise HwbmpqError(f"{folder}: holds no images", hint=f"images end in {', '.join(sorted(EXTENSIONS))}")
    return found


def _walk(folder: Path) -> Iterable[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _check_same_classes(train: Iterable[str], test: Iterable[str], root: Path, test_name: str) -> None:
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


def _found(
    train: Mapping[str, list[Path]], test: Mapping[str, list[Path]] | None, remarks: tuple[str, ...] = ()
) -> DataParts:
    first = next(iter(train.values()))[0]
    return DataParts(
        train=_part(train),
        test=None if test is None else _part(test),
        classes=len(train),
        image_size=image_size(first),
        remarks=remarks,
    )


def _part(by_class: Mapping[str, list[Path]]) -> StoredPart:
    labels = [label for label, paths in enumerate(by_class.values()) for _ in paths]
    paths = [path for paths in by_class.values() for path in paths]
    return StoredPart(images=FileImages(paths=paths), labels=torch.tensor(labels))
