"""Files and folders that a stranger may send, and what is true of every command that opens one."""

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST_S = 5.0
MOST_MIB = 512
MOST_OUTPUT = 200_000
"""Bytes that a command may print."""
_HANGS_AFTER_S = 60.0
_ADDRESS_SPACE = 16 << 30
_DRAWS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of one case."""

    root: Path
    run: Path
    """A finished run of ours, to copy and change."""

    @property
    def sent(self) -> Path:
        """What the stranger sent."""
        return self.root / "sent"

    @property
    def here(self) -> Path:
        """Where the command runs."""
        return self.root / "here"

    @property
    def outside(self) -> Path:
        """Where nothing may change."""
        return self.root / "outside"

    @property
    def marker(self) -> Path:
        """Made by the stranger's code, if it runs."""
        return self.root / "executed"

    @property
    def evil_code(self) -> str:
        return f"open({str(self.marker)!r}, 'w').write('executed')"


Make = Callable[[Place], list[str]]
"""Writes the files into a place and returns the words after ``hwbmpq``, or after ``python`` if they start with -c."""


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    make: Make
    says: str
    """A part of what the user has to be told; nothing if the file may also be accepted."""


CASES: dict[str, Case] = {}


def case(says: str = "") -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        name = make.__name__
        known = CASES.get(name)  # pytest imports the files again to look for doctests
        assert known is None or known.make.__code__.co_filename == make.__code__.co_filename, name
        CASES[name] = Case(name=name, make=make, says=says)
        return make

    return add


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a command did."""

    code: int | None
    """None if it had to be killed."""
    cpu_s: float
    mib: int
    out: str
    err: str
    executed: bool
    changed_outside: list[str]


def run_case(chosen: Case, place: Place, checkout: Path = ROOT) -> Seen:
    for folder in (place.sent, place.here, place.outside):
        folder.mkdir(parents=True)
    (place.outside / "victim").write_text("untouched")
    words = chosen.make(place)
    before = _snapshot(place.outside)
    program = [sys.executable, *([] if words[0] == "-c" else ["-m", "hwbmpq"]), *words]
    variables = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            program,
            cwd=place.here,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            preexec_fn=_limit,
        )
        code, usage, peak_kib = _wait(process)
        texts = [_read(file) for file in (out, err)]
    return Seen(
        code=code,
        cpu_s=usage.ru_utime + usage.ru_stime,
        mib=peak_kib >> 10,
        out=texts[0],
        err=texts[1],
        executed=place.marker.exists(),
        changed_outside=_changed(before, _snapshot(place.outside)),
    )


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))


def _wait(process: "subprocess.Popen[bytes]") -> tuple[int | None, resource.struct_rusage, int]:
    """The exit code (None if it hung), what it took, and its peak of memory in KiB."""
    deadline, hung, peak = time.monotonic() + _HANGS_AFTER_S, False, 0
    while True:
        peak = max(peak, _peak_kib(process.pid))
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return None if hung else process.returncode, usage, peak
        if time.monotonic() > deadline and not hung:
            hung = True
            process.kill()
        time.sleep(0.02)


def _peak_kib(pid: int) -> int:
    """Of the program itself: ``ru_maxrss`` counts the process that it was forked from, too."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0  # it has just ended


def _read(file: "tempfile._TemporaryFileWrapper[bytes] | object") -> str:
    file.seek(0)  # type: ignore[attr-defined]
    text: str = file.read(MOST_OUTPUT + 1).decode("utf-8", "surrogateescape")  # type: ignore[attr-defined]
    return text


def _snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _changed(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    return sorted(path for path in before | after if before.get(path) != after.get(path))


def problems(chosen: Case, seen: Seen, *, longest_s: float = LONGEST_S) -> list[str]:
    """What is wrong with the way a command dealt with a case; nothing, if all is well."""
    found = {
        "the stranger's code ran": seen.executed,
        f"changed outside: {seen.changed_outside}": bool(seen.changed_outside),
        f"it hung for {_HANGS_AFTER_S:.0f} s": seen.code is None,
        f"{seen.cpu_s:.1f} s": seen.cpu_s > longest_s,
        f"{seen.mib} MiB": seen.mib > MOST_MIB,
        f"exit code {seen.code}": seen.code is not None and seen.code not in (0, 2),
        "a traceback": "Traceback" in seen.err,
        f"more than {MOST_OUTPUT} bytes of output": max(len(seen.out), len(seen.err)) > MOST_OUTPUT,
        "control characters in the output": bool(_DRAWS.search(seen.out + seen.err)),
    }
    if chosen.says:
        found[f"exit code {seen.code} instead of 2"] = seen.code != 2
        found[f"{chosen.says!r} is not said"] = chosen.says not in " ".join(seen.err.split())
    return [problem for problem, is_there in found.items() if is_there]
