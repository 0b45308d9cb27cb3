"""Samples in Keras's layout: an ``.npz`` file with x_train, y_train, x_test and y_test."""

from pathlib import Path

from hwbmpq.data.contents import Contents, Samples, checked_labels, recognise
from hwbmpq.data.dataset import ArrayImages, StoredPart, hold_out
from hwbmpq.data.numpy_files import open_arrays
from hwbmpq.data.registry import DataParts, Request, parts_in_memory, register
from hwbmpq.data.stored_arrays import StoredArrays
from hwbmpq.errors import HwbmpqError, cut

_PARTS = ("train", "test")
_HELD_OUT = 10
_LAYOUT_HINT = "the file should hold x_train (N, …) and y_train (N), as Keras's data sets do"


@register("npz:PATH", "arrays x_train, y_train, x_test, y_test in a file of numpy's, as Keras has them")
def open_npz(request: Request) -> DataParts:
    """Both parts; if there is only one, it is for training, but for one sample in ten."""
    arrays = _read_parts(request.detail, wanted=len(_PARTS) if request.needs_test else 1)
    contents = recognise(
        {f"{request.detail}: x_{name}": samples for name, (samples, _) in arrays.items()},
        layout=request.layout,
        floats_are_pixels=request.floats_are_pixels,
    )
    parts = [_part(contents, *found, name, request) for name, found in arrays.items()]
    if len(parts) > 1 or not request.needs_test:
        return parts_in_memory(request, parts[0], parts[1] if len(parts) > 1 else None, contents.remarks)
    (name,), (whole,) = arrays, parts
    assert isinstance(whole.images, ArrayImages | StoredArrays)
    train, test = hold_out(whole.images, whole.labels, every=_HELD_OUT, name=request.spec)
    missing = "test" if name == "train" else "train"
    remark = (
        f"{request.detail} has no x_{missing}: {len(test.labels)} of {len(whole.labels)} samples, always the same, "
        "are held out for testing"
    )
    return parts_in_memory(request, train, test, (*contents.remarks, remark))


def _part(contents: Contents, samples: Samples, labels: Samples, name: str, request: Request) -> StoredPart:
    path = request.detail
    found = checked_labels(labels, f"{path}: y_{name}", has_classes=request.has_classes)
    if len(samples) != len(found):
        raise HwbmpqError(f"{path}: x_{name} has {len(samples)} samples, but y_{name} {len(found)} labels")
    return StoredPart(images=contents.stored(samples), labels=found)


def _read_parts(path: str, wanted: int) -> dict[str, tuple[Samples, Samples]]:
    """Samples and labels of the first ``wanted`` parts that there are."""
    if not Path(path).is_file():
        raise HwbmpqError(f"{path}: no such file", hint="give the path of an npz file: npz:FILE")
    with open_arrays(path, hint=_LAYOUT_HINT) as archive:
        parts = [part for part in _PARTS if f"x_{part}" in archive and f"y_{part}" in archive]
        if not parts:
            held = cut(", ".join(archive)) or "nothing"
            raise HwbmpqError(f"{path}: holds no x_train with y_train, but {held}", hint=_LAYOUT_HINT)
        return {part: (archive[f"x_{part}"], archive[f"y_{part}"]) for part in parts[:wanted]}
