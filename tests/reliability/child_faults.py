"""What goes wrong inside a run: armed in a forked child, before its command begins."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

_MS_RDONLY, _MS_REMOUNT = 1, 32
_WRITES = os.O_WRONLY | os.O_RDWR


def arm(*, kind: str, **arguments: Any) -> None:
    _KINDS[kind](**arguments)


# at the n-th thing that the run does to its files


def _at_event(folder: str, event: int, then: Callable[[int | None], bool]) -> None:
    """Call ``then`` just before the n-th opening for writing, flush, rename, removal or folder below ``folder``.

    If it says that it could not, it is called again before the next.
    """
    inside, count, is_done, flush = os.path.realpath(folder), 0, False, os.fsync

    def happened(file: int | None = None) -> None:
        nonlocal count, is_done
        count += 1
        if count >= event and not is_done:
            is_done = then(file)

    def is_inside(path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.realpath(path).startswith(inside)

    def watch(name: str, arguments: tuple[Any, ...]) -> None:
        is_write = name == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
        if (is_write or name in ("os.rename", "os.remove", "os.mkdir")) and is_inside(arguments[0]):
            happened()

    def watched_flush(file: int) -> None:
        if is_inside(os.readlink(f"/proc/self/fd/{file}")):
            happened(file)
        flush(file)

    os.fsync = watched_flush
    sys.addaudithook(watch)


def _kill_at_event(folder: str, event: int, is_power_cut: bool = False) -> None:
    def then(file: int | None) -> bool:
        if file is not None and is_power_cut and os.fstat(file).st_size:
            os.ftruncate(file, os.fstat(file).st_size // 2)  # what was not flushed yet is lost
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    _at_event(folder, event, then)


def _read_only_at_event(folder: str, event: int) -> None:
    """The mount at ``folder`` becomes read-only, as a kernel makes it after an error of the disk."""

    def then(file: int | None) -> bool:
        flags = _MS_REMOUNT | _MS_RDONLY
        # Refused while a file is open for writing.
        return ctypes.CDLL(None).mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, None) == 0

    _at_event(folder, event, then)


# solvers


def _solver(way: str, decision: int = 1, solver: str = "highs", seconds: float = 1.0) -> None:
    """From the n-th question on, a solver raises, hangs, crashes or talks nonsense."""
    import numpy as np

    from hwbmpq.allocate.solvers import Answer, SolverError, solvers_for

    import_module(
        "hwbmpq.allocate.solve"
    ).DEFAULT_SECONDS = seconds  # the package has a function of that name
    found, asked = next(solvers_for(solver)), 0
    real = type(found).open

    class Faulty:
        def __init__(self, model: Any) -> None:
            self.session, self.size = real(found, model), len(model.pick)

        def solve(self, seconds: float, gap: float) -> Answer:
            nonlocal asked
            asked += 1
            if asked < decision:
                return self.session.solve(seconds, gap)
            if way == "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            if way == "late":
                time.sleep(seconds)
            if way in ("raise", "late"):
                raise SolverError(f"{solver} was made to fail")
            return Answer(
                chosen=np.full(self.size, {"nan": np.nan, "huge": 1e300, "zero": 0.0}[way]), bound=None
            )

    type(found).open = lambda self, model: Faulty(model)


# batches


def _batches(value: float, epoch: int, step: int) -> None:
    """One batch holds a pixel that is no number."""
    from hwbmpq.data.batches import TrainingBatches

    real = TrainingBatches.epoch

    def poisoned(self: Any, number: int, start: int = 0) -> Any:
        for position, (images, labels) in enumerate(real(self, number, start=start), start=start):
            if (number, position) == (epoch, step):
                images = images.clone()
                images[0, 0, 0, 0] = value
            yield images, labels

    TrainingBatches.epoch = poisoned


def _slow(seconds: float) -> None:
    """So that a kill finds a run at work."""
    from hwbmpq.training.trainer import Trainer

    real = Trainer._after_step

    def after_step(self: Any) -> None:
        time.sleep(seconds)
        real(self)

    Trainer._after_step = after_step


_KINDS: dict[str, Callable[..., None]] = {
    "kill_at_event": _kill_at_event,
    "read_only_at_event": _read_only_at_event,
    "solver": _solver,
    "batches": _batches,
    "slow": _slow,
}
