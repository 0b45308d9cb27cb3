"""Checkpoints that are well-formed archives of something else: one sentence, and no room made for them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hwbmpq.errors import HwbmpqError
from hwbmpq.training.checkpoint import CheckpointError, check_size, check_state, packed, unpacked

GOOD = {
    "format": "hwbmpq-checkpoint/1",
    "model": {"weight": torch.zeros(3), "_extra_state": {"any": 1}},
    "progress": {"epoch": 1, "batch": 0, "records": [{"epoch": 1}]},
}
BEST = {"model": {"weight": torch.zeros(3)}, "epoch": 4, "bits": {}}
ITSELF: list[Any] = []
ITSELF.append(ITSELF)
LAUGHS: list[Any] = ["x"]
for _ in range(12):
    LAUGHS = [LAUGHS] * 10
DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]


def progress(**changes: Any) -> dict[str, Any]:
    return {**GOOD, "progress": {**GOOD["progress"], **changes}}  # type: ignore[dict-item]


BAD_STATES = {
    "nothing": ({}, "model: Field required"),
    "numbers for weights": ({**GOOD, "model": 5}, "model: Input should be a valid dictionary"),
    "no progress": ({"model": {}}, "does not say after which epoch"),
    "progress as a list": ({**GOOD, "progress": [1]}, "progress: "),
    "epoch as a text": (progress(epoch="1"), "progress.epoch: Input should be a valid integer"),
    "epoch below zero": (progress(epoch=-1), "progress.epoch: "),
    "records as numbers": (progress(records=[1]), "progress.records.0: "),
    "accuracy as a list": (progress(best_accuracy=[]), "progress.best_accuracy: "),
    "allocator as a list": ({**GOOD, "allocator": []}, "allocator: "),
}
TOO_LARGE = {
    "it holds itself": (progress(records=ITSELF), "refer to each other without end"),
    "a billion laughs": (progress(records=LAUGHS), "refer to each other without end"),
    "deep": (progress(records=DEEP), "refer to each other without end"),
    "expanded": (
        {**GOOD, "model": {"w": torch.zeros(1).expand(1 << 40)}},
        "a tensor of 1,099,511,627,776 numbers is made of fewer",
    ),
    "sparse": ({**GOOD, "model": {"w": torch.zeros(2, 2).to_sparse()}}, "sparse"),
}


@pytest.mark.parametrize(("content", "message"), BAD_STATES.values(), ids=BAD_STATES)
def test_what_is_not_the_state_of_a_run_is_refused(content: Any, message: str) -> None:
    with pytest.raises(HwbmpqError, match=message) as raised:
        check_state(content)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(("content", "message"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_what_takes_more_than_the_file_holds_is_refused(content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_size(content)


@pytest.mark.parametrize("content", [GOOD, BEST], ids=["last", "best"])
def test_the_state_of_a_run_is_accepted(content: Any) -> None:
    check_state(content)
    check_size(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LAUGHS, "it repeats values far more often"),
        (ITSELF, "a value in it refers to itself"),
        (DEEP, "its values refer"),
    ],
    ids=["a billion laughs", "itself", "deep"],
)
def test_a_file_with_a_right_checksum_is_checked_too(content: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(packed({"model": content}))
    with pytest.raises(CheckpointError, match=rf"a\.pt is not a checkpoint of hwbmpq: {message}"):
        unpacked(tmp_path / "a.pt")


@pytest.mark.parametrize("form", [None, 5, ["x", "x"]], ids=["none", "number", "list"])
def test_another_format_is_named_if_it_is_a_text(form: Any, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(packed({"format": form}))
    with pytest.raises(CheckpointError) as raised:
        unpacked(tmp_path / "a.pt")
    assert str(raised.value).endswith("a.pt is not a checkpoint of this version of hwbmpq")
