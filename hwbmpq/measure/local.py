"""Measuring on this machine."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hwbmpq.errors import HwbmpqError
from hwbmpq.measure import kit_runner
from hwbmpq.measure.manifest import LayerKernel, write_into, write_kernels
from hwbmpq.measure.results import Results, parse_results
from hwbmpq.values import Precision

Progress = Callable[[int, int], None]


def accumulates_int32_here() -> bool:
    """Whether this machine's processor adds products of bytes in 32 bits: what ``onnx_graph`` calls ``accumulates_int32``."""
    facts = kit_runner.machine_facts()
    return kit_runner.accumulates_in_int32(facts["machine"], facts["flags"])


def check_settings(*, rounds: int, threads: int) -> None:
    """Before anything slow: whether this machine can be measured so."""
    problem = kit_runner.settings_problem(rounds=rounds, threads=threads)
    if problem:
        raise HwbmpqError(problem)


def measure_here(
    kernels: Sequence[LayerKernel],
    *,
    widths: Sequence[Precision],
    models: Sequence[str],
    rounds: int = 20,
    threads: int = 1,
    on_written: Progress | None = None,
    on_estimate: Callable[[float], None] | None = None,
    on_visit: Progress | None = None,
) -> Results:
    """Time kernels in ONNX Runtime on this machine. ``on_estimate`` is given the seconds that it may take."""
    check_settings(rounds=rounds, threads=threads)
    with tempfile.TemporaryDirectory(prefix="hwbmpq-measure-") as name:
        folder = Path(name)
        try:
            write_kernels(write_into(folder), kernels, widths=widths, models=models, on_kernel=on_written)
        except OSError as error:
            raise HwbmpqError(
                f"cannot write kernels into {folder}: {error.strerror or error}",
                hint="TMPDIR names another place",
            ) from None
        if on_estimate is not None:
            on_estimate(kit_runner.estimated_seconds(folder, rounds=rounds, threads=threads))
        results = kit_runner.measure(folder, rounds=rounds, threads=threads, on_progress=on_visit)
    return parse_results(results, "the measurement")
