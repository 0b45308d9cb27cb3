"""Arrays that are not images: features, signals and token ids of any rank, channels first or last."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from npz_files import labels, pixels, saved

from hwbmpq.data import LabelledArrays, LabelledImages, TrainingBatches, load_data, load_images, open_data
from hwbmpq.errors import HwbmpqError


def signals(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def inputs_of(folder: Path, samples: Any, input_size: tuple[int, ...], **options: Any) -> torch.Tensor:
    spec = saved(folder, x_train=samples, y_train=labels(len(samples)))
    ((inputs, _),) = load_images(spec, input_size=input_size, **options).batches(len(samples))
    return inputs


@pytest.mark.parametrize("shape", [(12,), (6, 50), (1, 49, 10), (4, 5, 6, 7), (2, 3, 4, 5, 2)], ids=str)
def test_floats_of_any_rank_are_taken_as_they_are(tmp_path: Path, shape: tuple[int, ...]) -> None:
    samples = signals(5, *shape)
    inputs = inputs_of(tmp_path, samples, shape)
    assert inputs.dtype == torch.float32
    assert torch.equal(inputs, torch.from_numpy(samples))


@pytest.mark.parametrize("kind", [np.float16, np.float64], ids=lambda kind: kind.__name__)
def test_other_floats_become_float32(tmp_path: Path, kind: Any) -> None:
    samples = signals(5, 12).astype(kind)
    assert torch.equal(inputs_of(tmp_path, samples, (12,)), torch.from_numpy(samples).float())


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64, np.uint16], ids=lambda k: k.__name__)
def test_integers_pass_unchanged_as_token_ids(tmp_path: Path, kind: Any) -> None:
    samples = np.arange(60, dtype=kind).reshape(5, 12)
    inputs = inputs_of(tmp_path, samples, (12,))
    assert inputs.dtype == torch.int64
    assert inputs.tolist() == samples.tolist()


def test_integers_become_floats_if_a_normalisation_is_given(tmp_path: Path) -> None:
    samples = np.arange(60, dtype=np.int8).reshape(5, 12)
    inputs = inputs_of(tmp_path, samples, (12,), normalise="10/0.5")
    assert torch.equal(inputs, (torch.from_numpy(samples).float() - 10) / 0.5)
    assert inputs_of(tmp_path, samples, (12,), normalise="0/1").dtype == torch.float32


def test_bytes_of_other_ranks_count_from_0_to_1(tmp_path: Path) -> None:
    samples = pixels(5, 12)
    assert torch.equal(inputs_of(tmp_path, samples, (12,)), torch.from_numpy(samples).float() / 255)


def test_channels_that_are_last_come_first_where_the_network_says_so(tmp_path: Path) -> None:
    samples = signals(5, 50, 6)
    expected = torch.from_numpy(samples).transpose(1, 2)
    assert torch.equal(inputs_of(tmp_path, samples, (6, 50)), expected)
    assert torch.equal(inputs_of(tmp_path, samples, (6, 50), layout="channels-last"), expected)


def test_the_layout_decides_where_the_shape_cannot(tmp_path: Path) -> None:
    samples = signals(5, 8, 8)
    spec = saved(tmp_path, x_train=samples, y_train=labels(5))
    assert torch.equal(inputs_of(tmp_path, samples, (8, 8)), torch.from_numpy(samples))
    moved = inputs_of(tmp_path, samples, (8, 8), layout="channels-last")
    assert torch.equal(moved, torch.from_numpy(samples).transpose(1, 2))
    (remark,) = open_data(spec, needs_test=False).remarks
    assert remark.endswith("arrays of 8x8 are taken as channels first; --layout channels-last changes that")
    assert open_data(spec, needs_test=False, layout="channels-first").remarks == ()


@pytest.mark.parametrize(
    ("stored", "taken"), [((49, 10), (1, 49, 10)), ((49, 10, 1), (49, 10)), ((1, 49, 10), (49, 10))]
)
def test_an_axis_of_one_channel_comes_and_goes(
    tmp_path: Path, stored: tuple[int, ...], taken: tuple[int, ...]
) -> None:
    samples = signals(5, *stored)
    assert torch.equal(inputs_of(tmp_path, samples, taken), torch.from_numpy(samples).reshape(5, *taken))


def test_a_shape_that_does_not_fit_is_not_resized(tmp_path: Path) -> None:
    with pytest.raises(
        HwbmpqError, match="arrays of 49x10 do not fit a network that takes 3x32x32"
    ) as raised:
        inputs_of(tmp_path, signals(5, 49, 10), (3, 32, 32))
    assert "only images are resized" in raised.value.hint
    with pytest.raises(
        HwbmpqError, match="arrays of 50x6 channels-first do not fit a network that takes 6x50"
    ):
        inputs_of(tmp_path, signals(5, 50, 6), (6, 50), layout="channels-first")


@pytest.mark.parametrize(
    ("stored", "layout", "size"),
    [
        ((6, 50), "auto", (6, 50)),
        ((50, 6), "channels-last", (6, 50)),
        ((49, 10, 1), "auto", (1, 49, 10)),
        ((12,), "auto", (12,)),
    ],
)
def test_the_input_size_of_a_network_that_says_none_is_the_datas_own(
    tmp_path: Path, stored: tuple[int, ...], layout: str, size: tuple[int, ...]
) -> None:
    spec = saved(tmp_path, x_train=signals(5, *stored), y_train=labels(5))
    assert open_data(spec, needs_test=False, layout=layout).default_input_size == size


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_images_may_have_any_number_of_channels_first_or_last(tmp_path: Path, channels: int) -> None:
    stored = pixels(5, 8, 9, channels)
    last = inputs_of(tmp_path, stored, (channels, 8, 9), normalise="none")
    first = inputs_of(tmp_path, np.moveaxis(stored, -1, 1), (channels, 8, 9), normalise="none")
    assert torch.equal(last, first)
    assert torch.equal(last, torch.from_numpy(stored).permute(0, 3, 1, 2).float() / 255)


def test_images_whose_channels_may_be_at_either_end_say_what_is_assumed(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=pixels(5, 3, 8, 3), y_train=labels(5))
    (remark,) = open_data(spec, needs_test=False).remarks
    assert remark.endswith("images of 3x8x3 are taken as channels last; --layout channels-first changes that")
    assert open_data(spec, needs_test=False, layout="channels-first").image_size == (3, 8, 3)


def test_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match="no layout named 'last'"):
        open_data("digits", layout="last")


def test_no_normalisation_feeds_pixels_from_0_to_1() -> None:
    data = load_data("digits", input_size=(1, 8, 8), normalise="none")
    ((inputs, _),) = data.test.batches(1000)
    assert (float(inputs.min()), float(inputs.max())) == (0, 1)
    assert data.inputs.startswith("inputs: pixels from 0 to 1, not normalised; --normalise")
    assert data.normalise == "none"


def test_a_normalisation_is_said_and_can_be_asked_for_again() -> None:
    data = load_data("digits", input_size=(1, 8, 8))
    assert data.inputs == (
        "inputs: normalised with mean 0.3054, std 0.3758 (of the data); --normalise none feeds 0 to 1"
    )
    again = load_data("digits", input_size=(1, 8, 8), normalise=data.normalise)
    assert (again.train.mean, again.train.std) == (data.train.mean, data.train.std)


def test_colour_says_that_it_is_normalised_as_for_imagenet() -> None:
    said = "normalised with mean 0.485, 0.456, 0.406, std 0.229, 0.224, 0.225 (ImageNet's); --normalise none"
    assert said in load_data("fake", input_size=(3, 8, 8)).inputs


def test_a_normalisation_may_be_anything() -> None:
    pixel = load_data("digits", input_size=(1, 8, 8), normalise="none").test
    given = load_data("digits", input_size=(1, 8, 8), normalise="0.5/0.25").test
    expected = (next(pixel.batches(9))[0] - 0.5) / 0.25
    torch.testing.assert_close(next(given.batches(9))[0], expected, rtol=1e-5, atol=1e-6)


def test_imagenets_normalisation_is_for_three_channels() -> None:
    with pytest.raises(HwbmpqError, match="ImageNet's mean and deviation are for 3 channels"):
        load_data("digits", input_size=(1, 8, 8), normalise="imagenet")


def test_arrays_are_normalised_by_channel_if_asked(tmp_path: Path) -> None:
    samples = signals(40, 6, 50) * np.arange(1, 7, dtype=np.float32)[:, None] + 3
    inputs = inputs_of(tmp_path, samples, (6, 50), normalise="data")
    assert inputs.mean((0, 2)).tolist() == pytest.approx([0] * 6, abs=1e-5)
    assert inputs.std((0, 2), correction=0).tolist() == pytest.approx([1] * 6, abs=1e-5)


def test_both_parts_of_arrays_are_normalised_by_the_training_part(tmp_path: Path) -> None:
    train, test = signals(20, 12), signals(10, 12) + 5
    spec = saved(tmp_path, x_train=train, y_train=labels(20), x_test=test, y_test=labels(10))
    data = load_data(spec, input_size=(12,), normalise="data", train_limit=4)
    assert data.test.mean == data.train.mean == pytest.approx(train.mean(0).tolist())
    assert (len(data.train), len(data.test)) == (4, 10)


def test_arrays_are_not_augmented(tmp_path: Path) -> None:
    spec = saved(tmp_path, x_train=signals(20, 6, 50), y_train=labels(20))
    data = load_data(spec, input_size=(6, 50))
    assert isinstance(data.train, LabelledArrays)
    assert (data.augment, data.samples) == ("none", "samples")
    batches = TrainingBatches(data.train, batch_size=4)
    assert [inputs.shape for inputs, _ in batches.epoch(0)] == [(4, 6, 50)] * 4
    with pytest.raises(HwbmpqError, match="flip-crop is for images, which these arrays are not"):
        TrainingBatches(data.train, batch_size=4, augment="flip-crop")


def test_targets_that_are_not_classes_are_taken_if_asked_for(tmp_path: Path) -> None:
    targets = signals(20, 2)
    spec = saved(tmp_path, x_train=signals(20, 6), y_train=targets)
    with pytest.raises(HwbmpqError, match="float32 of shape"):
        open_data(spec)
    data = open_data(spec, has_classes=False).sized((6,))
    assert data.classes is None
    assert data.train.labels.shape == (18, 2)
    assert len(data.test) == 2


def written(folder: Path, samples: Any, name: str = "train") -> None:
    for number, sample in enumerate(samples):
        place = folder / name / f"class{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{number}.npy", sample)


def test_a_folder_may_hold_arrays(tmp_path: Path) -> None:
    samples = signals(9, 6, 50)
    written(tmp_path, samples)
    written(tmp_path, samples[:3], "val")
    data = load_data(f"folder:{tmp_path}", input_size=(6, 50))
    ((inputs, found),) = data.train.batches(9)
    assert found.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert torch.equal(inputs, torch.from_numpy(samples[[0, 3, 6, 1, 4, 7, 2, 5, 8]]))
    assert len(data.test) == 3


def test_arrays_of_bytes_in_a_folder_are_images(tmp_path: Path) -> None:
    written(tmp_path, pixels(9, 8, 8))
    data = open_data(f"folder:{tmp_path}", needs_test=False).training_images((3, 16, 16))
    assert type(data) is LabelledImages
    assert next(data.batches(9))[0].shape == (9, 3, 16, 16)


def test_arrays_of_different_shapes_in_a_folder_are_refused(tmp_path: Path) -> None:
    written(tmp_path, signals(9, 6, 50))
    np.save(tmp_path / "train" / "class2" / "odd.npy", signals(6, 51))
    message = r"odd\.npy: float32 of shape \(6, 51\), but .*class0/0\.npy holds float32 of shape \(6, 50\)"
    with pytest.raises(HwbmpqError, match=message):
        open_data(f"folder:{tmp_path}", needs_test=False)


def test_a_pickle_in_a_folder_is_not_opened(tmp_path: Path) -> None:
    written(tmp_path, signals(9, 6))
    np.save(tmp_path / "train" / "class1" / "bad.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(HwbmpqError, match=r"bad\.npy: cannot be read as an array: .*pickle"):
        open_data(f"folder:{tmp_path}", needs_test=False)


def test_a_class_without_arrays_is_named(tmp_path: Path) -> None:
    written(tmp_path, signals(9, 6))
    (tmp_path / "train" / "empty").mkdir()
    with pytest.raises(HwbmpqError, match=r"empty: holds no \.npy files"):
        open_data(f"folder:{tmp_path}", needs_test=False)
