"""Training batches: every image once, the same again, whoever asks."""

import random
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from hwbmpq.data import Batches, LabelledImages, LoaderBatches, TrainingBatches, load_data, open_data
from hwbmpq.data.images import Resident
from hwbmpq.errors import HwbmpqError, UnknownNameError

Batch = tuple[Tensor, Tensor]


def labelled(count: int, size: int = 16) -> LabelledImages:
    """Random images; the label is the image's number."""
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randint(0, 256, (count, size, size, 3), generator=generator, dtype=torch.uint8)
    return LabelledImages(
        name="numbered",
        pixels=Resident(pixels=pixels),
        labels=torch.arange(count),
        classes=count,
        input_size=(3, size, size),
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.3, 0.4),
    )


def batches_of(count: int = 22, **options: Any) -> TrainingBatches:
    return TrainingBatches(
        labelled(count), **({"batch_size": 4, "augment": "flip-crop", "seed": 1} | options)
    )


def labels_of(batches: Iterator[Batch]) -> list[int]:
    return [int(label) for _, labels in batches for label in labels]


def assert_same(first: Iterator[Batch], second: Iterator[Batch]) -> None:
    for (images, labels), (other_images, other_labels) in zip(first, second, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)


def test_an_epoch_shows_images_once_in_whole_batches() -> None:
    batches = batches_of(22)
    epoch = list(batches.epoch(0))
    assert len(batches) == len(epoch) == 5
    assert all(images.shape == (4, 3, 16, 16) for images, _ in epoch)
    assert len(set(labels_of(iter(epoch)))) == 20


def test_fewer_images_than_a_batch_make_one_batch() -> None:
    batches = batches_of(3)
    assert len(batches) == 1
    assert sorted(labels_of(batches.epoch(0))) == [0, 1, 2]


def test_images_are_float_and_channels_last() -> None:
    images, labels = next(batches_of().epoch(0))
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64


def test_without_augmentation_images_are_the_normalised_ones() -> None:
    batches = batches_of(12, augment="none")
    ((everything, _),) = batches.images.batches(12)
    for images, labels in batches.epoch(0):
        assert torch.equal(images, everything[labels])


def test_normalising_subtracts_the_mean_and_divides_by_the_deviation() -> None:
    images = labelled(2)
    ((normalised, _),) = images.batches(2)
    pixels = images.pixels.take(torch.arange(2)).permute(0, 3, 1, 2).double() / 255
    mean, std = (torch.tensor(values).double().view(3, 1, 1) for values in (images.mean, images.std))
    torch.testing.assert_close(normalised.double(), (pixels - mean) / std, rtol=1e-5, atol=1e-5)


def test_an_epoch_repeats_bit_for_bit() -> None:
    assert_same(batches_of().epoch(3), batches_of().epoch(3))


def test_epochs_and_seeds_differ_in_order_and_in_augmentation() -> None:
    orders = [labels_of(batches_of(seed=seed).epoch(epoch)) for seed, epoch in ((1, 0), (1, 1), (2, 0))]
    assert len({tuple(order) for order in orders}) == 3
    one = TrainingBatches(labelled(1), batch_size=1, augment="flip-crop", seed=1)
    shown = {next(one.epoch(epoch))[0].numpy().tobytes() for epoch in range(10)}
    assert len(shown) > 5


def test_steps_of_an_epoch_are_augmented_differently() -> None:
    images = labelled(1)
    same = LabelledImages(
        name="same",
        pixels=Resident(pixels=images.pixels.take(torch.zeros(20, dtype=torch.int64))),
        labels=torch.zeros(20, dtype=torch.int64),
        classes=1,
        input_size=images.input_size,
        mean=images.mean,
        std=images.std,
    )
    batches = TrainingBatches(same, batch_size=1, augment="flip-crop")
    assert len({shown.numpy().tobytes() for shown, _ in batches.epoch(0)}) > 5


@pytest.mark.parametrize("start", range(6))
def test_an_epoch_can_start_anywhere(start: int) -> None:
    batches = batches_of()
    assert_same(batches.epoch(2, start=start), islice(batches.epoch(2), start, None))


def test_a_later_start_reads_none_of_the_earlier_images() -> None:
    read: list[int] = []

    class Recording(Resident):
        def take(self, indices: Tensor) -> Tensor:
            read.extend(indices.tolist())
            return super().take(indices)

    images = labelled(20)
    recording = LabelledImages(
        **(vars(images) | {"pixels": Recording(pixels=images.pixels.take(torch.arange(20)))})
    )
    shown = labels_of(TrainingBatches(recording, batch_size=4).epoch(0, start=3))
    assert len(shown) == 8
    assert read == shown


@pytest.mark.parametrize("ranks", [2, 4])
def test_shares_side_by_side_are_the_batch_of_one_process(ranks: int) -> None:
    shares = [list(batches_of(batch_size=8, rank=rank, ranks=ranks).epoch(1)) for rank in range(ranks)]
    joined = [
        (torch.cat([images for images, _ in step]), torch.cat([labels for _, labels in step]))
        for step in zip(*shares, strict=True)
    ]
    assert_same(iter(joined), batches_of(batch_size=8).epoch(1))


@pytest.mark.parametrize("augment", ["none", "crop", "flip-crop"])
def test_batches_do_not_draw_from_the_common_generator(augment: str) -> None:
    before = torch.get_rng_state()
    list(batches_of(augment=augment).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "a batch cannot have 0 images"),
        ({"batch_size": 6, "ranks": 4}, "numbered: a batch of 6 images cannot be shared by 4 ranks"),
        ({"batch_size": 64, "ranks": 4}, "a batch of 22 images cannot be shared by 4 ranks"),
        ({"rank": 2, "ranks": 2}, "there is no rank 2 among 2"),
        ({"rank": -1}, "there is no rank -1 among 1"),
    ],
    ids=["empty", "shares", "few", "rank", "negative"],
)
def test_impossible_batches_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HwbmpqError, match=message):
        batches_of(**options)


def test_an_unknown_augmentation_is_refused_at_once() -> None:
    with pytest.raises(UnknownNameError, match="no augmentation named 'mixup'"):
        batches_of(augment="mixup")


@pytest.mark.parametrize("start", [-1, 6])
def test_an_impossible_start_is_refused_at_once(start: int) -> None:
    with pytest.raises(HwbmpqError, match=f"an epoch of 5 steps cannot start at step {start}"):
        batches_of().epoch(0, start=start)


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(10, 3, 4, 4), torch.arange(10)), batch_size=3, **options)


def test_a_loader_can_start_anywhere() -> None:
    batches: Batches = LoaderBatches(loader())
    assert len(batches) == 4
    assert labels_of(batches.epoch(0)) == list(range(10))
    assert labels_of(batches.epoch(5, start=2)) == [6, 7, 8, 9]


def test_the_sampler_of_a_loader_is_told_the_epoch() -> None:
    class EpochSampler:
        epochs: tuple[int, ...] = ()

        def set_epoch(self, number: int) -> None:
            self.epochs += (number,)

        def __iter__(self) -> Iterator[int]:
            return iter([self.epochs[-1]])

        def __len__(self) -> int:
            return 1

    batches = LoaderBatches(loader(sampler=EpochSampler()))
    assert [labels_of(batches.epoch(number)) for number in (3, 7)] == [[3], [7]]


def test_a_loader_without_a_length_is_refused() -> None:
    with pytest.raises(HwbmpqError, match="a generator has no length"):
        LoaderBatches(pair for pair in loader())


@pytest.mark.parametrize("batch", [{"image": 1}, (torch.zeros(1),), (1, 2, 3)])
def test_a_loader_of_something_else_is_refused(batch: Any) -> None:
    with pytest.raises(HwbmpqError, match=f"yields a {type(batch).__name__} that is not a pair"):
        next(LoaderBatches([batch]).epoch(0))


PHOTOGRAPHIC = ["random-resized-crop", "rand-augment"]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    generator = torch.Generator().manual_seed(1)
    for number in range(24):
        place = folder / ("val" if number < 4 else "train") / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(0, 256, (40, 50, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(place / f"{number}.png")
    return folder


def photographic(folder: Path, augment: str, *, workers: int = 0, **options: Any) -> TrainingBatches:
    data = open_data(f"folder:{folder}").sized(options.pop("size", (3, 16, 16)), workers=workers)
    return TrainingBatches(data.train, **({"batch_size": 4, "augment": augment, "seed": 1} | options))


@pytest.mark.parametrize("augment", PHOTOGRAPHIC)
def test_photographs_are_the_same_with_workers_at_any_start_and_by_ranks(
    augment: str, photographs: Path
) -> None:
    random_states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    epoch = list(photographic(photographs, augment).epoch(1))
    assert len(epoch) == 5
    assert len({images.numpy().tobytes() for images, _ in epoch}) == 5
    assert_same(photographic(photographs, augment, workers=2).epoch(1), iter(epoch))
    assert_same(photographic(photographs, augment).epoch(1, start=3), iter(epoch[3:]))
    shares = [photographic(photographs, augment, rank=rank, ranks=2).epoch(1) for rank in (0, 1)]
    joined = (tuple(map(torch.cat, zip(*step, strict=True))) for step in zip(*shares, strict=True))
    assert_same(joined, iter(epoch))
    assert torch.equal(random_states[0], torch.get_rng_state())
    assert random_states[1] == random.getstate()
    assert np.array_equal(random_states[2], np.random.get_state()[1])


@pytest.mark.parametrize("augment", PHOTOGRAPHIC)
def test_photographs_differ_by_epoch_and_can_be_grey(augment: str, photographs: Path) -> None:
    batches = photographic(photographs, augment, size=(1, 16, 12))
    first, second = (next(batches.epoch(number))[0] for number in (0, 1))
    assert first.shape == second.shape == (4, 1, 16, 12)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("spec", ["digits", "fake"])
def test_images_that_are_no_files_are_cropped_and_resized_too(spec: str) -> None:
    data = load_data(spec, input_size=(3, 32, 32), train_limit=8)
    ((images, _),) = TrainingBatches(data.train, batch_size=8, augment="rand-augment").epoch(0)
    assert images.shape == (8, 3, 32, 32)


def test_photographs_of_what_are_none_are_refused() -> None:
    with pytest.raises(HwbmpqError, match="numbered: rand-augment is for photographs"):
        batches_of(augment="rand-augment")


def test_a_broken_photograph_is_named_though_a_worker_reads_it(photographs: Path, tmp_path: Path) -> None:
    shutil.copytree(photographs, tmp_path / "copy")
    data = open_data(f"folder:{tmp_path / 'copy'}").sized((3, 16, 16), workers=2)
    batches = TrainingBatches(data.train, batch_size=4, augment="random-resized-crop")
    (tmp_path / "copy/train/class0/8.png").write_bytes(b"broken")
    with pytest.raises(HwbmpqError, match=r"class0/8\.png: cannot be decoded") as raised:
        list(batches.epoch(0))
    assert "Traceback" not in str(raised.value)
    assert "replace the file" in raised.value.hint


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_files_are_those_in_memory(workers: int, photographs: Path) -> None:
    opened = open_data(f"folder:{photographs}")
    resident = opened.sized((3, 16, 16)).train
    streamed = opened.sized((3, 16, 16), resident_bytes=0, workers=workers).train
    one, other = (TrainingBatches(images, batch_size=4, augment="crop") for images in (resident, streamed))
    assert_same(one.epoch(0, start=1), other.epoch(0, start=1))
