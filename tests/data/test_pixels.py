"""Images in a network's size: how they are resized, and whether they are in memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from hwbmpq.data.dataset import ArrayImages, Picked, Size, StoredPart, centred_window, fitted
from hwbmpq.data.folder import FileImages, decode
from hwbmpq.data.images import Pixels, Resident, Streamed, settle
from hwbmpq.errors import HwbmpqError

WHITE = 255


def noise(count: int, height: int, width: int, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, height, width, channels), generator=generator, dtype=torch.uint8)


def picked(pixels: Tensor, limit: int | None = None) -> Picked:
    part = StoredPart(images=ArrayImages(pixels=pixels), labels=torch.arange(len(pixels)))
    return part.pick(limit, seed=0)


def settled(parts: list[Picked], size: Size, **options: Any) -> list[Pixels]:
    return settle([Streamed(picked=part, input_size=size) for part in parts], **options)


@pytest.mark.parametrize(
    ("stored", "target", "window"),
    [
        ((32, 32), (16, 16), (0, 0, 32, 32)),
        ((100, 60), (32, 32), (20, 0, 60, 60)),
        ((60, 101), (32, 32), (0, 20, 60, 60)),
        ((8, 8), (5, 7), (1, 0, 6, 8)),
        ((1, 50), (32, 32), (0, 24, 1, 1)),
    ],
    ids=["same", "tall", "wide", "uneven", "line"],
)
def test_the_window_is_the_largest_in_the_middle(
    stored: tuple[int, int], target: tuple[int, int], window: tuple[int, int, int, int]
) -> None:
    assert centred_window(*stored, *target) == window


def striped() -> Tensor:
    """A tall image: white in the middle square, black above and below."""
    pixels = torch.zeros((1, 60, 20, 3), dtype=torch.uint8)
    pixels[:, 20:40] = WHITE
    return pixels


def test_only_the_centre_of_a_tall_array_is_kept() -> None:
    assert torch.equal(fitted(striped(), (3, 10, 10)), torch.full((1, 10, 10, 3), WHITE, dtype=torch.uint8))


def test_only_the_centre_of_a_tall_file_is_kept(tmp_path: Path) -> None:
    Image.fromarray(striped()[0].numpy()).save(tmp_path / "tall.png")
    assert np.array_equal(np.asarray(decode(tmp_path / "tall.png", 10, 10)), np.full((10, 10, 3), WHITE))


def test_files_and_arrays_are_resized_alike(tmp_path: Path) -> None:
    pixels = noise(1, 48, 37)
    Image.fromarray(pixels[0].numpy()).save(tmp_path / "image.png")
    from_file = torch.from_numpy(np.array(decode(tmp_path / "image.png", 16, 12)))
    from_array = fitted(pixels, (3, 16, 12))[0]
    assert int((from_file.int() - from_array.int()).abs().max()) <= 1  # either rounds after each direction


def test_a_large_jpeg_is_as_sharp_as_if_it_were_decoded_whole(tmp_path: Path) -> None:
    spots = Image.fromarray(noise(1, 90, 120)[0].numpy()).resize((800, 600), Image.Resampling.BICUBIC)
    spots.save(tmp_path / "spots.jpg", quality=95)
    with Image.open(tmp_path / "spots.jpg") as whole:
        wanted = np.asarray(whole.crop((100, 0, 700, 600)).resize((96, 96), Image.Resampling.BILINEAR))
    difference = np.abs(np.asarray(decode(tmp_path / "spots.jpg", 96, 96)).astype(int) - wanted)
    assert difference.mean() < 4  # an eighth of its size, which would be too small, differs by more than 20


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
def test_files_of_any_mode_become_colour(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    Image.new(mode, (9, 7)).save(path)
    assert np.asarray(decode(path, 4, 4)).shape == (4, 4, 3)


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4))
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.putpixel((1, 1), 1)
    image.save(tmp_path / "image.png", transparency=b"\x40\x80")
    assert np.asarray(decode(tmp_path / "image.png", 4, 4)).shape == (4, 4, 3)


def test_images_in_the_right_size_are_not_copied() -> None:
    pixels = noise(5, 8, 8)
    (resident,) = settled([picked(pixels)], (3, 8, 8), name="noise", limit_bytes=0)
    assert isinstance(resident, Resident)
    assert resident.pixels.data_ptr() == pixels.data_ptr()


def test_a_subset_in_the_right_size_is_that_subset() -> None:
    pixels, some = noise(9, 8, 8), picked(noise(9, 8, 8), limit=4)
    (resident,) = settled([some], (3, 8, 8), name="noise")
    assert torch.equal(resident.take(torch.arange(4)), pixels[some.labels])


def test_parts_that_do_not_fit_together_are_streamed() -> None:
    parts = [picked(noise(6, 8, 8)), picked(noise(2, 8, 8))]
    size = (3, 4, 4)
    needed = 8 * 3 * 4 * 4
    assert all(isinstance(p, Resident) for p in settled(parts, size, name="noise", limit_bytes=needed))
    assert all(isinstance(p, Streamed) for p in settled(parts, size, name="noise", limit_bytes=needed - 1))


@pytest.mark.parametrize("size", [(3, 4, 4), (1, 6, 5), (3, 12, 12)], ids=["colour", "grey", "up"])
def test_streamed_images_are_the_resident_ones(size: Size) -> None:
    part = picked(noise(10, 8, 8), limit=7)
    (resident,) = settled([part], size, name="noise")
    (streamed,) = settled([part], size, name="noise", limit_bytes=0)
    orders = [torch.tensor([6, 0]), torch.tensor([3]), torch.tensor([1, 1, 5]), torch.tensor([2, 4])]
    pairs = list(zip(streamed.stream(orders), resident.stream(orders), strict=True))
    assert len(pairs) == 4
    assert all(torch.equal(first, second) for first, second in pairs)


class _Counting:
    """Stored images that remember what was read."""

    channels = 3

    def __init__(self) -> None:
        self.read_indices: list[int] = []

    def __len__(self) -> int:
        return 1000

    def in_memory(self, input_size: Size) -> None:
        return None

    def read(self, indices: Tensor, input_size: Size) -> Tensor:
        self.read_indices += indices.tolist()
        if 666 in indices.tolist():
            raise HwbmpqError("image 666 is broken")
        return torch.zeros((len(indices), *input_size[1:], 3), dtype=torch.uint8)

    def whole(self, index: int, input_size: Size) -> Image.Image:
        raise AssertionError


def counted(count: int) -> tuple[_Counting, Picked]:
    images = _Counting()
    return images, Picked(images=images, indices=torch.arange(count), labels=torch.zeros(count))


def test_resident_images_are_read_once_and_progress_is_told() -> None:
    images, part = counted(600)
    told: list[tuple[int, int]] = []
    settled([part, part], (3, 2, 2), name="n", on_image=lambda done, total: told.append((done, total)))
    assert images.read_indices == [*range(600), *range(600)]
    assert told[-1] == (1200, 1200)
    assert told == sorted(told)
    assert len(told) > 4


def test_streaming_stops_reading_when_nobody_listens() -> None:
    images, part = counted(600)
    stream = Streamed(picked=part, input_size=(3, 2, 2)).stream(_singles(600))
    next(stream)
    assert isinstance(stream, Iterator)
    stream.close()  # type: ignore[attr-defined]
    assert len(images.read_indices) < 10


def _singles(count: int) -> Iterator[Tensor]:
    return iter(torch.split(torch.arange(count), 1))


def test_an_error_while_streaming_reaches_the_reader() -> None:
    _, part = counted(700)
    with pytest.raises(HwbmpqError, match="image 666 is broken"):
        list(Streamed(picked=part, input_size=(3, 2, 2)).stream(_singles(700)))


def test_channels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(HwbmpqError, match="noise: images of 3 channels do not fit an input of 2"):
        settled([picked(noise(2, 8, 8))], (2, 8, 8), name="noise")


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    for number in range(3):
        Image.fromarray(noise(1, 20, 20)[0].numpy()).save(tmp_path / f"{number}.jpg")
    content = (tmp_path / "1.jpg").read_bytes()
    (tmp_path / "1.jpg").write_bytes(content[: len(content) // 2])
    images = FileImages(paths=sorted(tmp_path.iterdir()))
    with pytest.raises(HwbmpqError, match=r"1\.jpg: cannot be decoded: .*[Tt]runcated"):
        images.read(torch.arange(3), (3, 8, 8))
