"""Fashion-MNIST's IDX files, packed or not, wherever they are."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from hwbmpq.data import load_data, open_data, torchvision_sets
from hwbmpq.errors import HwbmpqError

SIZE = (1, 6, 5)


@pytest.fixture(autouse=True)
def _without_debians(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torchvision_sets, "DEBIAN_FOLDER", tmp_path / "debian")


def write(path: Path, values: np.ndarray, packed: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
    content = head + values.astype(np.uint8).tobytes()
    if packed:
        path = path.with_name(f"{path.name}.gz")
        content = gzip.compress(content)
    path.write_bytes(content)


def write_set(folder: Path, packed: bool = False) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 6, 5))
    labels = np.array([0, 1, 2, 3, 0, 1, 2])
    for part, count in (("train", 7), ("t10k", 3)):
        write(folder / f"{part}-images-idx3-ubyte", pixels[:count], packed)
        write(folder / f"{part}-labels-idx1-ubyte", labels[:count], packed)
    return pixels, labels


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("place", ["FashionMNIST/raw", ".", "debian"])
def test_files_are_found_and_read(tmp_path: Path, place: str, packed: bool) -> None:
    pixels, labels = write_set(tmp_path / place, packed)
    data = load_data("fashion-mnist", root=tmp_path, input_size=SIZE)
    assert data.classes == 4
    assert torch.equal(data.train.pixels.take(torch.arange(7))[..., 0].long(), torch.from_numpy(pixels))
    assert data.train.labels.tolist() == labels.tolist()
    assert data.test.labels.tolist() == labels[:3].tolist()


def test_the_size_is_the_files(tmp_path: Path) -> None:
    write_set(tmp_path)
    assert open_data("fashion-mnist", root=tmp_path).image_size == SIZE


def test_a_missing_set_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match=r"no train-images-idx3-ubyte \(or \.gz\) in") as raised:
        open_data("fashion-mnist", root=tmp_path)
    assert f"{tmp_path}/FashionMNIST/raw, {tmp_path}, {tmp_path}/debian" in str(raised.value)
    for way in ("apt install dataset-fashion-mnist", "--download", "--data-root"):
        assert way in raised.value.hint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(HwbmpqError, match="has no t10k-labels-idx1-ubyte"):
        open_data("fashion-mnist", root=tmp_path)


def test_a_short_file_is_named_with_its_numbers(tmp_path: Path) -> None:
    write_set(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-10])
    message = "train-images-idx3-ubyte: should hold 7 x 6 x 5 bytes, but holds 200"
    with pytest.raises(HwbmpqError, match=message):
        open_data("fashion-mnist", root=tmp_path)


@pytest.mark.parametrize("keep", [15, -4], ids=["head", "end"])
def test_a_cut_archive_is_named(tmp_path: Path, keep: int) -> None:
    write_set(tmp_path, packed=True)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(HwbmpqError, match=r"train-labels-idx1-ubyte\.gz: cannot be read"):
        open_data("fashion-mnist", root=tmp_path)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    write_set(tmp_path)
    write(tmp_path / "train-images-idx3-ubyte", np.zeros(7))
    with pytest.raises(HwbmpqError, match="is not an IDX file of bytes in 3 dimensions"):
        open_data("fashion-mnist", root=tmp_path)


def test_images_without_labels_are_counted(tmp_path: Path) -> None:
    write_set(tmp_path)
    write(tmp_path / "train-labels-idx1-ubyte", np.array([0, 1, 2]))
    with pytest.raises(HwbmpqError, match="train has 7 images, but 3 labels"):
        open_data("fashion-mnist", root=tmp_path)
