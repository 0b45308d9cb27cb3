"""Folders of image files: which file belongs to which class, and what is missing."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hwbmpq.data import LabelledImages, load_data, load_images, open_data
from hwbmpq.data.folder import FileImages
from hwbmpq.data.images import Streamed
from hwbmpq.errors import HwbmpqError

SIZE = (3, 8, 8)


def draw(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (12, 10)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Reds and blues; how bright one is says which file it was."""
    for number in range(4):
        draw(tmp_path / "set/train/red" / f"{number}.png", (10 * number + 10, 0, 0))
        draw(tmp_path / "set/train/blue" / f"{number}.PNG", (0, 0, 10 * number + 10))
    draw(tmp_path / "set/val/red/a.png", (200, 0, 0))
    draw(tmp_path / "set/val/blue/deep/b.png", (0, 0, 200))
    return tmp_path / "set"


def first_pixels(images: LabelledImages) -> list[list[int]]:
    pixels: list[list[int]] = images.pixels.take(torch.arange(len(images)))[:, 0, 0].tolist()
    return pixels


def test_classes_are_folders_in_alphabetical_order(folder: Path) -> None:
    data = load_data(f"folder:{folder}", input_size=SIZE)
    assert data.classes == 2
    assert data.train.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert first_pixels(data.train) == [[0, 0, b] for b in (10, 20, 30, 40)] + [
        [r, 0, 0] for r in (10, 20, 30, 40)
    ]
    assert (first_pixels(data.test), data.test.labels.tolist()) == ([[0, 0, 200], [200, 0, 0]], [0, 1])


def test_test_stands_in_for_val(folder: Path) -> None:
    (folder / "val").rename(folder / "test")
    data = load_data(f"folder:{folder}", input_size=SIZE)
    assert len(data.test) == 2
    assert data.remarks == ()


def test_a_part_that_is_not_used_is_remarked(folder: Path) -> None:
    draw(folder / "test/red/a.png", (1, 1, 1))
    data = open_data(f"folder:{folder}")
    assert data.remarks == (f"measured on {folder}/val; {folder}/test is not used",)


def test_size_and_classes_are_known_before_anything_is_decoded(folder: Path) -> None:
    broken = folder / "train/red/3.png"
    broken.write_bytes(broken.read_bytes()[:40])
    data = open_data(f"folder:{folder}")
    assert (data.classes, data.image_size, data.default_input_size) == (2, (3, 10, 12), None)


def test_a_limit_decodes_only_what_it_takes(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    load_data(
        f"folder:{folder}",
        input_size=SIZE,
        train_limit=3,
        test_limit=1,
        on_image=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (4, 4)


def test_colours_are_averaged_for_a_grey_network(folder: Path) -> None:
    data = load_data(f"folder:{folder}", input_size=(1, 8, 8))
    assert first_pixels(data.test) == [[67], [67]]


def test_what_does_not_fit_in_memory_is_the_same_batch_by_batch(folder: Path) -> None:
    opened = open_data(f"folder:{folder}")
    resident, streamed = (opened.sized(SIZE, resident_bytes=limit).train for limit in (10**9, 0))
    assert isinstance(streamed.pixels, Streamed)
    for (first, labels), (second, others) in zip(resident.batches(3), streamed.batches(3), strict=True):
        assert torch.equal(first, second)
        assert torch.equal(labels, others)


def test_hidden_folders_and_other_files_are_left_alone(folder: Path) -> None:
    (folder / "train/.cache").mkdir()
    (folder / "train/red/notes.txt").write_text("nothing")
    (folder / "train/README").write_text("nothing")
    draw(folder / "train/red/._0.png", (1, 1, 1))
    assert len(load_data(f"folder:{folder}", input_size=SIZE).train) == 8


def test_calibration_needs_no_test_part(folder: Path) -> None:
    (folder / "val").rename(folder / "elsewhere")
    assert len(load_images(f"folder:{folder}", input_size=SIZE)) == 8


def test_a_missing_test_part_says_so(folder: Path) -> None:
    (folder / "val").rename(folder / "vall")
    with pytest.raises(HwbmpqError, match="set: has neither val nor test") as raised:
        open_data(f"folder:{folder}")
    assert "val/CLASS/IMAGE" in raised.value.hint


def test_a_missing_training_part_says_so(folder: Path) -> None:
    (folder / "train").rename(folder / "training")
    with pytest.raises(HwbmpqError, match=r"there is no folder .*set/train"):
        open_data(f"folder:{folder}")


def test_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match="none: no such folder"):
        open_data(f"folder:{tmp_path}/none")


def test_different_classes_are_named(folder: Path) -> None:
    draw(folder / "train/green/0.png", (0, 1, 0))
    (folder / "val/red").rename(folder / "val/rod")
    message = "train and val have different classes: train alone has green, red; val alone has rod"
    with pytest.raises(HwbmpqError, match=message):
        open_data(f"folder:{folder}")


def test_a_class_without_images_is_named(folder: Path) -> None:
    (folder / "val/red/a.png").rename(folder / "val/red/a.text")
    with pytest.raises(HwbmpqError, match="val/red: holds no images"):
        open_data(f"folder:{folder}")


def test_a_part_without_classes_is_named(folder: Path) -> None:
    for path in sorted(folder.rglob("val/**/*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(HwbmpqError, match="val: holds no folders"):
        open_data(f"folder:{folder}")


def test_a_file_that_is_no_image_is_named(folder: Path) -> None:
    (folder / "train/red/2.png").write_bytes(b"not an image")
    with pytest.raises(HwbmpqError, match=r"train/red/2\.png: cannot be decoded"):
        load_data(f"folder:{folder}", input_size=SIZE)


def test_too_few_classes_are_refused(folder: Path) -> None:
    with pytest.raises(HwbmpqError, match="has labels up to 1, but only 1 classes are expected"):
        open_data(f"folder:{folder}", classes=1)


def test_channels_that_do_not_fit_are_refused(folder: Path) -> None:
    with pytest.raises(HwbmpqError, match="images of 3 channels do not fit an input of 4"):
        load_data(f"folder:{folder}", input_size=(4, 8, 8))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Tiny ImageNet of two classes, in the original layout."""
    root = tmp_path / "tiny-imagenet-200"
    for name, red in (("n02", 90), ("n01", 30)):
        draw(root / "train" / name / "images" / f"{name}_0.JPEG", (red, 0, 0))
        draw(root / "train" / name / "images" / f"{name}_1.JPEG", (red, 0, 0))
        (root / "train" / name / f"{name}_boxes.txt").write_text("0\n")
    for number, red in enumerate((90, 30, 90)):
        draw(root / "val" / "images" / f"val_{number}.JPEG", (red, 0, 0))
    (root / "wnids.txt").write_text("n02\nn01\n")
    lines = [f"val_{number}.JPEG\t{name}\t0\t0\t9\t9\n" for number, name in enumerate(("n02", "n01", "n02"))]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return root


@pytest.mark.parametrize("inside", [True, False], ids=["the-folder", "its-parent"])
def test_tinyimagenet_labels_follow_the_annotations(tiny: Path, inside: bool) -> None:
    data = load_data("tinyimagenet", root=tiny if inside else tiny.parent, input_size=SIZE)
    assert data.classes == 2
    for part, count in ((data.train, 4), (data.test, 3)):
        assert len(part) == count
        reds = torch.tensor([pixel[0] for pixel in first_pixels(part)])
        assert torch.equal((reds - 30) / 60 > 0.5, part.labels.bool())  # JPEG changes colours a little


def test_tinyimagenet_that_is_not_there_says_where_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match=f"no {tmp_path}/tiny-imagenet-200/wnids.txt") as raised:
        open_data("tinyimagenet", root=tmp_path)
    assert "--data-root" in raised.value.hint


def test_tinyimagenet_with_a_missing_test_image_names_it(tiny: Path) -> None:
    (tiny / "val/images/val_1.JPEG").unlink()
    with pytest.raises(HwbmpqError, match=r"1 of its images are missing, such as .*val_1\.JPEG"):
        open_data("tinyimagenet", root=tiny)


def test_tinyimagenet_with_an_unknown_class_names_the_line(tiny: Path) -> None:
    with (tiny / "val/val_annotations.txt").open("a") as file:
        file.write("val_9.JPEG\tn77\t0\t0\t9\t9\n")
    with pytest.raises(HwbmpqError, match=r"val_annotations\.txt: line 4 names the class 'n77'"):
        open_data("tinyimagenet", root=tiny)


def test_tinyimagenet_without_annotations_says_so(tiny: Path) -> None:
    (tiny / "val/val_annotations.txt").unlink()
    with pytest.raises(HwbmpqError, match=r"there is no .*val_annotations\.txt"):
        open_data("tinyimagenet", root=tiny)


def test_tinyimagenet_with_an_empty_class_names_it(tiny: Path) -> None:
    for path in (tiny / "train/n01/images").iterdir():
        path.unlink()
    with pytest.raises(HwbmpqError, match="train/n01: holds no images"):
        open_data("tinyimagenet", root=tiny)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "PPM", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1"])
def test_every_known_format_is_decoded_as_pillow_does(form: str, mode: str, tmp_path: Path) -> None:
    if (form, mode) in [("JPEG", "RGBA"), ("JPEG", "P"), ("PPM", "RGBA"), ("PPM", "P"), ("BMP", "RGBA")]:
        pytest.skip("Pillow does not write it")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    path = tmp_path / "image.png"  # whatever its name
    Image.fromarray(pixels).convert(mode).save(path, form)
    with Image.open(path) as image:
        expected = np.asarray(image.convert("RGBA" if "transparency" in image.info else "RGB").convert("RGB"))
    found = FileImages(paths=[path])
    np.testing.assert_array_equal(np.asarray(found.whole(0, (3, 12, 10))), expected)
    np.testing.assert_array_equal(found.read(torch.tensor([0]), (3, 12, 10))[0].numpy(), expected)


def test_postscript_is_refused_whatever_it_is_called(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.check_call", None)  # how Pillow would start Ghostscript
    text = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"
    (folder / "train/red/2.png").write_bytes(text)
    with pytest.raises(HwbmpqError, match=r"2\.png: cannot be decoded: not an image, or none of JPEG, PNG"):
        FileImages(paths=[folder / "train/red/2.png"]).read(torch.tensor([0]), (3, 8, 8))


@pytest.mark.parametrize(("mode", "side"), [("RGB", 8200), ("RGBA", 5400), ("L", 7100)])
def test_an_image_that_unpacks_to_too_much_is_refused(mode: str, side: int, tmp_path: Path) -> None:
    Image.new(mode, (side, side)).save(tmp_path / "bomb.png", compress_level=1)
    with pytest.raises(HwbmpqError, match=r"bomb\.png: cannot be decoded: .* make it smaller"):
        FileImages(paths=[tmp_path / "bomb.png"]).read(torch.tensor([0]), (3, 8, 8))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(HwbmpqError, match="not a regular file"):
        FileImages(paths=[tmp_path / "pipe.png"]).read(torch.tensor([0]), (3, 8, 8))
