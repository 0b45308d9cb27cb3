"""Runs of the command line in forked children, and what is true of them however they end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from hwbmpq.training.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
NETWORK = """
import torch
from torch import nn


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 5, 3, padding=1), nn.ReLU(),
        nn.Conv2d(5, 6, 3, stride=2, padding=1, bias=False), nn.ReLU(),
        nn.Conv2d(6, 7, 3, padding=1), nn.ReLU(), nn.Conv2d(7, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, 10),
    )
"""
EPOCHS, STEPS = 4, 6
_COMPRESS = (
    "compress --target generic --bits 2,4 --budget memory=75% --data fake --input 3x8x8 "
    f"--train-images {8 * STEPS + 5} --validation 5 --test-images 16 --batch-size 8 --epochs {EPOCHS} --warmup-epochs 1 --interval-epochs 1 "
    "--augment flip-crop --checkpoint-minutes 1e-9"
).split()
LONGEST = 120.0
"""Seconds for a command that takes two, on a busy machine; a command that hangs takes longer."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    """A negative one is the signal that ended it."""
    out: str
    err: str
    left: tuple[str, ...]
    """Processes that it left running."""
    seconds: float

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL


class ForkServer:
    """Starts commands in children of a process that has everything imported."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def compress(self, run: str, *more: str) -> list[str]:
        """A short run with a checkpoint after every step, as a long one has after every few minutes."""
        network = self._folder / "net.py"  # always the same: results name it
        network.write_text(NETWORK)
        return [*_COMPRESS, "--model", f"file:{network}:make_net", "--run-dir", run, *more]

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def start(
        self,
        *commands: list[str],
        folder: Path,
        fault: dict[str, Any] | None = None,
        program: list[str] | None = None,
        **environment: str,
    ) -> "Started":
        """Begin commands of hwbmpq, one after the other, or a program."""
        self._count += 1
        output = self._folder / str(self._count)
        request: dict[str, Any] = {
            "output": str(output),
            "folder": str(folder),
            "environment": environment,
            "fault": fault,
            "commands": commands,
        }
        if program is not None:
            request["program"] = program
        return Started(server=self, pid=self._ask(**request)["pid"], output=output, begun=time.monotonic())

    def run(self, *commands: list[str], folder: Path, **more: Any) -> Ended:
        return self.start(*commands, folder=folder, **more).end()

    def wait(self, pid: int, seconds: float) -> dict[str, Any]:
        return self._ask(wait=pid, seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Started:
    """A command at work."""

    server: ForkServer
    pid: int
    output: Path
    begun: float

    def end(self, seconds: float = LONGEST) -> Ended:
        """Wait for it; an error if that takes too long."""
        answer = self.server.wait(self.pid, seconds)
        if answer["status"] is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.server.wait(self.pid, 60.0)
            raise AssertionError(f"still at work after {seconds} s: {self._text('err')[-2000:]}")
        return Ended(
            code=answer["status"],
            out=self._text("out"),
            err=self._text("err"),
            left=tuple(answer["left"]),
            seconds=time.monotonic() - self.begun,
        )

    def kill_after(self, seconds: float) -> Ended:
        time.sleep(max(0.0, self.begun + seconds - time.monotonic()))
        os.kill(self.pid, signal.SIGKILL)  # not yet waited for, so the number is still its own
        return self.end()

    def _text(self, kind: str) -> str:
        path = Path(f"{self.output}.{kind}")
        return path.read_text(errors="replace") if path.exists() else ""


# what must be true of every end


def assert_clear_error(ended: Ended, *told: str) -> None:
    """One message of what, where and what to do; no traceback, code 2, nothing left running."""
    assert ended.code == 2, ended
    assert_no_traces(ended)
    errors = [line for line in ended.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, ended.err
    for text in told:
        assert text in ended.err, ended.err


def assert_no_traces(ended: Ended) -> None:
    assert "Traceback" not in ended.err, ended.err[-4000:]
    assert ended.left == (), ended.left


def assert_finished(ended: Ended) -> None:
    assert ended.code == 0, ended.err[-4000:]
    assert_no_traces(ended)


def assert_whole(run: Path) -> None:
    """Every file that has its name is whole, by readers that are not the product's."""
    for path in run.iterdir():
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            for line in path.read_text().splitlines():
                json.loads(line)
        elif path.suffix == ".yaml":
            assert yaml.safe_load(path.read_text())["epochs"] == EPOCHS
        elif path.suffix == ".pt":
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None, path
        elif path.suffix == ".html":
            assert path.read_text().rstrip().endswith("</html>"), path
        elif path.suffix == ".safetensors":
            assert_safetensors(path.read_bytes(), path)


def assert_safetensors(data: bytes, path: Path) -> None:
    length = int.from_bytes(data[:8], "little")
    entries = [value for name, value in json.loads(data[8 : 8 + length]).items() if name != "__metadata__"]
    assert 8 + length + max(entry["data_offsets"][1] for entry in entries) == len(data), path


def result_of(run: Path) -> dict[str, Any]:
    """All that a finished run has to say, but for clocks."""
    state, problem = RunDirectory(run).load_checkpoint()
    assert problem == ""
    assert state["progress"]["epoch"] == EPOCHS
    best, _ = RunDirectory(run).load_checkpoint(best=True)
    return {
        "state": _without_clocks(state),
        "best": _without_clocks(best),
        "packed": (run / "model.safetensors").read_bytes(),
        "history": _text_without_clocks(run / "history.jsonl"),
        "allocation": _text_without_clocks(run / "allocation.json"),
    }


def _without_clocks(value: Any) -> Any:
    """Tensors as bytes, so that == compares bit for bit."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: _without_clocks(inner) for key, inner in value.items() if key != "seconds"}
    if isinstance(value, list | tuple):
        return [_without_clocks(inner) for inner in value]
    return value


def _text_without_clocks(path: Path) -> str:
    return re.sub(r'"seconds": [^,}\n]*', "", path.read_text())


def assert_same_result(run: Path, expected: dict[str, Any]) -> None:
    found = result_of(run)
    for name, value in expected.items():
        assert found[name] == value, f"{run}: another {name}"
    assert_whole(run)
    assert not list(run.glob("*.unfinished"))
