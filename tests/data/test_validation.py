"""Validation images: which are held out, and that test images stay out of it."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from hwbmpq.data import from_loaders, hold_out_validation, load_data
from hwbmpq.data.batches import LoaderImages, TrainingBatches
from hwbmpq.data.images import ImageData
from hwbmpq.data.validation import held_out
from hwbmpq.errors import HwbmpqError


def digits(**limits: int) -> ImageData:
    return load_data("digits", input_size=(1, 8, 8), **limits)  # type: ignore[arg-type]


def pixels_of(part: object) -> set[bytes]:
    return {image.numpy().tobytes() for images, _ in part.batches(64) for image in images}  # type: ignore[attr-defined]


def test_a_tenth_is_held_out_by_default_and_none_is_in_both_parts() -> None:
    whole, split = digits(), hold_out_validation(digits())
    assert split.validation is not None
    assert (len(whole.train), len(split.train), len(split.validation)) == (1437, 1293, 144)
    assert pixels_of(split.train).isdisjoint(pixels_of(split.validation))
    assert pixels_of(split.train) | pixels_of(split.validation) == pixels_of(whole.train)
    assert split.test.labels.equal(whole.test.labels)
    shown = torch.cat([labels for _, labels in split.validation.batches(50)])
    assert shown.equal(split.validation.labels)


def test_classes_are_held_out_alike_and_none_loses_all_its_images() -> None:
    labels = torch.tensor([0] * 100 + [1] * 40 + [2] * 2 + [3])
    held = held_out(labels, len(labels), 14, seed=3)
    assert len(held) == len(set(held.tolist())) == 14
    assert torch.bincount(labels[held], minlength=4).tolist()[:2] == [10, 4]
    kept = torch.ones(len(labels), dtype=torch.bool).index_fill_(0, held, False)
    assert set(labels[kept].tolist()) == {0, 1, 2, 3}
    for count in range(1, len(labels) // 2 + 1):
        held = held_out(labels, len(labels), count, seed=0)
        kept = torch.ones(len(labels), dtype=torch.bool).index_fill_(0, held, False)
        assert len(set(held.tolist())) == count
        assert {0, 1, 2} <= set(labels[kept].tolist())


def test_the_seed_decides_which() -> None:
    first, same, other = (hold_out_validation(digits(), seed=seed).validation for seed in (1, 1, 2))
    assert pixels_of(first) == pixels_of(same) != pixels_of(other)


@pytest.mark.parametrize(("amount", "count"), [(0.25, 50), (7, 7), (0.001, 1), (100, 100)])
def test_a_share_or_a_number(amount: float, count: int) -> None:
    found = hold_out_validation(digits(train_limit=200), amount)
    assert found.validation is not None
    assert (len(found.validation), len(found.train)) == (count, 200 - count)


def test_at_most_five_thousand_by_default() -> None:
    data = load_data("fake", input_size=(1, 2, 2), classes=2, train_limit=60000, test_limit=1)
    found = hold_out_validation(data)
    assert found.validation is not None
    assert len(found.validation) == 5000


def test_zero_holds_out_nothing() -> None:
    assert hold_out_validation(digits(), 0).validation is None


@pytest.mark.parametrize("amount", [0.6, 150])
def test_more_than_half_is_refused(amount: float) -> None:
    with pytest.raises(HwbmpqError, match="of 200 training images cannot be held out") as error:
        hold_out_validation(digits(train_limit=200), amount)
    assert "--validation 0" in error.value.hint


def test_images_that_are_read_while_they_are_used_are_split_too() -> None:
    from hwbmpq.data import open_data

    opened = open_data("digits")
    whole = opened.sized((1, 16, 16), resident_bytes=0)
    split = hold_out_validation(whole)
    assert split.validation is not None
    assert pixels_of(split.train) | pixels_of(split.validation) == pixels_of(whole.train)
    batch, labels = next(TrainingBatches(split.train, batch_size=8, augment="crop").epoch(0))
    assert (len(batch), len(labels)) == (8, 8)


def loader(count: int, **options: object) -> DataLoader[tuple[torch.Tensor, ...]]:
    numbers = torch.arange(float(count))
    return DataLoader(TensorDataset(numbers[:, None], numbers), batch_size=4, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_plain_loader_is_split(shuffle: bool) -> None:
    data = hold_out_validation(from_loaders(loader(40, shuffle=shuffle), loader(8)), 0.25)
    assert data.validation is not None
    train, validation = (
        {float(y) for _, targets in part.batches(4) for y in targets}
        for part in (data.train, data.validation)
    )
    assert (len(train), len(validation)) == (30, 10)
    assert not train & validation


def test_looking_at_validation_images_does_not_change_the_order_of_training() -> None:
    def orders(looks: int) -> list[list[float]]:
        given = loader(40, shuffle=True, generator=torch.Generator().manual_seed(3))
        data = hold_out_validation(from_loaders(given, loader(8)), 0.25)
        assert isinstance(data.train, LoaderImages)
        assert data.validation is not None
        found = []
        for _ in range(3):
            found.append([float(y) for _, targets in data.train.loader for y in targets])
            for _ in range(looks):
                assert len(list(data.validation.batches(4))) == 3
        return found

    assert orders(0) == orders(1) == orders(2)


def test_a_loader_that_cannot_be_split_stays_whole_unless_it_was_asked_for() -> None:
    sampler = WeightedRandomSampler([1.0] * 40, 40)
    data = from_loaders(loader(40, sampler=sampler), loader(8))
    assert hold_out_validation(data).validation is None
    with pytest.raises(HwbmpqError, match="cannot be held out for validation"):
        hold_out_validation(data, 0.1)


def test_a_validation_loader_of_ones_own_is_kept() -> None:
    data = from_loaders(loader(40), loader(8), validation=loader(12))
    assert hold_out_validation(data, 0.1) is data
    assert data.validation is not None
    assert len(data.validation) == 12
