"""The folder of a run: refused, overwritten, damaged, on a full disk; what is loadable stays so."""

import builtins
import errno
import json
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from hwbmpq.errors import HwbmpqError
from hwbmpq.training.run_directory import CheckpointError, RunDirectory
from hwbmpq.training.settings import resolve_settings

SETTINGS = resolve_settings({"model": "hwbmpq:resnet8", "target": "mpic", "epochs": 3})
LAST, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"


def content(step: int) -> dict[str, Any]:
    return {"step": step, "model": {"weight": torch.arange(5.0) * step}}


def is_content(found: dict[str, Any], step: int) -> bool:
    return (
        found.keys() == {"format", "step", "model"}
        and found["step"] == step
        and torch.equal(found["model"]["weight"], torch.arange(5.0) * step)
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with two checkpoints, of step 1 and step 2."""
    run = RunDirectory(tmp_path / "run").create()
    run.save_settings(SETTINGS, {"hwbmpq": "1.0"})
    run.save_checkpoint(content(1))
    run.save_checkpoint(content(2))
    return run


def files(run: RunDirectory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()}


# the folder


def test_an_existing_run_is_refused_and_nothing_changes(run: RunDirectory) -> None:
    before = files(run)
    with pytest.raises(HwbmpqError, match="holds a run already") as error:
        RunDirectory(run.path).create()
    assert f"--resume {run.path}" in error.value.hint
    assert "--overwrite" in error.value.hint
    assert files(run) == before


def test_overwrite_empties_a_run(run: RunDirectory) -> None:
    run.save_best(content(1))
    run.save_allocation({"a": 1})
    run.save_history([{"epoch": 1}])
    (run.path / "checkpoint.pt.unfinished").write_bytes(b"half")
    RunDirectory(run.path).create(overwrite=True)
    assert list(run.path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["notes.txt", "my config.yaml", "config.yaml.orig", "best.pt.backup", "history.jsonl.gz"]
)
def test_overwrite_leaves_the_users_own_files(name: str, run: RunDirectory) -> None:
    (run.path / name).write_text("mine")
    RunDirectory(run.path).create(overwrite=True)
    assert files(run) == {name: b"mine"}


def test_overwrite_leaves_the_users_own_folders(run: RunDirectory) -> None:
    (run.path / "plots").mkdir()
    (run.path / "plots" / "loss.png").write_text("mine")
    RunDirectory(run.path).create(overwrite=True)
    assert [path.name for path in run.path.iterdir()] == ["plots"]
    assert (run.path / "plots" / "loss.png").read_text() == "mine"


def test_a_folder_that_is_no_run_is_never_emptied(tmp_path: Path) -> None:
    (tmp_path / "best.pt").write_text("mine")
    with pytest.raises(HwbmpqError, match=r"is not a run of hwbmpq, it holds .*: nothing is overwritten"):
        RunDirectory(tmp_path).create(overwrite=True)
    assert (tmp_path / "best.pt").read_text() == "mine"


def test_a_folder_with_other_files_is_refused_without_offering_to_resume(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(HwbmpqError, match="holds files already") as error:
        RunDirectory(tmp_path).create()
    assert "--resume" not in error.value.hint


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    assert list(RunDirectory(tmp_path).create().path.iterdir()) == []


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    assert RunDirectory(tmp_path / "a" / "b").create().path.is_dir()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(HwbmpqError, match="is a file"):
        RunDirectory(tmp_path / "run").create(overwrite=True)


def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(HwbmpqError, match="cannot be written to: ") as error:
        RunDirectory(tmp_path / "file" / "run").create()
    assert "--run" in error.value.hint


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_an_unwritable_folder_is_found_at_once(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated: tests may run as root, whom permissions do not stop."""

    def refuse(path: Path, *args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(HwbmpqError, match=f"cannot be written to: {os.strerror(number)}"):
        RunDirectory(tmp_path / "run").create()


def test_opening_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match=r"is not a run of hwbmpq: it has no config.yaml"):
        RunDirectory(tmp_path).open()
    with pytest.raises(HwbmpqError, match="does not exist"):
        RunDirectory(tmp_path / "nothing").open()


def test_settings_come_back(run: RunDirectory) -> None:
    assert run.open().load_settings() == SETTINGS
    assert (run.path / "config.yaml").read_text().startswith("# hwbmpq: 1.0\n")


def test_the_allocation_comes_back(run: RunDirectory) -> None:
    run.save_allocation({"layers": [1, 2.5, None]})
    assert run.load_allocation() == {"layers": [1, 2.5, None]}


@pytest.mark.parametrize("text", ["", "{", "\xff"])
def test_a_damaged_allocation_is_named(text: str, run: RunDirectory) -> None:
    (run.path / "allocation.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(HwbmpqError, match=r"allocation.json: cannot be read"):
        run.load_allocation()


def test_history_is_one_line_an_epoch(run: RunDirectory) -> None:
    run.save_history([{"epoch": 1, "loss": 0.1 + 0.2}, {"epoch": 2}])
    lines = (run.path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"epoch": 1, "loss": 0.1 + 0.2}, {"epoch": 2}]


# checkpoints


def test_the_last_checkpoint_is_loaded_and_the_one_before_is_kept(run: RunDirectory) -> None:
    found, problem = run.load_checkpoint()
    assert is_content(found, 2)
    assert problem == ""
    (run.path / LAST).unlink()
    assert is_content(run.load_checkpoint()[0], 1)


def test_the_best_state_is_apart(run: RunDirectory) -> None:
    run.save_best(content(7))
    assert is_content(run.load_checkpoint(best=True)[0], 7)
    assert is_content(run.load_checkpoint()[0], 2)


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        RunDirectory(tmp_path).load_checkpoint()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_checkpoint_gives_way_to_the_one_before(share: float, run: RunDirectory) -> None:
    data = (run.path / LAST).read_bytes()
    (run.path / LAST).write_bytes(data[: int(share * len(data))])
    found, problem = run.load_checkpoint()
    assert is_content(found, 1)
    assert LAST in problem


def flip(path: Path, data: bytes, bit: int) -> None:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)


def loads_a_good_state(run: RunDirectory) -> bool:
    """The last, if the damage does not matter (padding), or the one before, with a word on why."""
    found, problem = run.load_checkpoint()
    return is_content(found, 1) if problem else is_content(found, 2)


@pytest.mark.parametrize("seed", range(30))
def test_a_flipped_bit_never_loads_wrong_weights(seed: int, run: RunDirectory) -> None:
    data = (run.path / LAST).read_bytes()
    flip(run.path / LAST, data, random.Random(seed).randrange(8 * len(data)))
    assert loads_a_good_state(run)


@pytest.mark.slow
def test_no_bit_of_a_checkpoint_loads_wrong_weights(run: RunDirectory) -> None:
    data = (run.path / LAST).read_bytes()
    for bit in range(8 * len(data)):
        flip(run.path / LAST, data, bit)
        assert loads_a_good_state(run), f"bit {bit}"


@pytest.mark.parametrize(
    ("field", "bit"),
    [
        pytest.param(10, 3, id="a record that claims to be compressed"),
        pytest.param(8, 0, id="a record that claims to be encrypted"),
        pytest.param(38, 4, id="a record that claims to be a folder"),
    ],
)
def test_a_flipped_bit_in_the_archives_directory(field: int, bit: int, run: RunDirectory) -> None:
    data = (run.path / LAST).read_bytes()
    # The name of the weight's record in the central directory; the directory's fixed part is 46 bytes.
    entry = data.index(b"/data/0", data.index(b"PK\x01\x02"))
    entry = data.rindex(b"PK\x01\x02", 0, entry)
    flip(run.path / LAST, data, 8 * (entry + field) + bit)
    found, problem = run.load_checkpoint()
    assert is_content(found, 1)
    assert LAST in problem


def test_two_damaged_checkpoints_are_an_error_that_names_both(run: RunDirectory) -> None:
    for name in (LAST, PREVIOUS):
        (run.path / name).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=rf"{LAST} is .*{PREVIOUS} is ") as error:
        run.load_checkpoint()
    assert "start the run over" in error.value.hint


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_foreign_torch_file_is_a_clear_error(legacy: bool, tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / LAST, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match=f"{LAST} is .*not a checkpoint of hwbmpq"):
        RunDirectory(tmp_path).load_checkpoint()


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import builtins; builtins.hwbmpq_was_here = True",)


def test_no_code_from_a_checkpoint_is_run(run: RunDirectory) -> None:
    run.save_checkpoint({"model": Malicious()})
    found, problem = run.load_checkpoint()
    assert is_content(found, 2)
    assert LAST in problem
    assert not hasattr(builtins, "hwbmpq_was_here")


def test_an_unfinished_file_is_no_checkpoint(run: RunDirectory) -> None:
    """As a kill between writing and renaming leaves it, the file being whole already."""
    (run.path / LAST).rename(run.path / f"{LAST}.unfinished")
    assert is_content(run.load_checkpoint()[0], 1)
    (run.path / PREVIOUS).unlink()
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        run.load_checkpoint()


def test_an_unfinished_file_is_written_over(run: RunDirectory) -> None:
    (run.path / f"{LAST}.unfinished").write_bytes(b"x" * 100_000)
    run.save_checkpoint(content(3))
    assert is_content(run.load_checkpoint()[0], 3)
    assert not (run.path / f"{LAST}.unfinished").exists()


class KilledError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("moment", range(4))
def test_a_kill_between_any_two_renames_leaves_a_whole_checkpoint(
    moment: int, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each of the two renames that a checkpoint takes."""
    seen = []
    replace = Path.replace

    def dying(path: Path, target: Path) -> Path:
        if len(seen) == moment:
            raise KilledError
        seen.append(target.name)
        result = replace(path, target)
        if len(seen) == moment:
            raise KilledError
        seen.append(target.name)
        return result

    monkeypatch.setattr(Path, "replace", dying)
    with pytest.raises(KilledError):
        run.save_checkpoint(content(3))
    found, problem = run.load_checkpoint()
    assert is_content(found, 3 if moment == 3 else 2)
    assert problem == (
        "" if (run.path / "checkpoint.pt").exists() else f"{run.path / 'checkpoint.pt'} is missing"
    )


def test_a_checkpoint_is_on_the_disk_before_it_gets_its_name(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (events.append("sync"), fsync(number))[1])
    monkeypatch.setattr(
        Path, "replace", lambda path, target: (events.append(target.name), replace(path, target))[1]
    )
    run.save_checkpoint(content(3))
    assert events == ["sync", PREVIOUS, LAST, "sync"]


# a full disk


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def no_space(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        yield


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file grows beyond ``size``: a write fails half-way, really."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("what", ["checkpoint", "best", "history", "allocation", "settings"])
def test_a_full_disk_leaves_the_run_as_it_was(
    what: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save_best(content(1))
    run.save_history([{"epoch": 1}])
    run.save_allocation({"a": 1})
    before = files(run)
    save = {
        "checkpoint": lambda: run.save_checkpoint(content(3)),
        "best": lambda: run.save_best(content(3)),
        "history": lambda: run.save_history([{"epoch": 1}, {"epoch": 2}]),
        "allocation": lambda: run.save_allocation({"a": 2}),
        "settings": lambda: run.save_settings(SETTINGS, {"again": "yes"}),
    }[what]
    with (
        full_disk(monkeypatch),
        pytest.raises(HwbmpqError, match=r"No space left on device.*untouched") as error,
    ):
        save()
    assert f"--resume {run.path}" in error.value.hint
    assert files(run) == before
    save()
    assert run.load_checkpoint()[1] == ""


def test_a_write_that_fails_half_way_leaves_the_run_as_it_was(run: RunDirectory) -> None:
    before = files(run)
    with largest_file(1000), pytest.raises(HwbmpqError, match="cannot be written: File too large"):
        run.save_checkpoint({"model": torch.zeros(10_000)})
    assert files(run) == before
    assert is_content(run.load_checkpoint()[0], 2)


def test_a_damaged_state_never_takes_the_place_of_a_good_one(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run").create().save_checkpoint({"number": 1})
    RunDirectory(tmp_path / "run").save_checkpoint({"number": 2})
    last = tmp_path / "run" / "checkpoint.pt"
    last.write_bytes(last.read_bytes()[:-100])
    RunDirectory(tmp_path / "run").save_checkpoint({"number": 3})
    last.unlink()
    assert RunDirectory(tmp_path / "run").load_checkpoint()[0]["number"] == 1


def test_a_decision_is_stored_once_though_two_parts_hold_it(tmp_path: Path) -> None:
    def state(shown: dict[str, Any] | None) -> dict[str, Any]:
        history = [{"epoch": 1, "scores": {f"layer {n}": n / 7 for n in range(999)}}]
        return {"allocator": {"history": history}, "progress": {"records": [{"epoch": 1, "decision": shown}]}}

    sizes = []
    for shown in (None, state(None)["allocator"]["history"][0]):
        run = RunDirectory(tmp_path / str(shown is None)).create()
        run.save_checkpoint(state(shown))
        sizes.append((run.path / LAST).stat().st_size)
        assert run.load_checkpoint()[0] == {"format": "hwbmpq-checkpoint/1", **state(shown)}
    assert sizes[1] < sizes[0] + 200
