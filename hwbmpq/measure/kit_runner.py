"""Times small ONNX files in ONNX Runtime on the machine that it runs on, and writes the results as JSON.

Needs only Python, numpy and onnxruntime: hwbmpq uses this file as it is and copies it into kits for other devices.

    python run.py                     # a few minutes; leave the machine alone meanwhile
    python run.py --rounds 40 --threads 4 --output results.json

Every file is one operation. All of them take turns, round after round, so that a disturbance affects them alike; a
reference kernel runs before and after each round, which reveals slow clocks and disturbed rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MANIFEST_SCHEMA = "hwbmpq/kit/v1"
RESULTS_SCHEMA = "hwbmpq/kit-results/v1"
REFERENCE_FILE = "reference.onnx"
REFERENCE_RUNS = 5
WARM_UPS = 2
MOST_TRIES = 4
MOST_OPEN = 96
"""Enough for what is between layers and the first layers to be one group: an interrupted run has some of both."""
MOST_OPEN_BYTES = 256 << 20
FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimd", "asimddp", "i8mm", "sve")
"""What decides which kernels a processor can run; the last four are Arm's (dotprod is asimddp)."""

FEWEST_ROUNDS, MOST_ROUNDS = 3, 10_000
PRINTABLE = r" -~\u00a0-\u1fff\u2010-\u2027\u2030-\ud7ff\uf900-\ufffd"
"""Characters that need no escape in a terminal or in YAML."""
MOST_TEXT = 300
_MINUTE = 60

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Takes how much is done, and how much there is."""


class Reference:
    """A kernel that is always the same."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._session = open_session(folder / REFERENCE_FILE, threads)
        self._feed = inputs_of(self._session)
        for _ in range(REFERENCE_RUNS):
            self._session.run(None, self._feed)

    def microseconds(self) -> float:
        """Median over a few runs."""
        return float(np.median([wall_microseconds(self._session, self._feed) for _ in range(REFERENCE_RUNS)]))


class KernelTimer:
    """One file, with the profiler on: it reports how long each node took, and which kernels really ran."""

    def __init__(self, kernel: dict[str, Any], folder: Path, threads: int, scratch: Path) -> None:
        self.id = str(kernel["id"])
        self._is_wall = bool(kernel["is_wall"])
        self._copies = int(kernel["copies"])
        profile = None if self._is_wall else str(scratch / self.id)
        self._session = open_session(folder / f"{self.id}.onnx", threads, profile)
        self._feed = inputs_of(self._session)
        self._walls: list[float] = []
        self._kept: list[int] = []
        for _ in range(WARM_UPS):
            self._run()

    def _run(self) -> int:
        self._walls.append(wall_microseconds(self._session, self._feed))
        return len(self._walls) - 1

    def visit(self) -> None:
        """One run: a second one would find its weights in the caches. Again only if something else took the core."""
        self._kept.append(undisturbed(self._run))

    def close(self, rounds: int) -> dict[str, dict[str, Any]]:
        """For each kind of node in the last copy: how many there are, and their microseconds in the first rounds."""
        kept = self._kept[:rounds]
        if self._is_wall:
            return {"wall": {"nodes": 1, "us": [self._walls[index] for index in kept]}}
        file = Path(self._session.end_profiling())
        try:
            runs = node_runs(json.loads(file.read_text(encoding="utf-8", errors="replace")))
        finally:
            file.unlink()
        found = {}
        for op in sorted({op for run in runs for op, _ in run}):
            times = [[us for other, us in run if other == op] for run in runs]
            nodes = max(1, len(times[0]) // self._copies)
            found[op] = {"nodes": nodes, "us": [sum(times[index][-nodes:]) for index in kept]}
        return found


def node_runs(events: list[dict[str, Any]]) -> list[list[tuple[str, float]]]:
    """For each run of the model: kind and microseconds of every node."""
    runs: list[list[tuple[str, float]]] = []
    nodes: list[tuple[str, float]] = []
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            nodes.append((str(event["args"]["op_name"]), float(event["dur"])))
        elif name == "model_run":
            runs.append(nodes)
            nodes = []
    return runs


def open_session(path: Path, threads: int, profile: str | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised; the rest is noise here
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs_of(session: Any) -> dict[str, Any]:
    """Random numbers for every input: zeros would let some kernels skip work. A free side, the batch, is 1."""
    random = np.random.default_rng(0)
    shapes = {
        given.name: [side if isinstance(side, int) else 1 for side in given.shape]
        for given in session.get_inputs()
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def undisturbed(run: Callable[[], T]) -> T:
    """Run until nothing else took the core meanwhile, a few times at most; what the least disturbed run returned."""
    found: list[tuple[int, T]] = []
    while len(found) < MOST_TRIES and not any(count == 0 for count, _ in found):
        before = preemptions()
        returned = run()
        found.append((preemptions() - before, returned))
    return min(found, key=lambda each: each[0])[1]


def preemptions() -> int:
    """How often the system has taken the core from this process; 0 where it does not say."""
    return 0 if resource is None else int(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)


def wall_microseconds(session: Any, feed: dict[str, Any]) -> float:
    start = time.perf_counter()
    session.run(None, feed)
    return (time.perf_counter() - start) * 1e6


def measure(
    folder: Path, *, rounds: int, threads: int, on_progress: Progress | None = None
) -> dict[str, Any]:
    """Run every kernel of a folder; Ctrl-C ends it early and keeps what there is."""
    manifest = read_manifest(folder)
    results: dict[str, Any] = {
        "schema": RESULTS_SCHEMA,
        "manifest": manifest,
        "machine": machine_facts(),
        "settings": {"threads": threads, "rounds": rounds},
        "rounds": [],
        "times": {},
        "failed": {},
        "is_complete": False,
    }
    done = 0

    def advance(visits: int) -> None:
        nonlocal done
        done += visits
        if on_progress is not None:
            on_progress(done, len(manifest["kernels"]) * rounds)

    with pinned(threads) as cores, tempfile.TemporaryDirectory() as scratch:
        results["machine"]["pinned_to"] = cores
        reference = Reference(folder, threads)
        try:
            for group in groups(manifest["kernels"]):
                _measure_group(group, folder, Path(scratch), reference, results, advance)
            results["is_complete"] = True
        except KeyboardInterrupt:
            pass  # what was measured is kept; the reader decides what it is worth
    results["sha256"] = digest(results)
    return results


def _measure_group(
    group: list[dict[str, Any]],
    folder: Path,
    scratch: Path,
    reference: Reference,
    results: dict[str, Any],
    advance: Callable[[int], None],
) -> None:
    """Some kernels in turns: as many as may be open at once. If it is interrupted, its complete rounds are kept."""
    settings = results["settings"]
    opened: list[KernelTimer] = []
    marks: list[list[float]] = []
    try:
        for kernel in group:
            try:
                opened.append(KernelTimer(kernel, folder, settings["threads"], scratch))
            except Exception as error:  # this runtime has no such kernel: the others may still run
                results["failed"][str(kernel["id"])] = printable(str(error))
                advance(settings["rounds"])
        for _ in range(settings["rounds"] if opened else 0):
            before = reference.microseconds()
            for timer in opened:
                timer.visit()
                advance(1)
            marks.append([before, reference.microseconds()])
    finally:
        if len(marks) >= FEWEST_ROUNDS:
            number = len(results["rounds"])
            results["rounds"].append(marks)
            for timer in opened:
                results["times"][timer.id] = {"group": number, "ops": timer.close(len(marks))}


def groups(kernels: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Kernels that fit into memory together, in order."""
    group: list[dict[str, Any]] = []
    size = 0
    for kernel in kernels:
        if group and (len(group) >= MOST_OPEN or size + kernel["bytes"] > MOST_OPEN_BYTES):
            yield group
            group, size = [], 0
        group.append(kernel)
        size += kernel["bytes"]
    if group:
        yield group


def read_manifest(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or manifest.get("schema") != MANIFEST_SCHEMA:
        raise ValueError(f"{folder} has no manifest of this kit's version")
    return manifest


def digest(results: dict[str, Any]) -> str:
    """The checksum of results, without the one that they hold."""
    content = {key: value for key, value in results.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def estimated_seconds(folder: Path, *, rounds: int, threads: int) -> float:
    """A guess from the reference kernel's speed."""
    manifest = read_manifest(folder)
    per_mac = Reference(folder, threads).microseconds() * 1e-6 / manifest["reference_macs"]
    runs = rounds + WARM_UPS
    work = sum(kernel["macs"] for kernel in manifest["kernels"]) * per_mac * runs
    # Per run: quantizing, layouts and the profiler's own work; per kernel: opening the session, reading its log.
    return float(work + len(manifest["kernels"]) * (runs * 4e-4 + 0.06))


def format_duration(seconds: float) -> str:
    """``about 40 s``, ``about 3 min``."""
    if seconds < _MINUTE:
        return f"about {max(5, math.ceil(seconds / 5) * 5)} s"
    return f"about {math.ceil(seconds / _MINUTE)} min"


def settings_problem(*, rounds: int, threads: int) -> str:
    """Why nothing can be measured with these settings, or ``""``."""
    if rounds < FEWEST_ROUNDS or threads < 1:
        return f"give at least {FEWEST_ROUNDS} rounds and 1 thread"
    if rounds > MOST_ROUNDS:
        return f"{rounds} rounds: give at most {MOST_ROUNDS}"
    cores = usable_cores()
    if threads > cores:
        return f"{threads} threads: this machine has {cores} core{'' if cores == 1 else 's'} to use"
    return ""


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def printable(text: str) -> str:
    """A text in one line, not too long, with ``?`` for what a terminal or YAML would not take."""
    return re.sub(f"[^{PRINTABLE}]", "?", " ".join(text.split()))[:MOST_TEXT]


@contextmanager
def pinned(threads: int) -> Iterator[list[int]]:
    """Pin this process to as many cores as there are threads, if the system allows it; the highest are often the fastest."""
    if not hasattr(os, "sched_setaffinity"):
        yield []
        return
    before = os.sched_getaffinity(0)
    chosen = sorted(before)[-threads:]
    try:
        os.sched_setaffinity(0, chosen)
    except OSError:
        chosen = []
    try:
        yield chosen
    finally:
        if chosen:
            os.sched_setaffinity(0, before)


def machine_facts() -> dict[str, Any]:
    """What the times depend on."""
    facts = _cpu_facts(_read("/proc/cpuinfo"))
    board = _read("/proc/device-tree/model").strip("\0\n ")
    found: dict[str, Any] = {
        "cpu": facts.get("model name") or board or facts.get("Hardware") or platform.processor() or "unknown",
        "board": board,
        "flags": [flag for flag in FLAGS if flag in facts.get("flags", facts.get("Features", "")).split()],
        "cores": os.cpu_count() or 1,
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip(),
        "runtime": f"ONNX Runtime {onnxruntime.__version__}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    return {name: printable(fact) if isinstance(fact, str) else fact for name, fact in found.items()}


def accumulates_in_int32(machine: str, flags: tuple[str, ...] | list[str]) -> bool:
    """Whether a processor adds products of bytes in 32 bits: Arm's do, and x86 with VNNI."""
    is_arm = machine.lower().startswith(("aarch64", "arm"))
    return is_arm or any(flag in flags for flag in ("avx_vnni", "avx512_vnni", "amx_int8"))


def _cpu_facts(text: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    return facts


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def main() -> int:
    """The command that a kit runs."""
    parser = argparse.ArgumentParser(description="Times this kit's kernels on this machine.")
    parser.add_argument("--rounds", type=int, default=20, help="more are steadier (default: 20)")
    parser.add_argument("--threads", type=int, default=1, help="cores to use (default: 1)")
    parser.add_argument("--output", default="results.json", help="where to write (default: results.json)")
    args = parser.parse_args()
    problem = settings_problem(rounds=args.rounds, threads=args.threads)
    if problem:
        parser.error(problem)
    folder = Path(__file__).resolve().parent
    try:
        seconds = estimated_seconds(folder, rounds=args.rounds, threads=args.threads)
        sys.stderr.write(f"{format_duration(seconds)}; leave the machine alone meanwhile\n")
        show = progress_line(is_terminal=sys.stderr.isatty())
        results = measure(folder, rounds=args.rounds, threads=args.threads, on_progress=show)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted before anything was measured\n")
        return 130
    Path(args.output).write_text(json.dumps(results), encoding="utf-8")
    state = "all kernels"
    if not results["is_complete"]:
        kernels = f"{len(results['times'])} of {len(results['manifest']['kernels'])} kernels"
        rounds = len(results["rounds"][-1]) if results["rounds"] else 0
        state = f"interrupted: only a part, {kernels}, the last in {rounds} of {args.rounds} rounds"
    sys.stderr.write(f"\nwrote {args.output} ({state}; {len(results['failed'])} could not run here)\n")
    return 0 if results["is_complete"] else 130


def progress_line(*, is_terminal: bool) -> Progress:
    """Shows how far it is: one line that changes on a terminal, otherwise a new line every 10 %."""
    steps, pattern = (200, "\r{} ") if is_terminal else (10, "{}\n")
    shown = 0

    def show(done: int, total: int) -> None:
        nonlocal shown
        step = done * steps // total
        if step > shown:
            shown = step
            sys.stderr.write(pattern.format(f"{done} of {total} visits ({done / total:.0%})"))
            sys.stderr.flush()

    return show


if __name__ == "__main__":
    sys.exit(main())
