"""What may happen to a run, each once, with what must be true afterwards; tests take one, the soak two hundred."""

import os
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disks import SmallDisk
from glpsol import WAYS as GLPSOL_WAYS
from glpsol import false_glpsol
from runs import (
    EPOCHS,
    STEPS,
    Ended,
    ForkServer,
    assert_clear_error,
    assert_finished,
    assert_no_traces,
    assert_same_result,
    assert_whole,
    result_of,
)

EVENTS = 280
"""About so many times a run opens, flushes, renames or removes a file of its own."""
SECONDS = 1.5
"""About so long a run takes."""
ROOMY = 10_000
"""KiB; a run takes less than 300."""


@dataclass
class Trial:
    """A folder for a run that something happens to, and what is seen there."""

    server: ForkServer
    folder: Path
    expected: dict[str, Any]
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)

    def begin(self, *more: str, run: str = "run", **fault: Any) -> Ended:
        self.counts["commands"] += 1
        environment = fault.pop("environment", {})
        words = self.server.compress(run, "-q", *more)
        return self.server.run(words, folder=self.folder, fault=fault or None, **environment)

    def resume(self, run: str = "run", **fault: Any) -> Ended:
        """Go on; a run that has no settings yet is begun again."""
        if not (self.folder / run / "config.yaml").exists():
            return self.begin(run=run, **fault)
        self.counts["commands"] += 1
        self.counts["resumes"] += 1
        words = ["compress", "--resume", run, "--trust", "-q"]
        return self.server.run(words, folder=self.folder, fault=fault or None)

    def finish(self, run: str = "run") -> None:
        """Nothing half-written counts now, and once resumed the run ends as if nothing had happened."""
        self.look_at(run)
        assert_finished(self.resume(run))
        assert_same_result(self.folder / run, self.expected)
        self.counts["equal to the uninterrupted run"] += 1

    def look_at(self, run: str = "run") -> None:
        """Commands that read a run take what is whole, or say in a sentence why not."""
        folder = self.folder / run
        if not folder.is_dir():
            return
        assert_whole(folder)
        packed, half = folder / "model.safetensors", self.folder / "half.safetensors"
        if packed.exists():
            half.write_bytes(packed.read_bytes()[: self.chance.randrange(packed.stat().st_size)])
        commands = [
            ["evaluate", run, "--trust"],
            ["report", run],
            ["evaluate", run, "--runtime", "packed", "--trust"],
        ]
        ended = self.server.run(*commands, folder=self.folder)
        assert_no_traces(ended)
        codes = [line.split()[-1] for line in ended.out.splitlines() if line.startswith("exit code ")]
        assert len(codes) == len(commands)
        assert set(codes) <= {"0", "2"}, ended
        self.counts["looks at interrupted runs"] += len(codes)
        if half.exists():
            words = ["evaluate", run, "--runtime", "packed", "--file", str(half), "--trust"]
            assert_clear_error(self.server.run(words, folder=self.folder), "half.safetensors")
            self.counts["half files refused"] += 1


# kills


def killed(trial: Trial) -> None:
    """Killed again and again: at any time, or at a file, as a power failure would leave it."""
    hits, attempts = 0, trial.chance.randrange(1, 5)
    while not hits or attempts > 0:
        attempts -= 1
        ended = _killed_once(trial)
        hits += ended.was_killed
        if not ended.was_killed:
            assert_finished(ended)
            break
    trial.counts["kills that hit"] += hits
    trial.finish()


def _killed_once(trial: Trial) -> Ended:
    fault = {
        "kind": "kill_at_event",
        "folder": str(trial.folder / "run"),
        "event": trial.chance.randrange(1, EVENTS // 2),
        "is_power_cut": trial.chance.random() < 0.5,
    }
    if trial.chance.random() < 0.5:
        return trial.resume(**fault)
    trial.counts["commands"] += 1
    is_begun = (trial.folder / "run" / "config.yaml").exists()
    words = (
        ["compress", "--resume", "run", "--trust", "-q"] if is_begun else trial.server.compress("run", "-q")
    )
    return trial.server.start(words, folder=trial.folder).kill_after(trial.chance.uniform(0.0, SECONDS))


# disks


def full_disk(trial: Trial) -> None:
    """Too small for the run; then there is room."""
    with SmallDisk(trial.folder / "disk", trial.chance.choice([4, 8, *range(12, 230, 4)])) as disk:
        if trial.chance.random() < 0.1:
            (disk.path / "filler").write_bytes(bytes(_room_on(disk.path)))
        ended = trial.begin(run="disk/run")
        if ended.code == 0:
            assert_finished(ended)
        else:
            assert_clear_error(ended, "No space left on device", "try: make room on the disk")
            trial.counts["writes refused"] += 1
        disk.resize(ROOMY)
        trial.finish("disk/run")


def _room_on(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def read_only(trial: Trial) -> None:
    """The disk becomes read-only: before the run begins, or under it."""
    with SmallDisk(trial.folder / "disk", ROOMY) as disk:
        fault: dict[str, Any] = {"kind": "read_only_at_event", "folder": str(disk.path)}
        if trial.chance.random() < 0.2:
            disk.make_read_only()
            fault = {}
        else:
            fault["event"] = trial.chance.randrange(1, EVENTS)
        ended = trial.begin(run="disk/run", **fault)
        if ended.code == 0:
            assert_finished(ended)  # all was written before
        else:
            assert_clear_error(ended, "Read-only file system", "try: ")
            trial.counts["writes refused"] += 1
        disk.make_writable()
        trial.finish("disk/run")


# damage


def damaged(trial: Trial) -> None:
    """A killed run, whose newest checkpoint, the one before, or both are damaged."""
    event = trial.chance.randrange(30, EVENTS - 60)  # two checkpoints are there by then
    ended = trial.begin(kind="kill_at_event", folder=str(trial.folder / "run"), event=event)
    trial.counts["kills that hit"] += ended.was_killed
    run = trial.folder / "run"
    names = [name for name in ("checkpoint.pt", "checkpoint.previous.pt") if (run / name).exists()]
    victims = trial.chance.choice([names[:1], names[1:] or names, names])
    for name in victims:
        damage(run / name, trial.chance)
    trial.counts["files damaged"] += len(victims)
    ended = trial.resume()
    if victims == names:
        assert_clear_error(ended, "checkpoint.pt", "start the run over")
        trial.counts["runs beyond help, refused"] += 1
        assert_finished(trial.begin("--overwrite"))
    else:
        assert_finished(ended)
    assert_same_result(run, trial.expected)
    trial.counts["equal to the uninterrupted run"] += 1
    _damaged_result(trial, run)


def _damaged_result(trial: Trial, run: Path) -> None:
    """The files of the finished run, too, are refused once they are damaged."""
    for name, command in {
        "model.safetensors": ["evaluate", "run", "--runtime", "packed", "--trust"],
        "best.pt": ["evaluate", "run", "--best", "--trust"],
    }.items():
        damage(run / name, trial.chance)
        assert_clear_error(trial.server.run(command, folder=trial.folder), name)
        trial.counts["files damaged"] += 1


def damage(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    way = chance.choice(["cut", "flip", "overwrite"])
    place = chance.randrange(len(data))
    if way == "cut":
        del data[place:]
    elif way == "flip":
        data[place] ^= 1 << chance.randrange(8)
    else:
        stretch = bytearray(chance.randbytes(chance.randrange(1, 400)))
        stretch[0] = data[place] ^ 0xFF
        data[place : place + len(stretch)] = stretch
    path.write_bytes(bytes(data))


# solvers


def failing_solver(trial: Trial) -> None:
    """It crashes, is late, or talks nonsense: another one is asked, or the run ends in a sentence, or resumes."""
    if trial.chance.random() < 0.5:
        return _failing_glpsol(trial)
    way = trial.chance.choice(["raise", "segfault", "nan"])
    is_alone = trial.chance.random() < 0.5
    ended = trial.begin(
        *(["--solver", "highs"] if is_alone else []),
        kind="solver",
        way=way,
        decision=trial.chance.randrange(1, 4),
    )
    if way == "segfault":
        assert ended.code == -signal.SIGSEGV
    elif is_alone:
        assert_clear_error(ended, "highs", "try: another solver may do: --solver auto")
    else:
        assert_finished(ended)
        assert "trying glpk" in ended.err
        assert result_of(trial.folder / "run")["state"]["model"] == trial.expected["state"]["model"]
        trial.counts["another solver helped"] += 1
        return None
    trial.counts["solver failures that ended a run"] += 1
    assert_finished(trial.resume())
    assert result_of(trial.folder / "run")["state"]["model"] == trial.expected["state"]["model"]
    trial.counts["equal to the uninterrupted run"] += 1
    return None


def _failing_glpsol(trial: Trial) -> None:
    way = trial.chance.choice(list(GLPSOL_WAYS))
    path = false_glpsol(trial.folder, way)
    # Not made to fail, but hurried: a program that hangs is waited for as long as solvers are.
    hurried = {"kind": "solver", "way": "zero", "decision": 10**6, "solver": "glpk", "seconds": 1.0}
    ended = trial.begin("--solver", "glpk", environment={"PATH": path}, **hurried)
    assert_finished(ended)
    assert "glpsol failed" in ended.err
    assert result_of(trial.folder / "run")["state"]["model"] == trial.expected["state"]["model"]
    trial.counts["another solver helped"] += 1


# batches


def bad_batch(trial: Trial) -> None:
    """A pixel that is no number: the run ends, names the step, and keeps what it had."""
    epoch, step = trial.chance.randrange(EPOCHS), trial.chance.randrange(STEPS)
    value = trial.chance.choice([float("nan"), float("inf"), float("-inf")])
    ended = trial.begin(kind="batches", value=value, epoch=epoch, step=step)
    kept = f"; the state after epoch {epoch} is kept" if epoch else ""
    told = f"epoch {epoch + 1}, step {step + 1}: the input of layer '0' holds infinite or NaN values{kept}"
    assert_clear_error(ended, told, "check the data")
    trial.counts["batches refused"] += 1
    trial.finish()


KINDS = {
    "kills": killed,
    "full disk": full_disk,
    "read-only disk": read_only,
    "damaged checkpoints": damaged,
    "failing solver": failing_solver,
    "NaN batch": bad_batch,
}
