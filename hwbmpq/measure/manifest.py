"""What to measure, the distinct layers of some networks by each program that runs them; here, or with a kit elsewhere."""

import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import hwbmpq
from hwbmpq.costs.lookup import geometry
from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware.schema import NumberFormat, WidthPair
from hwbmpq.hardware.widths import op_of
from hwbmpq.io import atomic_write
from hwbmpq.measure import kit_runner
from hwbmpq.measure.kit_runner import MANIFEST_SCHEMA, REFERENCE_FILE, Progress, printable
from hwbmpq.measure.onnx_graphs import layer_graph
from hwbmpq.measure.operation_graphs import (
    CHAINS,
    REFERENCE_MACS,
    WARM_UPS,
    chain_graph,
    operation_graphs,
    reference_graph,
)
from hwbmpq.measure.programs import Program, program_of
from hwbmpq.measure.results import MOST_KERNELS, Geometry, Results, parse_results
from hwbmpq.values import Layer, Precision

DEFAULT_WIDTHS = tuple(
    Precision.parse(text) for text in ("W2A8", "W4A8", "W8A8", "W16A16", "W32A32", "W2A32", "W4A32", "W8A32")
)
_NO_WIDTH = NumberFormat("", 0)
_NO_PAIR = WidthPair(weight=_NO_WIDTH, activation=_NO_WIDTH, compute="")

README = """\
Times the layers of some networks on this device, for hwbmpq.

1. Python 3.9 or newer, and:   python -m pip install onnxruntime numpy
2. Leave the device alone, then: python run.py
   (--threads 4 for four cores, --rounds 40 for steadier numbers; Ctrl-C ends it early and keeps complete rounds)
3. Bring results.json back:      hwbmpq targets import NAME results.json
"""


@dataclass(frozen=True, kw_only=True)
class LayerKernel:
    """A layer, and the program to time it with."""

    layer: Layer
    program: Program

    @property
    def geometry(self) -> dict[str, Any]:
        """What distinguishes it from others (see ``Geometry``)."""
        own = {**geometry(self.layer, _NO_PAIR), "macs": self.layer.macs // self.layer.calls}
        return {name: own[name] for name in Geometry.model_fields}


def layer_kernels(
    networks: Iterable[Iterable[Layer]], widths: Sequence[Precision], *, accumulates_int32: bool | None = None
) -> tuple[LayerKernel, ...]:
    """Every distinct layer × program, in the order in which the networks have them.

    Which program runs 8-bit weights depends on whether the processor has ``accumulates_int32``; None if that is not known yet.
    """
    kinds = (False, True) if accumulates_int32 is None else (accumulates_int32,)
    found: dict[str, LayerKernel] = {}
    for layer in (layer for network in networks for layer in network):
        programs = dict.fromkeys(
            program_of(op_of(layer), precision, accumulates_int32=kind)
            for precision in widths
            for kind in kinds
        )
        for program in programs:
            if program is not None:
                kernel = LayerKernel(layer=layer, program=program)
                found.setdefault(json.dumps([kernel.geometry, program.name]), kernel)
    if not found:
        asked = ", ".join(map(str, widths))
        raise HwbmpqError(
            f"no layer of these networks can run at {asked}", hint="W8A8 and W32A32 run everywhere"
        )
    if len(found) > MOST_KERNELS:
        raise HwbmpqError(
            f"{len(found)} kernels to measure, at most {MOST_KERNELS}", hint="give fewer networks or widths"
        )
    return tuple(found.values())


def kernel_files(
    kernels: Sequence[LayerKernel],
    *,
    widths: Sequence[Precision],
    models: Sequence[str],
    on_kernel: Progress | None = None,
) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file that a runner needs, the manifest last."""
    titles = [printable(title) for title in models]  # results with other characters would be refused
    if not titles:
        raise HwbmpqError("give the name of at least one network")
    written: list[dict[str, Any]] = []
    for kernel, content in _all_files(kernels):
        yield f"{kernel['id']}.onnx", content
        written.append({"macs": 0, "copies": 1, "is_wall": False, **kernel, "bytes": len(content)})
        if on_kernel is not None:
            on_kernel(sum("form" in each for each in written), len(kernels))
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "hwbmpq": hwbmpq.__version__,
        "models": titles,
        "widths": [str(precision) for precision in widths],
        "reference_macs": REFERENCE_MACS,
        "kernels": written,
    }
    yield REFERENCE_FILE, reference_graph()
    yield "manifest.json", json.dumps(manifest, indent=1).encode()


def _all_files(kernels: Sequence[LayerKernel]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Kernels as the manifest lists them. What is between layers comes first: an interrupted measurement has it."""
    for length in CHAINS:
        for suffix, is_wall in (("", False), ("_wall", True)):
            yield {"id": f"chain{length}{suffix}", "is_wall": is_wall, "chain": length}, chain_graph(length)
    for index, (name, elements, content) in enumerate(operation_graphs()):
        sizes = {"copies": len(WARM_UPS), "elements": elements}
        yield {"id": f"operation{index:03d}", "operation": name, **sizes}, content
    for index, kernel in enumerate(kernels):
        content, copies = layer_graph(kernel.layer, kernel.program)
        sizes = {"copies": copies, "macs": kernel.geometry["macs"] * copies}
        form = {"form": kernel.program.name, "geometry": kernel.geometry}
        yield {"id": f"layer{index:04d}", **form, **sizes}, content


def write_kit(
    path: Path,
    kernels: Sequence[LayerKernel],
    *,
    widths: Sequence[Precision],
    models: Sequence[str],
    overwrite: bool = False,
    on_written: Progress | None = None,
) -> Path:
    """Write a zip file with one folder in it: kernels, manifest, the runner and how to use it."""
    check_kit(path, overwrite=overwrite)
    folder = path.stem
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as kit:
        kit.writestr(f"{folder}/README.txt", README)
        kit.write(kit_runner.__file__, f"{folder}/run.py")
        for name, content in kernel_files(kernels, widths=widths, models=models, on_kernel=on_written):
            kit.writestr(f"{folder}/{name}", content)
    return path


def check_kit(path: Path, *, overwrite: bool) -> None:
    """Before anything slow: whether the kit can be written."""
    if path.suffix != ".zip":
        raise HwbmpqError(f"--kit {path}: a kit is a zip file", hint=f"--kit {quote(path.name)}.zip")
    if not path.absolute().parent.is_dir():
        raise HwbmpqError(f"--kit {path}: there is no folder {path.absolute().parent}")
    if path.exists() and not overwrite:
        raise HwbmpqError(f"{path} exists", hint="give another name, or --overwrite to replace it")


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
    with tempfile.TemporaryDirectory(prefix="hwbmpq-measure-") as temporary:
        folder = Path(temporary)
        try:
            for name, content in kernel_files(kernels, widths=widths, models=models, on_kernel=on_written):
                (folder / name).write_bytes(content)
        except OSError as error:
            raise HwbmpqError(
                f"cannot write kernels into {folder}: {error.strerror or error}",
                hint="TMPDIR names another place",
            ) from None
        if on_estimate is not None:
            on_estimate(kit_runner.estimated_seconds(folder, rounds=rounds, threads=threads))
        results = kit_runner.measure(folder, rounds=rounds, threads=threads, on_progress=on_visit)
    return parse_results(results, "the measurement")
