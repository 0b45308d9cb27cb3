"""Weights files: what loads, what does not, and that no code in them runs."""

import pickle
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hwbmpq.errors import WeightsError
from hwbmpq.io import open_regular
from hwbmpq.models import load_weights


@pytest.fixture
def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 2))


@pytest.fixture
def state() -> dict[str, Tensor]:
    torch.manual_seed(7)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 2)).state_dict()


def without_counter(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}


def prefixed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"module.{key}": value for key, value in state.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        prefixed,
        without_counter,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"state_dict": prefixed(s), "best": 0.9},
        lambda s: {"model": s},
        lambda s: {f"module._orig_mod.{key}": value for key, value in s.items()},
    ],
    ids=[
        "plain",
        "module prefix",
        "old batch norm",
        "wrapped",
        "wrapped and prefixed",
        "model key",
        "compiled",
    ],
)
def test_torch_checkpoints_load(
    network: nn.Module, state: dict[str, Tensor], wrap: object, tmp_path: Path
) -> None:
    torch.save(wrap(state), tmp_path / "w.pt")  # type: ignore[operator]
    load_weights(network, tmp_path / "w.pt")
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())


def test_the_file_that_was_checked_is_the_one_that_is_read(
    network: nn.Module, state: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.safetensors"
    save_file(prefixed(state), path)

    def opened_and_swapped(name: Path, most_bytes: int) -> BinaryIO:
        file = open_regular(name, most_bytes)
        path.unlink()
        path.write_bytes(b"another file")
        return file

    monkeypatch.setattr("hwbmpq.models.weights.open_regular", opened_and_swapped)
    load_weights(network, path)


def test_safetensors_load(network: nn.Module, state: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(prefixed(state), tmp_path / "w.safetensors")
    load_weights(network, tmp_path / "w.safetensors")
    assert torch.equal(network[0].weight, state["0.weight"])


def test_mismatches_are_listed_by_name_and_shape(
    network: nn.Module, state: dict[str, Tensor], tmp_path: Path
) -> None:
    state["2.weight"] = torch.zeros(3, 4)
    state["extra"] = torch.zeros(1)
    del state["0.bias"]
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(WeightsError) as caught:
        load_weights(network, tmp_path / "w.pt")
    message = str(caught.value)
    assert "1 missing, 1 unexpected, 1 of another shape" in message
    assert "missing 0.bias (4,)" in message
    assert "unexpected extra (1,)" in message
    assert "2.weight is (3, 4), the model has (2, 4)" in message


def test_a_long_list_of_mismatches_is_cut(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="and 7 more"):
        load_weights(nn.Sequential(*(nn.Linear(1, 1) for _ in range(6))), tmp_path / "w.pt")


def test_nothing_is_loaded_when_something_does_not_fit(
    network: nn.Module, state: dict[str, Tensor], tmp_path: Path
) -> None:
    before = network[0].weight.clone()
    del state["2.bias"]
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(WeightsError):
        load_weights(network, tmp_path / "w.pt")
    assert torch.equal(network[0].weight, before)


class Evil:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.write_text, (self.path, "ran")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors", "w.bin"])
def test_code_in_a_file_never_runs(network: nn.Module, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Evil(tmp_path / "proof")))
    with pytest.raises(WeightsError):
        load_weights(network, tmp_path / name)
    torch.save({"state_dict": Evil(tmp_path / "proof")}, tmp_path / name)
    with pytest.raises(WeightsError):
        load_weights(network, tmp_path / name)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x00" * 100, b"PK\x03\x04" + b"\x01" * 50])
def test_garbage_is_one_clear_sentence(network: nn.Module, name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=name):
        load_weights(network, tmp_path / name)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_truncated_files_are_refused(
    network: nn.Module, state: dict[str, Tensor], suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"w{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    whole = path.read_bytes()
    for length in (len(whole) // 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(WeightsError):
            load_weights(network, path)


def test_a_missing_file_or_a_folder_says_so(network: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights file .*gone\.pt"):
        load_weights(network, tmp_path / "gone.pt")
    with pytest.raises(WeightsError, match=r"cannot read .*: Is a directory"):
        load_weights(network, tmp_path)


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {}, torch.zeros(3)], ids=str)
def test_other_contents_are_refused(network: nn.Module, content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="holds no"):
        load_weights(network, tmp_path / "w.pt")
