"""What to measure: the distinct layers of some networks, by each program that runs the widths asked for."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hwbmpq
from hwbmpq.costs.lookup import geometry
from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware.profile import op_of
from hwbmpq.hardware.schema import NumberFormat, WidthPair
from hwbmpq.measure.kit_runner import MANIFEST_SCHEMA, REFERENCE_FILE, printable
from hwbmpq.measure.layer_graphs import layer_graph
from hwbmpq.measure.operation_graphs import (
    CHAINS,
    REFERENCE_MACS,
    WARM_UPS,
    chain_graph,
    operation_graphs,
    reference_graph,
)
from hwbmpq.measure.programs import Program, program_of
from hwbmpq.values import Layer, Precision

KEY = tuple(
    "op in_channels out_channels kernel_size stride dilation groups out_h out_w positions w_bits a_bits".split()
)
"""What tells the entries of a measured table apart."""
DEFAULT_WIDTHS = tuple(
    Precision.parse(text) for text in ("W2A8", "W4A8", "W8A8", "W16A16", "W32A32", "W2A32", "W4A32", "W8A32")
)
MOST_KERNELS = 4000
_NO_WIDTH = NumberFormat("", 0)
_NO_PAIR = WidthPair(weight=_NO_WIDTH, activation=_NO_WIDTH, compute="")

Write = Callable[[str, bytes], None]
"""Takes a file's name and content."""


@dataclass(frozen=True, kw_only=True)
class LayerKernel:
    """A layer, and the program to time it with."""

    layer: Layer
    program: Program

    @property
    def geometry(self) -> dict[str, Any]:
        """What tells it apart from others, in the words of a lookup table."""
        own = geometry(self.layer, _NO_PAIR)
        kept = {name: own[name] for name in KEY if not name.endswith("_bits")}
        return {**kept, "macs": self.layer.macs // self.layer.calls}


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


def write_kernels(
    write: Write,
    kernels: Sequence[LayerKernel],
    *,
    widths: Sequence[Precision],
    models: Sequence[str],
    on_kernel: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write every file that a runner needs, the manifest last; the manifest."""
    titles = [printable(title) for title in models]  # results with other characters would be refused
    if not titles:
        raise HwbmpqError("give the name of at least one network")
    entries = []
    total = len(kernels)
    for entry, content in _all_files(kernels):
        write(f"{entry['id']}.onnx", content)
        entries.append({**entry, "bytes": len(content)})
        if on_kernel is not None:
            on_kernel(sum("form" in entry for entry in entries), total)
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "hwbmpq": hwbmpq.__version__,
        "models": titles,
        "widths": [str(precision) for precision in widths],
        "reference_macs": REFERENCE_MACS,
        "kernels": entries,
    }
    write(REFERENCE_FILE, reference_graph())
    write("manifest.json", json.dumps(manifest, indent=1).encode())
    return manifest


def _all_files(kernels: Sequence[LayerKernel]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """What is between layers comes first: an interrupted measurement has it."""
    for length in CHAINS:
        for suffix, is_wall in (("", False), ("_wall", True)):
            yield _entry(f"chain{length}{suffix}", is_wall=is_wall, chain=length), chain_graph(length)
    for index, graph in enumerate(operation_graphs()):
        own: dict[str, Any] = {"operation": graph.name, "elements": graph.elements}
        yield _entry(f"operation{index:03d}", copies=len(WARM_UPS), **own), graph.content
    for index, kernel in enumerate(kernels):
        content, copies = layer_graph(kernel.layer, kernel.program)
        work = kernel.geometry["macs"] * copies
        own = {"form": kernel.program.name, "geometry": kernel.geometry}
        yield _entry(f"layer{index:04d}", macs=work, copies=copies, **own), content


def _entry(
    ident: str, *, macs: int = 0, copies: int = 1, is_wall: bool = False, **more: Any
) -> dict[str, Any]:
    return {"id": ident, "macs": macs, "copies": copies, "is_wall": is_wall, **more}


def write_into(folder: Path) -> Write:
    """Writes files into a folder."""

    def write(name: str, content: bytes) -> None:
        (folder / name).write_bytes(content)

    return write
