"""Labelled images: what arrives, in which shape, and what a bad file says."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from npz_files import all_pixels, labels, pixels, saved

from hwbmpq.data import AUGMENTATIONS, DATA_SOURCES, load_data, load_images, open_data
from hwbmpq.errors import HwbmpqError, UnknownNameError

GREY = (1, 8, 8)
COLOUR = (3, 8, 8)
DIGITS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
"""By class, as scikit-learn says."""


def test_digits_are_the_bundled_ones() -> None:
    data = load_data("digits", input_size=GREY)
    assert data.classes == 10
    assert torch.bincount(torch.cat([data.train.labels, data.test.labels])).tolist() == DIGITS


def test_a_fifth_of_the_digits_of_each_class_is_for_testing() -> None:
    data = load_data("digits", input_size=GREY)
    assert (len(data.train), len(data.test)) == (1437, 360)
    shares = torch.bincount(data.test.labels) / torch.tensor(DIGITS)
    assert 0.19 < float(shares.min()) <= float(shares.max()) < 0.21


def test_the_parts_of_the_digits_are_always_the_same() -> None:
    labels = load_data("digits", input_size=GREY, seed=7).test.labels
    assert labels[:20].tolist() == [9, 2, 5, 7, 6, 9, 7, 3, 3, 3, 4, 6, 9, 2, 0, 0, 7, 2, 4, 3]


def test_no_digit_is_in_both_parts() -> None:
    data = load_data("digits", input_size=GREY)
    train, test = ({p.numpy().tobytes() for p in all_pixels(part)} for part in (data.train, data.test))
    assert not train & test


def test_digits_are_calibrated_on_without_those_for_testing() -> None:
    calibration = load_images("digits", input_size=GREY)
    assert torch.equal(all_pixels(calibration), all_pixels(load_data("digits", input_size=GREY).train))


def test_digits_use_the_whole_range_of_a_byte() -> None:
    stored = all_pixels(load_images("digits", input_size=GREY))
    assert stored.dtype == torch.uint8
    assert (int(stored.min()), int(stored.max())) == (0, 255)


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
    assert torch.equal(all_pixels(data), torch.from_numpy(stored))
    ((images, _),) = data.batches(2)
    expected = (stored[1, 3, 4, 2] / 255 - 0.406) / 0.225
    assert float(images[1, 2, 3, 4]) == pytest.approx(expected)


def test_images_and_labels_stay_together_in_a_subset(tmp_path: Path) -> None:
    stored = np.arange(100, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    spec = saved(tmp_path, x_train=stored, y_train=np.arange(100))
    data = load_images(spec, input_size=(1, 2, 2), count=20)
    assert len(set(data.labels.tolist())) == 20
    assert torch.equal(all_pixels(data)[:, 0, 0, 0].long(), data.labels)


def test_a_seed_chooses_the_subset() -> None:
    first, again, other = (load_images("digits", input_size=GREY, count=50, seed=s).labels for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_class_count_does_not_depend_on_the_subset(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=pixels(9, 8, 8), y_train=np.arange(9))
    assert load_images(spec, input_size=GREY, count=1).classes == 9


def test_more_than_there_is_gives_all() -> None:
    assert len(load_images("digits", input_size=GREY, count=5000)) == 1437


def test_fake_images_are_the_same_for_one_seed() -> None:
    first, again, other = (
        all_pixels(load_images("fake", input_size=COLOUR, count=4, seed=s)) for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_fake_labels_have_the_classes_asked_for() -> None:
    data = load_images("fake", input_size=COLOUR, classes=3, count=100)
    assert data.classes == 3
    assert sorted(set(data.labels.tolist())) == [0, 1, 2]


def test_fake_training_and_test_images_differ() -> None:
    data = load_data("fake", input_size=COLOUR, train_limit=5, test_limit=5)
    assert not torch.equal(all_pixels(data.train), all_pixels(data.test))


def test_fake_does_not_fill_the_memory() -> None:
    with pytest.raises(
        HwbmpqError, match=r"fake: 200,000,000 test images are asked for, more than 2,000,000"
    ):
        load_data("fake", input_size=GREY, train_limit=5, test_limit=200_000_000)


def test_fake_gives_as_many_as_are_asked_for() -> None:
    data = load_data("fake", input_size=GREY, train_limit=500, test_limit=70)
    assert (len(data.train), len(data.test)) == (500, 70)


def test_what_a_network_must_know_is_known_before_it_is_built() -> None:
    data = open_data("digits")
    assert (data.classes, data.image_size, data.default_input_size) == (10, (1, 8, 8), (3, 32, 32))


def test_limits_take_as_many_from_each_part() -> None:
    data = load_data("digits", input_size=GREY, train_limit=7, test_limit=5)
    assert (len(data.train), len(data.test)) == (7, 5)


def test_both_parts_are_normalised_alike_whatever_the_limits() -> None:
    whole = load_data("digits", input_size=GREY)
    some = load_data("digits", input_size=GREY, train_limit=7, test_limit=5)
    assert whole.train.mean == whole.test.mean == some.train.mean == some.test.mean
    assert whole.train.std == whole.test.std == some.train.std == some.test.std


def test_batches_have_their_channels_last_in_memory() -> None:
    images, _ = next(load_images("digits", input_size=(3, 16, 16), count=4).batches(4))
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_grey_is_repeated_for_each_channel() -> None:
    data = load_images("digits", input_size=(2, 8, 8), count=4)
    images, _ = next(data.batches(4))
    assert torch.equal(images[:, 0], images[:, 1])


def test_a_test_part_that_was_not_opened_is_refused() -> None:
    with pytest.raises(HwbmpqError, match="fake: was opened without its test part"):
        open_data("fake", needs_test=False).sized(GREY)


def test_fake_has_ten_classes_by_default() -> None:
    data = load_images("fake", input_size=COLOUR)
    assert (data.classes, len(data)) == (10, 256)


def test_too_few_classes_are_refused() -> None:
    with pytest.raises(HwbmpqError, match="digits: has labels up to 9, but only 5 classes are expected"):
        load_images("digits", input_size=GREY, classes=5)


@pytest.mark.parametrize("spec", ["digit", "npz:", "npz", "folder", "digits:3", "fake:", "", "data.npz"])
def test_an_unknown_specification_lists_the_forms(spec: str) -> None:
    with pytest.raises(UnknownNameError) as raised:
        load_images(spec, input_size=GREY)
    assert raised.value.hint == (
        "use digits, cifar10, cifar100, tinyimagenet, fashion-mnist, folder:PATH, npz:PATH, "
        "file:PATH.py:FUNCTION, fake"
    )


@pytest.mark.parametrize("form", DATA_SOURCES.values(), ids=DATA_SOURCES)
def test_every_form_says_what_it_is_in_one_line_and_how_it_is_augmented(form: Any) -> None:
    assert 10 < len(form.description) < 90
    assert form.augment in AUGMENTATIONS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_limit": 0}, "0 training images are too few"),
        ({"test_limit": -1}, "-1 test images are too few"),
        ({"classes": 0}, "0 classes are too few"),
        ({"input_size": (8,)}, "arrays of 8x8x1 do not fit a network that takes 8"),
        ({"input_size": (1, 0, 8)}, r"an input of \(1, 0, 8\)"),
    ],
    ids=["train", "test", "classes", "size", "empty"],
)
def test_impossible_requests_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HwbmpqError, match=message):
        load_data("digits", **({"input_size": GREY} | options))


def test_an_impossible_batch_size_is_refused() -> None:
    with pytest.raises(HwbmpqError, match="a batch cannot have 0 images"):
        next(load_images("fake", input_size=GREY).batches(0))


def test_sklearn_is_imported_by_digits_only() -> None:
    code = (
        "import sys; from hwbmpq.data import load_images\n"
        "load_images('fake', input_size=(3, 8, 8)); print('sklearn' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_real_images_load(data_folder: Path) -> None:
    data = load_images(f"npz:{data_folder / 'cifar10.npz'}", input_size=(3, 32, 32), count=64)
    assert all_pixels(data).shape == (64, 32, 32, 3)
    assert data.classes == 10
