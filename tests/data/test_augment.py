"""Augmentation against the obvious way: pad, cut out, flip."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hwbmpq.data.augment import AUGMENTATIONS, Augmentation, Windows, draw_windows, get_augmentation
from hwbmpq.errors import UnknownNameError

FLIPS_ONLY = Augmentation(name="flip", description="", flips=True)


def pictures(count: int, height: int, width: int, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (count, height, width, channels), generator=generator, dtype=torch.uint8)


def drawn(augmentation: Augmentation, pixels: Tensor, seed: int = 0) -> Windows:
    count, height, width, _ = pixels.shape
    windows = draw_windows(augmentation, count, height, width, torch.Generator().manual_seed(seed))
    assert windows is not None
    return windows


def padded(pixels: Tensor, tall: int, wide: int) -> Tensor:
    """(B, H + 2 tall, W + 2 wide, C), with the reflection around it."""
    first = pixels.permute(0, 3, 1, 2).float()
    return F.pad(first, (wide, wide, tall, tall), mode="reflect").permute(0, 2, 3, 1).to(torch.uint8)


def is_window_of(image: Tensor, around: Tensor) -> bool:
    height, width, _ = image.shape
    return any(
        torch.equal(image, around[top : top + height, left : left + width])
        for top in range(around.shape[0] - height + 1)
        for left in range(around.shape[1] - width + 1)
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (16, 24)])
def test_a_crop_is_a_window_of_the_reflected_image(height: int, width: int, channels: int) -> None:
    pixels = pictures(12, height, width, channels)
    cropped = drawn(get_augmentation("crop"), pixels).of(pixels)
    around = padded(pixels, height // 8, width // 8)
    assert all(is_window_of(image, frame) for image, frame in zip(cropped, around, strict=True))


def test_crops_reach_every_offset_up_to_an_eighth_and_no_further() -> None:
    pixels = torch.arange(32, dtype=torch.uint8).view(1, 32, 1, 1).expand(600, 32, 32, 1)
    middle = drawn(get_augmentation("crop"), pixels).of(pixels)[:, 16, 0, 0]
    assert sorted(set(middle.tolist())) == list(range(12, 21))


def test_rows_and_columns_move_independently() -> None:
    windows = drawn(get_augmentation("crop"), pictures(64, 32, 32))
    assert not torch.equal(windows.rows, windows.columns)


def test_a_flip_mirrors_left_and_right_about_every_other_time() -> None:
    pixels = pictures(400, 8, 8)
    flipped = drawn(FLIPS_ONLY, pixels).of(pixels)
    is_same = (flipped == pixels).flatten(1).all(1)
    is_mirrored = (flipped == pixels.flip(2)).flatten(1).all(1)
    assert bool((is_same ^ is_mirrored).all())
    assert 150 < int(is_mirrored.sum()) < 250


def test_a_flipped_crop_is_a_window_of_the_image_or_its_mirror() -> None:
    pixels = pictures(16, 32, 32)
    changed = drawn(get_augmentation("flip-crop"), pixels).of(pixels)
    plain = [is_window_of(a, b) for a, b in zip(changed, padded(pixels, 4, 4), strict=True)]
    mirrored = [is_window_of(a, b) for a, b in zip(changed, padded(pixels.flip(2), 4, 4), strict=True)]
    assert all(a != b for a, b in zip(plain, mirrored, strict=True))
    assert 0 < sum(plain) < 16


def test_a_part_of_the_windows_belongs_to_that_part_of_the_images() -> None:
    pixels = pictures(12, 16, 16)
    windows = drawn(get_augmentation("flip-crop"), pixels)
    assert torch.equal(windows.part(slice(4, 9)).of(pixels[4:9]), windows.of(pixels)[4:9])


def test_small_images_are_not_moved() -> None:
    pixels = pictures(8, 7, 7)
    assert torch.equal(drawn(get_augmentation("crop"), pixels).of(pixels), pixels)


def test_none_changes_nothing() -> None:
    assert draw_windows(get_augmentation("none"), 4, 32, 32, torch.Generator()) is None


def test_an_unknown_augmentation_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="no augmentation named 'flip'") as raised:
        get_augmentation("flip")
    assert raised.value.hint == f"use {', '.join(AUGMENTATIONS)}"
