"""Archives that torch would unpack to gigabytes."""

import io
import pickle
import random
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hwbmpq.errors import HwbmpqError
from hwbmpq.models.archives import check_archive
from hwbmpq.models.weights import load_weights
from hwbmpq.training.checkpoint import CheckpointError, packed, with_archive_checksum
from hwbmpq.training.run_directory import RunDirectory


def saved(content: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def rewritten(
    data: bytes, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return buffer.getvalue()


def compressed() -> bytes:
    """A hundred megabytes in a hundred kilobytes."""
    return rewritten(
        saved({"w": torch.zeros(25_000_000)}), lambda name, data: data, compression=zipfile.ZIP_DEFLATED
    )


def pickled(content: bytes) -> Callable[[], bytes]:
    return lambda: rewritten(
        saved({"w": torch.zeros(1)}), lambda name, data: content if name.endswith(".pkl") else data
    )


def doubled(times: int) -> bytes:
    """A tuple of a tuple twice, and so on: a few bytes for each level, and twice the leaves."""
    return b"\x80\x02}K\0" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(times))


def repeated(value: bytes, times: int, then: bytes) -> bytes:
    return b"\x80\x02" + value + b"q\x01(" + b"h\x01" * times + then


def colliding(count: int) -> bytes:
    """Whole numbers that all have the hash 0, as a list."""
    numbers = (n * ((1 << 61) - 1) for n in range(1 << 8, (1 << 8) + count))
    return b"](" + b"".join(b"\x8a\x0a" + n.to_bytes(10, "little") for n in numbers) + b"e"


REPEATS, KEYS = "repeats values far more often", "other keys than texts and numbers"
HOSTILE = {
    "a key of 2**40 leaves": (pickled(doubled(40) + b"K\1s."), REPEATS),
    "the same, legacy": (lambda: doubled(40) + b"K\1s.", REPEATS),
    "a key of four leaves": (pickled(doubled(2) + b"K\1s."), KEYS),
    "a set of such": (pickled(b"\x80\x02cbuiltins\nset\n" + doubled(40)[2:] + b"\x85\x85R."), REPEATS),
    "a large dictionary again and again": (
        pickled(
            repeated(b"}(" + b"".join(b"M%cxK\1" % (n % 251) for n in range(1000)) + b"u", 10_000, b"t.")
        ),
        REPEATS,
    ),
    "a list that grows": (pickled(b"\x80\x02]q\x01(h\x01h\x01K\1ae."), "refers to itself"),
    "numbers of one hash": (
        pickled(b"\x80\x02cbuiltins\nset\n" + colliding(10) + b"\x85R."),
        KEYS,
    ),
    "compressed": (compressed, "compressed or encrypted"),
    "a gigabyte of zeros": (pickled(b"\x80\x02cbuiltins\nbytearray\nJ\0\0\0\x40\x85R."), "asks for memory"),
    "the same by its old name": (
        pickled(b"\x80\x02c__builtin__\nbytearray\nJ\0\0\0\x40\x85R."),
        "asks for memory",
    ),
    "all structure": (pickled(b"\x80\x02" + b"}" * 3_000_000 + b"."), "far more structure"),
    "a comment": (lambda: saved({})[:-2] + b"\x05\0hello", "something behind its end"),
    "cut short": (lambda: saved({"w": torch.zeros(100)})[:-40], "cut short"),
    "two of a name": (lambda: twice(saved({"w": torch.zeros(1)})), "same name"),
    "a legacy file": (
        lambda: saved(bytearray(10), _use_new_zipfile_serialization=False).replace(
            b"__builtin__", b"builtins"
        ),
        "asks for memory",
    ),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def twice(data: bytes) -> bytes:
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(archive.namelist()[0], b"")
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", HOSTILE)
def test_such_files_are_refused(name: str, tmp_path: Path) -> None:
    make, message = HOSTILE[name]
    data = make()
    with pytest.raises(ValueError, match=message):
        check_archive(io.BytesIO(data))
    (tmp_path / "weights.pt").write_bytes(data)
    with pytest.raises(HwbmpqError, match=message):
        load_weights(torch.nn.Linear(1, 1), tmp_path / "weights.pt")


@pytest.mark.parametrize("name", ["compressed", "a gigabyte of zeros", "all structure"])
def test_so_are_such_checkpoints_whatever_their_checksum(name: str, tmp_path: Path) -> None:
    make, message = HOSTILE[name]
    (tmp_path / "checkpoint.pt").write_bytes(with_archive_checksum(make()))
    with pytest.raises(CheckpointError, match=message):
        RunDirectory(tmp_path).load_checkpoint()


@pytest.mark.parametrize("legacy", [False, True])
def test_what_torch_saves_is_fine(legacy: bool) -> None:
    content = {"a": {"weight": torch.zeros(3, 4)}, "steps": [1, 2.5, None, "text"]}
    check_archive(io.BytesIO(saved(content, _use_new_zipfile_serialization=not legacy)))


def test_our_checkpoints_are_fine(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(packed({"model": {"w": torch.zeros(3)}}))
    assert torch.equal(RunDirectory(tmp_path).load_checkpoint()[0]["model"]["w"], torch.zeros(3))


def test_what_is_no_archive() -> None:
    check_archive(io.BytesIO(pickle.dumps([1, 2, 3])))  # torch's reader refuses it
    with pytest.raises(ValueError, match="cut short"):
        check_archive(io.BytesIO(b"PK"))


def test_what_honest_files_repeat_is_fine() -> None:
    shared, tied = (0.9, 0.999), torch.zeros(2)
    names = OrderedDict((f"layer{n}", tied) for n in range(3000))
    content = {
        "model": names,
        "groups": [{"betas": shared} for _ in range(3000)],
        "milestones": Counter({10: 1, 20: 1}),
        "random": random.Random(1).getstate(),
        "large": 2**127,
        "classes": tuple(map(str, range(20_000))),
    }
    for legacy in (False, True):
        data = io.BytesIO(saved(content, _use_new_zipfile_serialization=not legacy))
        check_archive(data)
        assert torch.load(data, weights_only=True).keys() == content.keys()


def test_a_long_list_of_ordered_pairs_as_python_2_saved_it_is_fine() -> None:
    pairs = b"".join(b"](X\x02\0\0\0%02dK\1e" % n for n in range(50))
    check_archive(io.BytesIO(pickled(b"\x80\x02ccollections\nOrderedDict\n](" + pairs + b"e\x85R.")()))


def test_messages_are_short(tmp_path: Path) -> None:
    torch.save({"x\x1b" * 100_000: 5}, tmp_path / "weights.pt")
    with pytest.raises(HwbmpqError, match="holds no plain state_dict") as caught:
        load_weights(torch.nn.Linear(1, 1), tmp_path / "weights.pt")
    assert len(str(caught.value)) < 1000
    torch.save({f"{n}" + "x" * 100_000: torch.zeros(1) for n in range(20)}, tmp_path / "weights.pt")
    with pytest.raises(HwbmpqError, match="does not fit") as caught:
        load_weights(torch.nn.Linear(1, 1), tmp_path / "weights.pt")
    assert len(str(caught.value)) < 5000
