"""CIFAR through torchvision: nothing is unpickled or downloaded that should not be."""

import hashlib
import os
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch

from hwbmpq.data import load_data, open_data
from hwbmpq.data.torchvision_import import import_torchvision
from hwbmpq.errors import HwbmpqError

SIZE = (3, 32, 32)
IMAGES = 4
SETS = {"cifar10": ("CIFAR10", "labels"), "cifar100": ("CIFAR100", "fine_labels")}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise URLError("no network in tests")

    import_torchvision()
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", refuse)


def torchvision_class(spec: str) -> Any:
    import_torchvision()
    return getattr(import_module("torchvision.datasets"), SETS[spec][0])


def write_set(root: Path, spec: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Batches of four images in CIFAR's own form, with their sums as the published ones; pixels by file."""
    kind, key = torchvision_class(spec), SETS[spec][1]
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    written, sums = {}, {}
    names = [name for name, _ in (*kind.train_list, *kind.test_list)]
    for seed, name in enumerate(names):
        rows = np.random.default_rng(seed).integers(0, 256, (IMAGES, 3072), dtype=np.uint8)
        written[name] = rows.reshape(IMAGES, 3, 32, 32).transpose(0, 2, 3, 1)
        sums[name] = dump(folder / name, {"data": rows, key: list(range(IMAGES))})
    meta = {**kind.meta, "md5": dump(folder / kind.meta["filename"], {kind.meta["key"]: list("abcd")})}
    monkeypatch.setattr(kind, "train_list", [[name, sums[name]] for name, _ in kind.train_list])
    monkeypatch.setattr(kind, "test_list", [[name, sums[name]] for name, _ in kind.test_list])
    monkeypatch.setattr(kind, "meta", meta)
    return written


def dump(path: Path, content: Any) -> str:
    path.write_bytes(pickle.dumps(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("spec", SETS)
@pytest.mark.parametrize("inside", [False, True], ids=["root", "the-folder"])
def test_batches_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, inside: bool) -> None:
    written = write_set(tmp_path, spec, monkeypatch)
    root = tmp_path / torchvision_class(spec).base_folder if inside else tmp_path
    data = load_data(spec, root=root, input_size=SIZE)
    *train, test = written.values()
    assert torch.equal(_all(data.train), torch.from_numpy(np.concatenate(train)))
    assert torch.equal(_all(data.test), torch.from_numpy(test))
    assert data.test.labels.tolist() == [0, 1, 2, 3]
    assert data.augment == "flip-crop"


def _all(images: Any) -> torch.Tensor:
    pixels: torch.Tensor = images.pixels.take(torch.arange(len(images)))
    return pixels


@pytest.mark.parametrize("spec", SETS)
def test_a_missing_set_says_what_should_be_where(tmp_path: Path, spec: str) -> None:
    folder = tmp_path / torchvision_class(spec).base_folder
    with pytest.raises(HwbmpqError, match=f"{spec}: {folder} has no ") as raised:
        open_data(spec, root=tmp_path)
    assert "--data-root DIR" in raised.value.hint
    assert "--download" in raised.value.hint


def test_a_missing_file_is_named_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path, "cifar10", monkeypatch)
    (tmp_path / "cifar-10-batches-py/data_batch_3").unlink()
    with pytest.raises(HwbmpqError, match=r"cifar-10-batches-py has no data_batch_3$"):
        open_data("cifar10", root=tmp_path)


def test_the_default_root_is_data_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(tmp_path / "data", "cifar10", monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert open_data("cifar10").classes == IMAGES


class _Trap:
    """A pickle that makes a folder when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["data_batch_1", "test_batch", "batches.meta"])
def test_a_file_that_was_tampered_with_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_set(tmp_path, "cifar10", monkeypatch)
    dump(tmp_path / "cifar-10-batches-py" / name, _Trap(tmp_path / "sprung"))
    with pytest.raises(HwbmpqError, match=f"MD5 sums are not the published ones: {name}$"):
        open_data("cifar10", root=tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_nothing_is_downloaded_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> None:
        pytest.fail("a download was tried")

    monkeypatch.setattr(torchvision_class("cifar10"), "download", fail)
    with pytest.raises(HwbmpqError, match="has no data_batch_1"):
        open_data("cifar10", root=tmp_path)


@pytest.mark.parametrize("spec", SETS)
def test_a_failed_download_says_so(tmp_path: Path, spec: str) -> None:
    with pytest.raises(
        HwbmpqError, match=f"{spec}: cannot be downloaded to {tmp_path}: .*no network in tests"
    ):
        open_data(spec, root=tmp_path, download=True)


def test_what_is_there_is_not_downloaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path, "cifar10", monkeypatch)
    assert open_data("cifar10", root=tmp_path, download=True).classes == IMAGES
