"""How long graphs take in ONNX Runtime, side by side."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwbmpq.errors import HwbmpqError
from hwbmpq.export.runtime.onnxruntime import UNPACKING, Arrays, OnnxNetwork

_WARM_UP = 3
_MEMORY_SCRIPT = """
import json, sys
import numpy, onnxruntime

def kilobytes(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field))

options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = int(sys.argv[2]), 3
images = {name: numpy.zeros(shape, kind) for name, (shape, kind) in json.loads(sys.argv[3]).items()}
for name, value in json.loads(sys.argv[4]).items():
    options.add_session_config_entry(name, value)
before = kilobytes("VmRSS")
session = onnxruntime.InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"])
for _ in range(3):
    session.run(None, images)
print((kilobytes("VmHWM") - before) * 1024)
"""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Milliseconds that a graph takes for one batch, and what it occupies."""

    file_bytes: int
    batch: int
    median_ms: float
    p90_ms: float
    p99_ms: float
    runs: int
    peak_memory_bytes: int | None
    """By which the process grew; None where the system does not tell."""

    @property
    def images_per_second(self) -> float:
        return self.batch / self.median_ms * 1e3


@dataclass(frozen=True, kw_only=True)
class BenchmarkEntry:
    """A file, and how it is loaded."""

    path: Path
    unpacks: bool = False
    """Whether weights are turned into floats once, when the file is loaded, instead of at each run."""


def time_side_by_side(
    entries: Mapping[str, BenchmarkEntry],
    images: Arrays,
    *,
    threads: int = 1,
    rounds: int = 50,
    on_round: Callable[[int], None] | None = None,
) -> dict[str, Timing]:
    """Run files in turns, round by round, so that a slow moment of the machine affects all of them."""
    networks = {
        name: OnnxNetwork(one.path, threads=threads, unpacks=one.unpacks, trust=True)
        for name, one in entries.items()
    }
    for name, network in networks.items():
        arrays = _by_name(images, network)
        count = len(next(iter(arrays.values())))
        if network.batch not in (None, count):
            path = entries[name].path
            raise HwbmpqError(f"{path} takes {network.batch} inputs at a time, not {count}")
    times: dict[str, list[float]] = {name: [] for name in entries}
    for done in range(-_WARM_UP, rounds):
        for name, network in networks.items():
            network(images)  # fills the caches, which the other networks have used
            start = time.perf_counter()
            network(images)
            if done >= 0:
                times[name].append((time.perf_counter() - start) * 1e3)
        if done >= 0 and on_round is not None:
            on_round(done + 1)
    return {
        name: _timing(times[name], one, _by_name(images, networks[name]), threads)
        for name, one in entries.items()
    }


def _by_name(images: Arrays, network: OnnxNetwork) -> dict[str, NDArray[Any]]:
    return dict(images) if isinstance(images, Mapping) else {network.input.name: images}


def _timing(
    times: list[float], file: BenchmarkEntry, arrays: Mapping[str, NDArray[Any]], threads: int
) -> Timing:
    median, p90, p99 = np.percentile(times, [50, 90, 99])
    return Timing(
        file_bytes=file.path.stat().st_size,
        batch=len(next(iter(arrays.values()))),
        median_ms=float(median),
        p90_ms=float(p90),
        p99_ms=float(p99),
        runs=len(times),
        peak_memory_bytes=peak_memory(file, arrays, threads),
    )


def peak_memory(file: BenchmarkEntry, arrays: Mapping[str, NDArray[Any]], threads: int) -> int | None:
    """What a process grows by when it loads and runs a file; in a process of its own, since memory is hard to free."""
    options = UNPACKING if file.unpacks else {}
    given = {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}
    arguments = [str(file.path), str(threads), json.dumps(given), json.dumps(options)]
    command = [sys.executable, "-c", _MEMORY_SCRIPT, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(result.stdout) if result.returncode == 0 else None
