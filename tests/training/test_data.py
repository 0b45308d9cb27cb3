"""Labelled images: what arrives, in which shape, and what a bad file says."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.training import load_images

GREY = (1, 8, 8)
COLOUR = (3, 8, 8)


def saved(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "data.npz", **arrays)
    return f"npz:{folder / 'data.npz'}"


def pixels(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def labels(count: int) -> Any:
    return np.arange(count) % 3


def test_digits_are_the_bundled_ones() -> None:
    data = load_images("digits", input_size=GREY)
    assert len(data) == 1797
    assert data.classes == 10
    assert data.images.shape == (1797, 1, 8, 8)
    assert torch.bincount(data.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_use_the_whole_range_of_a_byte() -> None:
    data = load_images("digits", input_size=GREY)
    assert data.images.dtype == torch.uint8
    assert (int(data.images.min()), int(data.images.max())) == (0, 255)


def test_batches_are_normalised_by_the_images_themselves_if_not_in_colour() -> None:
    ((images, _),) = load_images("digits", input_size=GREY).batches(2000)
    assert float(images.mean()) == pytest.approx(0, abs=1e-5)
    assert float(images.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_colour_is_normalised_as_for_imagenet(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=np.full((1, 8, 8, 3), 255, np.uint8), y_train=labels(1))
    ((images, _),) = load_images(spec, input_size=COLOUR).batches(1)
    expected = [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert images[0, :, 3, 3].tolist() == pytest.approx(expected)


def test_images_of_one_single_colour_stay_finite(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=np.full((2, 8, 8), 7, np.uint8), y_train=labels(2))
    ((images, _),) = load_images(spec, input_size=GREY).batches(2)
    assert torch.equal(images, torch.zeros(2, 1, 8, 8))


@pytest.mark.parametrize(
    "input_size", [(3, 32, 32), (1, 5, 7), (2, 8, 8)], ids=["up", "down", "two-channels"]
)
def test_batches_have_the_size_that_the_network_takes(input_size: tuple[int, int, int]) -> None:
    images, targets = next(load_images("digits", input_size=input_size, count=4).batches(4))
    assert images.shape == (4, *input_size)
    assert images.dtype == torch.float32
    assert targets.dtype == torch.int64


def test_batches_cover_everything_once_in_order() -> None:
    data = load_images("digits", input_size=GREY, count=10)
    batches = list(data.batches(4))
    assert [len(targets) for _, targets in batches] == [4, 4, 2]
    assert torch.equal(torch.cat([targets for _, targets in batches]), data.labels)


def test_colours_are_averaged_to_grey(tmp_path: Path) -> None:
    stored = np.zeros((1, 8, 8, 3), np.uint8)
    stored[0, 0, 0] = (30, 60, 90)
    data = load_images(saved(tmp_path, x_train=stored, y_train=labels(1)), input_size=GREY)
    ((images, _),) = data.batches(1)
    pixel = images[0, 0, 0, 0] * data.std[0] + data.mean[0]
    assert float(pixel) == pytest.approx(60 / 255)


def test_channels_and_pixels_keep_their_places(tmp_path: Path) -> None:
    stored = pixels(2, 4, 5, 3)
    data = load_images(saved(tmp_path, x_train=stored, y_train=labels(2)), input_size=(3, 4, 5))
    assert int(data.images[1, 2, 3, 4]) == stored[1, 3, 4, 2]


def test_images_and_labels_stay_together_in_a_subset(tmp_path: Path) -> None:
    stored = np.arange(100, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    spec = saved(tmp_path, x_train=stored, y_train=np.arange(100))
    data = load_images(spec, input_size=(1, 2, 2), count=20)
    assert len(set(data.labels.tolist())) == 20
    assert torch.equal(data.images[:, 0, 0, 0].long(), data.labels)


def test_a_seed_chooses_the_subset() -> None:
    first, again, other = (load_images("digits", input_size=GREY, count=50, seed=s).labels for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_class_count_does_not_depend_on_the_subset(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=pixels(9, 8, 8), y_train=np.arange(9))
    assert load_images(spec, input_size=GREY, count=1).classes == 9


def test_more_than_there_is_gives_all() -> None:
    assert len(load_images("digits", input_size=GREY, count=5000)) == 1797


def test_the_training_part_is_preferred(tmp_path: Path) -> None:
    arrays = {
        "x_train": pixels(3, 8, 8),
        "y_train": labels(3),
        "x_test": pixels(5, 8, 8),
        "y_test": labels(5),
    }
    assert len(load_images(saved(tmp_path, **arrays), input_size=GREY)) == 3


def test_the_test_part_will_do(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_test=pixels(5, 8, 8), y_test=labels(5))
    assert len(load_images(spec, input_size=GREY)) == 5


def test_labels_may_be_a_column(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=pixels(3, 8, 8), y_train=labels(3)[:, None].astype(np.uint8))
    assert load_images(spec, input_size=GREY).labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_float_pixels_count_from_0_to_1_or_to_255(tmp_path: Path, scale: float) -> None:
    stored = np.linspace(0, scale, 64).reshape(1, 8, 8)
    data = load_images(saved(tmp_path, x_train=stored, y_train=labels(1)), input_size=GREY)
    assert data.images.dtype == torch.float32
    assert float(data.images.max()) == 1.0


def test_fake_images_are_the_same_for_one_seed() -> None:
    first, again, other = (load_images("fake", input_size=COLOUR, count=4, seed=s).images for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_fake_labels_have_the_classes_asked_for() -> None:
    data = load_images("fake", input_size=COLOUR, classes=3, count=100)
    assert data.classes == 3
    assert sorted(set(data.labels.tolist())) == [0, 1, 2]


def test_fake_has_ten_classes_by_default() -> None:
    data = load_images("fake", input_size=COLOUR)
    assert (data.classes, len(data)) == (10, 256)


def test_too_few_classes_are_refused() -> None:
    with pytest.raises(HwbmpqError, match="digits: has labels up to 9, but only 5 classes are expected"):
        load_images("digits", input_size=GREY, classes=5)


@pytest.mark.parametrize("spec", ["digit", "npz:", "npz", "digits:3", "fake:", "", "data.npz"])
def test_an_unknown_specification_lists_the_forms(spec: str) -> None:
    with pytest.raises(UnknownNameError) as raised:
        load_images(spec, input_size=GREY)
    assert raised.value.hint == "use digits, fake, npz:FILE"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "0 images are too few"),
        ({"classes": 0}, "0 classes are too few"),
        ({"input_size": (8, 8)}, r"an input of \(8, 8\)"),
        ({"input_size": (1, 0, 8)}, r"an input of \(1, 0, 8\)"),
    ],
    ids=["count", "classes", "size", "empty"],
)
def test_impossible_requests_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HwbmpqError, match=message):
        load_images("digits", **({"input_size": GREY} | options))


def test_an_impossible_batch_size_is_refused() -> None:
    with pytest.raises(HwbmpqError, match="a batch cannot have 0 images"):
        next(load_images("fake", input_size=GREY).batches(0))


BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "keys": ({"images": pixels(2, 8, 8)}, "holds no x_train with y_train, but images"),
    "no-labels": ({"x_train": pixels(2, 8, 8)}, "holds no x_train with y_train, but x_train"),
    "lengths": (
        {"x_train": pixels(2, 8, 8), "y_train": labels(3)},
        "x_train has 2 images, but y_train 3 labels",
    ),
    "float-labels": ({"x_train": pixels(2, 8, 8), "y_train": labels(2) / 2}, "y_train: float64 of shape"),
    "one-hot": (
        {"x_train": pixels(2, 8, 8), "y_train": np.eye(2, dtype=int)},
        r"y_train: int64 of shape \(2, 2\)",
    ),
    "negative": ({"x_train": pixels(2, 8, 8), "y_train": labels(2) - 1}, "no class numbers from 0"),
    "no-images": ({"x_train": pixels(0, 8, 8), "y_train": labels(0)}, "y_train: is empty"),
    "flat": ({"x_train": pixels(2, 64), "y_train": labels(2)}, r"shape \(2, 64\) is no list of images"),
    "first": ({"x_train": pixels(2, 3, 8, 8), "y_train": labels(2)}, "has its channels first"),
    "int": ({"x_train": pixels(2, 8, 8).astype(int), "y_train": labels(2)}, "pixels of type int64"),
    "range": (
        {"x_train": -np.ones((2, 8, 8)), "y_train": labels(2)},
        r"values from -1.0 to -1.0 are no pixels",
    ),
    "nan": ({"x_train": np.full((2, 8, 8), np.nan), "y_train": labels(2)}, "values from nan to nan"),
    "object": ({"x_train": np.array([None]), "y_train": labels(1)}, "Object arrays cannot be loaded"),
    "channels": (
        {"x_train": pixels(2, 8, 8, 4), "y_train": labels(2)},
        "4 channels do not fit an input of 3",
    ),
}


@pytest.mark.parametrize(("arrays", "message"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_bad_arrays_are_one_sentence(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(HwbmpqError, match=message) as raised:
        load_images(saved(tmp_path, **arrays), input_size=COLOUR)
    assert "data.npz" in str(raised.value)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match=r"none.npz: no such file"):
        load_images(f"npz:{tmp_path}/none.npz", input_size=GREY)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04broken", pickle.dumps({"x_train": 1}), b"hello"],
    ids="empty zip pickle text".split(),
)
def test_a_file_of_another_kind_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(HwbmpqError, match="cannot be read as an npz file"):
        load_images(f"npz:{tmp_path}/data.npz", input_size=GREY)


def test_a_single_array_says_so(tmp_path: Path) -> None:
    with (tmp_path / "data.npz").open("wb") as file:
        np.save(file, pixels(2, 8, 8))
    with pytest.raises(HwbmpqError, match="holds a single array"):
        load_images(f"npz:{tmp_path}/data.npz", input_size=GREY)


def test_sklearn_is_imported_by_digits_only() -> None:
    code = (
        "import sys; from hwbmpq.training import load_images\n"
        "load_images('fake', input_size=(3, 8, 8)); print('sklearn' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_real_images_load(data_folder: Path) -> None:
    data = load_images(f"npz:{data_folder / 'cifar10.npz'}", input_size=(3, 32, 32), count=64)
    assert data.images.shape == (64, 3, 32, 32)
    assert data.classes == 10
