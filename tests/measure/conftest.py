"""A few small layers, a real measurement of them, and results that are made up."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwbmpq.measure import DEFAULT_WIDTHS, LayerKernel, Results, kit_runner, layer_kernels
from hwbmpq.measure.manifest import kernel_files
from hwbmpq.measure.results import parse_results
from hwbmpq.testing import conv_layer, linear_layer

LAYERS = (
    conv_layer(8, 16, size=12, padding=(1, 1), dilation=(1, 1)),
    conv_layer(16, 16, size=12, groups=16, padding=(1, 1), dilation=(1, 1)),
    linear_layer(64, 32, tokens=5),
    replace(linear_layer(64, 24), input_shape=(1, 64), output_shape=(1, 24)),
)
ROUNDS = 4
US_PER_MAC = {"float32": 1e-3, "int8": 5e-4, "uint8": 8e-4, "qdq16": 15e-4}
"""What the made-up device takes."""


@pytest.fixture(scope="session")
def kernels() -> tuple[LayerKernel, ...]:
    return layer_kernels([LAYERS], DEFAULT_WIDTHS)


@pytest.fixture(scope="session")
def folder(kernels: tuple[LayerKernel, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a runner needs for the layers."""
    place = tmp_path_factory.mktemp("kernels")
    for name, content in kernel_files(kernels, widths=DEFAULT_WIDTHS, models=["hwbmpq:tiny at 8x12x12"]):
        (place / name).write_bytes(content)
    return place


@pytest.fixture(scope="session")
def measured(folder: Path) -> dict[str, Any]:
    """What the runner found on this machine."""
    return kit_runner.measure(folder, rounds=ROUNDS, threads=1)


@pytest.fixture(scope="session")
def made_up(folder: Path) -> dict[str, Any]:
    """Results without noise, of a device on which every form has its time per MAC and nodes take 2 us of profiling."""
    manifest = json.loads((folder / "manifest.json").read_text())
    results = {
        "schema": kit_runner.RESULTS_SCHEMA,
        "manifest": manifest,
        "machine": {**kit_runner.machine_facts(), "cpu": "Acme", "flags": ["avx2"], "pinned_to": [1]},
        "settings": {"threads": 1, "rounds": ROUNDS},
        "rounds": [[[500.0, 500.0]] * ROUNDS],
        "times": {entry["id"]: {"group": 0, "ops": _made_up_ops(entry)} for entry in manifest["kernels"]},
        "failed": {},
        "is_complete": True,
    }
    return signed(results)


def _made_up_ops(entry: Mapping[str, Any]) -> dict[str, Any]:
    def node(us: float, nodes: int = 1) -> dict[str, Any]:
        return {"nodes": nodes, "us": [us] * ROUNDS}

    if "chain" in entry:  # a call takes 20 us and a node 1 us, 3 us under the profiler
        return (
            {"wall": node(20.0 + entry["chain"])}
            if entry["is_wall"]
            else {"Neg": node(3.0 * entry["chain"], entry["chain"])}
        )
    if entry.get("operation") == "quantize":
        return {
            "QuantizeLinear": node(2 + 4 + entry["elements"] * 1e-3),
            "DequantizeLinear": node(2 + entry["elements"] * 2e-3),
        }
    if "operation" in entry:
        return {"Add": node(2.0 + 4.0 + entry["elements"] * 1e-3), "Neg": node(77.0)}
    us = entry["geometry"]["macs"] * US_PER_MAC.get(entry["form"], 7e-4)
    if entry["form"] in ("int8", "uint8"):
        return {"QLinearConv": node(us + 2), "QuantizeLinear": node(1000.0), "Transpose": node(1000.0)}
    return (
        {"Conv": node(us + 2)}
        if entry["form"] != "float32"
        else {"Conv": node(us + 2), "ReorderInput": node(1000.0)}
    )


def signed(results: Mapping[str, Any]) -> dict[str, Any]:
    """With the checksum that belongs to it."""
    content = {key: value for key, value in results.items() if key != "sha256"}
    return {**content, "sha256": kit_runner.digest(content)}


@pytest.fixture
def sign() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return signed


@pytest.fixture
def parsed(made_up: dict[str, Any]) -> Results:
    return parse_results(made_up, "made up")
