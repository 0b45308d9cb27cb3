"""Times small ONNX files in ONNX Runtime on the machine that it runs on, and writes what it found as JSON.

Needs Python, numpy and onnxruntime only: hwbmpq uses this file as it is and copies it into kits for other devices.

    python run.py                     # a few minutes; leave the machine alone meanwhile
    python run.py --rounds 40 --threads 4 --output results.json

Every file is one operation. All of them take turns, round after round, so that a disturbance hits them alike; a
reference kernel runs before and after each round, by which slow clocks and disturbed rounds are told.
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
from typing import Any

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
"""So many that what is between layers and the first layers are one group: an interrupted run has some of both."""
MOST_OPEN_BYTES = 256 << 20
FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimd", "asimddp", "i8mm", "sve")
"""What decides which kernels a processor has; the last four are Arm's (dotprod is asimddp)."""

FEWEST_ROUNDS, MOST_ROUNDS = 3, 10_000
PRINTABLE = r" -~\u00a0-\u1fff\u2010-\u2027\u2030-\ud7ff\uf900-\ufffd"
"""Characters that a terminal and YAML take as they are."""
MOST_TEXT = 300
_MINUTE = 60

Progress = Callable[[int, int], None]


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


class Kernel:
    """One file, with the profiler on: it says how long each node took, and which kernels there really were."""

    def __init__(self, entry: dict[str, Any], folder: Path, threads: int, scratch: Path) -> None:
        self.id = str(entry["id"])
        self._is_wall = bool(entry["is_wall"])
        self._copies = int(entry["copies"])
        profile = None if self._is_wall else str(scratch / self.id)
        self._session = open_session(folder / f"{self.id}.onnx", threads, profile)
        self._feed = inputs_of(self._session)
        self._walls: list[float] = []
        self._kept: list[int] = []
        for _ in range(WARM_UPS):
            self._run()

    def _run(self) -> None:
        self._walls.append(wall_microseconds(self._session, self._feed))

    def visit(self) -> None:
        """One run: a second one would find its weights in the caches. Again only if something else took the core."""
        first = len(self._walls)
        self._kept.append(first + undisturbed(self._run))

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


def undisturbed(run: Callable[[], object]) -> int:
    """Run until nothing else took the core meanwhile, a few times at most; which of the runs was disturbed least."""
    counts: list[int] = []
    while len(counts) < MOST_TRIES and 0 not in counts:
        before = preemptions()
        run()
        counts.append(preemptions() - before)
    return counts.index(min(counts))


def preemptions() -> int:
    """How often the system has taken the core from us so far; 0 where it does not tell."""
    return 0 if resource is None else int(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)


def wall_microseconds(session: Any, feed: dict[str, Any]) -> float:
    start = time.perf_counter()
    session.run(None, feed)
    return (time.perf_counter() - start) * 1e6


def measure(
    folder: Path, *, rounds: int, threads: int, on_progress: Progress | None = None
) -> dict[str, Any]:
    """Run every kernel of a folder; Ctrl-C ends it early with what there is."""
    manifest = read_manifest(folder)
    kernels, facts = manifest["kernels"], machine_facts()
    report = _Report(total=len(kernels) * rounds, on_progress=on_progress)
    results = {
        "schema": RESULTS_SCHEMA,
        "manifest": manifest,
        "machine": facts,
        "settings": {"threads": threads, "rounds": rounds},
        "rounds": [],
        "times": {},
        "failed": {},
        "is_complete": False,
    }
    with pinned(threads) as cores, tempfile.TemporaryDirectory() as scratch:
        facts["pinned_to"] = cores
        reference = Reference(folder, threads)
        try:
            for group in groups(kernels):
                _measure_group(group, folder, Path(scratch), reference, results, report)
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
    report: _Report,
) -> None:
    """Some kernels in turns: as many as may be open at once. If it is interrupted, its complete rounds are kept."""
    settings = results["settings"]
    opened: list[Kernel] = []
    marks: list[list[float]] = []
    try:
        for entry in group:
            try:
                opened.append(Kernel(entry, folder, settings["threads"], scratch))
            except Exception as error:  # this runtime has no such kernel: the others may still run
                results["failed"][str(entry["id"])] = printable(str(error))
                report.advance(settings["rounds"])
        for _ in range(settings["rounds"] if opened else 0):
            before = reference.microseconds()
            for kernel in opened:
                kernel.visit()
                report.advance(1)
            marks.append([before, reference.microseconds()])
    finally:
        if len(marks) >= FEWEST_ROUNDS:
            number = len(results["rounds"])
            results["rounds"].append(marks)
            for kernel in opened:
                results["times"][kernel.id] = {"group": number, "ops": kernel.close(len(marks))}


def groups(kernels: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Kernels that fit into memory together, in order."""
    group: list[dict[str, Any]] = []
    size = 0
    for entry in kernels:
        if group and (len(group) >= MOST_OPEN or size + entry["bytes"] > MOST_OPEN_BYTES):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry["bytes"]
    if group:
        yield group


def read_manifest(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or manifest.get("schema") != MANIFEST_SCHEMA:
        raise ValueError(f"{folder} has no manifest of this kit's version")
    return manifest


def digest(results: dict[str, Any]) -> str:
    """What tells that a file is as it was written."""
    content = {key: value for key, value in results.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def estimated_seconds(folder: Path, *, rounds: int, threads: int) -> float:
    """A guess from the reference kernel's speed."""
    manifest = read_manifest(folder)
    per_mac = Reference(folder, threads).microseconds() * 1e-6 / manifest["reference_macs"]
    runs = rounds + WARM_UPS
    work = sum(entry["macs"] for entry in manifest["kernels"]) * per_mac * runs
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
    """Keep to as many cores as there are threads, where the system lets us; the highest, often the fastest."""
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


class _Report:
    """Counts visits."""

    def __init__(self, *, total: int, on_progress: Progress | None) -> None:
        self._done, self._total, self._on_progress = 0, total, on_progress

    def advance(self, visits: int) -> None:
        self._done += visits
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


def main() -> int:
    """What a kit runs."""
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
        line = _ProgressLine(is_terminal=sys.stderr.isatty())
        results = measure(folder, rounds=args.rounds, threads=args.threads, on_progress=line.show)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted before anything was measured\n")
        return 130
    Path(args.output).write_text(json.dumps(results), encoding="utf-8")
    state = "all kernels" if results["is_complete"] else interruption(results)
    sys.stderr.write(f"\nwrote {args.output} ({state}; {len(results['failed'])} could not run here)\n")
    return 0 if results["is_complete"] else 130


def interruption(results: dict[str, Any]) -> str:
    """What there is of a measurement that was interrupted."""
    part = f"{len(results['times'])} of {len(results['manifest']['kernels'])} kernels"
    rounds = (
        f"{len(results['rounds'][-1]) if results['rounds'] else 0} of {results['settings']['rounds']} rounds"
    )
    return f"interrupted: only a part, {part}, the last in {rounds}"


class _ProgressLine:
    """How far it is: one line that changes on a terminal, else a new line every 10 %."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._steps = 200 if is_terminal else 10
        self._pattern = "\r{} " if is_terminal else "{}\n"
        self._shown = 0

    def show(self, done: int, total: int) -> None:
        step = done * self._steps // total
        if step > self._shown:
            self._shown = step
            sys.stderr.write(self._pattern.format(f"{done} of {total} visits ({done / total:.0%})"))
            sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
