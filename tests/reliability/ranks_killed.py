"""Distributed runs whose ranks are killed, under torchrun and without."""

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from faults import Trial
from runs import Ended, ForkServer, Started, assert_no_traces

RANKS = 2
SLOWEST = "seconds of a killed job from its start, at most"
SOON = 40.0
"""Seconds for a job to end by itself: torchrun waits 30 for a rank that does not listen."""


def torchrun(server: ForkServer, folder: Path, *words: str) -> Started:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return server.start(folder=folder, program=[*launcher, "-m", "hwbmpq", *words])


def forked_ranks(
    server: ForkServer, folder: Path, *words: str, fault: dict[str, Any] | None = None
) -> list[Ended]:
    """The same without torchrun: children of the fork server, which are at work at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        server.start(list(words), folder=folder, fault=fault, RANK=str(rank), LOCAL_RANK=str(rank), **shared)
        for rank in range(RANKS)
    ]
    return [one.end() for one in started]


def rank_of(pid: int) -> int | None:
    """Which rank a process of ours is; None if it is none."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"RANK="):
                return int(entry[5:])
    return None


def ranks_below(launcher: int) -> dict[int, int]:
    found = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher and (rank := rank_of(int(folder.name))) is not None:
                found[rank] = int(folder.name)
    return found


def kill_rank(started: Started, run: Path, victim: int, seconds: float) -> Ended:
    """Kill one rank ``seconds`` after the first checkpoint; the job must end by itself."""
    deadline = time.monotonic() + 120
    while not (run / "checkpoint.pt").exists():
        assert time.monotonic() < deadline, "torchrun came to no checkpoint"
        time.sleep(0.01)
    time.sleep(seconds)
    found = ranks_below(started.pid)
    if victim in found:  # else the run was faster
        os.kill(found[victim], signal.SIGKILL)
    return started.end(SOON)


def assert_told(ended: Ended) -> None:
    """The rank that is left says what happened and what to do; torchrun adds which rank it was."""
    assert ended.code == 1, ended
    assert ended.left == ()
    assert "--resume run" in ended.err, ended.err[-3000:]
    assert "another rank was killed" in ended.err or "another rank has failed" in ended.err
    assert "[rank" not in ended.err, ended.err[-3000:]  # torch's mark on a traceback of ours


def killed_rank(trial: Trial) -> None:
    """A rank of two is killed under torchrun; resumed, the run ends as if nothing had happened."""
    started = torchrun(trial.server, trial.folder, *trial.server.compress("run", "-q"))
    victim = trial.chance.randrange(RANKS)
    ended = kill_rank(started, trial.folder / "run", victim, trial.chance.uniform(0.0, 0.8))
    trial.counts["commands"] += 1
    if ended.code != 0:
        assert_told(ended)
        trial.counts["kills that hit"] += 1
        trial.counts[SLOWEST] = round(ended.seconds)
    trial.look_at()
    resumed = torchrun(trial.server, trial.folder, "compress", "--resume", "run", "--trust", "-q").end()
    assert resumed.code == 0, resumed.err[-3000:]
    assert_no_traces(resumed)
    trial.counts["resumes"] += 1
    trial.counts["commands"] += 1
