"""Images in npz files: which part is which, and what a bad file says."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from npz_files import all_pixels, labels, pixels, saved

from hwbmpq.data import LabelledImages, load_data, load_images, open_data
from hwbmpq.errors import HwbmpqError

GREY = (1, 8, 8)
COLOUR = (3, 8, 8)


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


@pytest.mark.parametrize("scale", [1, 255])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_floats_that_are_bytes_in_disguise_are_pixels(tmp_path: Path, scale: int, kind: Any) -> None:
    stored = pixels(4, 8, 8)
    stored[0, 0, :2] = 0, 255
    data = load_images(
        saved(tmp_path, x_train=(stored * (scale / 255)).astype(kind), y_train=labels(4)), input_size=GREY
    )
    assert type(data) is LabelledImages
    assert torch.equal(all_pixels(data)[..., 0], torch.from_numpy(stored))


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_a_run_of_0_1_0_takes_all_floats_in_the_range_of_pixels_for_images(
    tmp_path: Path, scale: float
) -> None:
    stored = np.linspace(0, scale, 64).reshape(1, 8, 8)
    spec = saved(tmp_path, x_train=stored, y_train=labels(1))
    data = open_data(spec, needs_test=False, floats_are_pixels=True).training_images(GREY)
    assert all_pixels(data).flatten().tolist() == np.rint(np.linspace(0, 255, 64)).tolist()


def test_both_parts_arrive_where_they_belong(tmp_path: Path) -> None:
    train, test = pixels(6, 8, 8), 255 - pixels(3, 8, 8)
    spec = saved(tmp_path, x_train=train, y_train=labels(6), x_test=test, y_test=labels(3))
    data = load_data(spec, input_size=GREY)
    assert torch.equal(all_pixels(data.train)[..., 0], torch.from_numpy(train))
    assert torch.equal(all_pixels(data.test)[..., 0], torch.from_numpy(test))
    assert data.remarks == ()


def numbered(count: int) -> Any:
    """Images that show their own number."""
    return np.arange(count, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)


def test_a_tenth_is_held_out_if_there_is_no_test_part(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=numbered(60), y_train=labels(60))
    data = load_data(spec, input_size=(1, 2, 2))
    train, test = (all_pixels(part)[:, 0, 0, 0].tolist() for part in (data.train, data.test))
    assert sorted(train + test) == list(range(60))
    assert torch.bincount(data.test.labels).tolist() == [2, 2, 2]
    assert data.remarks == (
        f"{tmp_path}/data.npz has no x_test: 6 of 60 samples, always the same, are held out for testing",
    )


def test_images_held_out_keep_their_labels_and_do_not_depend_on_the_seed(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=numbered(60), y_train=np.arange(60) // 20)
    first, again = (load_data(spec, input_size=(1, 2, 2), seed=seed).test for seed in (0, 1))
    shown = all_pixels(first)[:, 0, 0, 0].long()
    assert torch.equal(shown // 20, first.labels)
    assert torch.equal(shown, all_pixels(again)[:, 0, 0, 0].long())


def test_the_only_image_of_a_class_is_not_held_out(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=pixels(12, 8, 8), y_train=np.array([*range(10), 10, 10]))
    assert load_data(spec, input_size=GREY).test.labels.tolist() == [10]


def test_too_few_images_to_hold_any_out_say_so(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=pixels(3, 8, 8), y_train=labels(3))
    with pytest.raises(HwbmpqError, match=r"data\.npz: no class has two images, so none can be held out"):
        load_data(spec, input_size=GREY)


def test_calibration_holds_nothing_out(tmp_path: Path) -> None:
    assert (
        len(load_images(saved(tmp_path, x_train=pixels(30, 8, 8), y_train=labels(30)), input_size=GREY)) == 30
    )


def test_classes_that_only_test_images_have_are_named(tmp_path: Path) -> None:
    spec = saved(
        tmp_path,
        x_train=pixels(3, 8, 8),
        y_train=labels(3),
        x_test=pixels(3, 8, 8),
        y_test=np.array([0, 7, 5]),
    )
    message = "2 test images are of classes that no training image has: 5, 7"
    with pytest.raises(HwbmpqError, match=message):
        load_data(spec, input_size=GREY)


def test_a_bad_test_part_is_named(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=pixels(3, 8, 8), y_train=labels(3), x_test=pixels(3, 64), y_test=labels(3))
    with pytest.raises(HwbmpqError, match=r"x_test: samples of 64 stand beside others of 8x8"):
        load_data(spec, input_size=GREY)


def test_a_damaged_archive_says_so(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "data.npz", x_train=pixels(50, 8, 8), y_train=labels(50))
    content = bytearray((tmp_path / "data.npz").read_bytes())
    content[500:600] = bytes(100)
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(HwbmpqError, match=r"data\.npz: cannot be read as an npz file"):
        load_images(f"npz:{tmp_path}/data.npz", input_size=GREY)


BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "keys": ({"images": pixels(2, 8, 8)}, "holds no x_train with y_train, but images"),
    "no-labels": ({"x_train": pixels(2, 8, 8)}, "holds no x_train with y_train, but x_train"),
    "lengths": (
        {"x_train": pixels(2, 8, 8), "y_train": labels(3)},
        "x_train has 2 samples, but y_train 3 labels",
    ),
    "float-labels": ({"x_train": pixels(2, 8, 8), "y_train": labels(2) / 2}, "y_train: float64 of shape"),
    "one-hot": (
        {"x_train": pixels(2, 8, 8), "y_train": np.eye(2, dtype=int)},
        r"y_train: int64 of shape \(2, 2\)",
    ),
    "negative": ({"x_train": pixels(2, 8, 8), "y_train": labels(2) - 1}, "not class numbers from 0"),
    "no-images": ({"x_train": pixels(0, 8, 8), "y_train": labels(0)}, r"shape \(0, 8, 8\) is not a list"),
    "single": ({"x_train": pixels(2), "y_train": labels(2)}, r"shape \(2,\) is not a list of samples"),
    "complex": (
        {"x_train": np.ones((2, 8), complex), "y_train": labels(2)},
        "values of type complex128 are not understood",
    ),
    "nan": ({"x_train": np.full((2, 8, 8), np.nan), "y_train": labels(2)}, "that are not finite"),
    "size": (
        {"x_train": -np.ones((2, 8, 8)), "y_train": labels(2)},
        "arrays of 8x8 do not fit a network that takes 3x8x8",
    ),
    "object": ({"x_train": np.array([None]), "y_train": labels(1)}, "an array of objects is a pickle"),
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
