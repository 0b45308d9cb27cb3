"""Distinct layers, each once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hwbmpq.errors import HwbmpqError
from hwbmpq.measure import DEFAULT_WIDTHS, count_between_layers, layer_kernels, manifest
from hwbmpq.testing import conv_layer, linear_layer
from hwbmpq.values import Precision

W4A8, W8A8, W2A8, W8A32 = (Precision.parse(text) for text in ("W4A8", "W8A8", "W2A8", "W8A32"))


def test_layers_that_repeat_are_there_once() -> None:
    first = conv_layer(8, 16, size=12)
    networks = [[first, replace(first, name="again")], [replace(first, name="elsewhere"), linear_layer(8, 4)]]
    assert len(layer_kernels(networks, [W8A8], accumulates_int32=True)) == 2


def test_widths_of_one_kernel_are_timed_once() -> None:
    kernels = layer_kernels([[conv_layer(8, 16, size=12)]], [W2A8, W4A8, W8A8], accumulates_int32=False)
    assert [kernel.program.name for kernel in kernels] == ["int8", "uint8"]


@pytest.mark.parametrize(
    ("accumulates_int32", "forms"), [(False, ["uint8"]), (True, ["int8"]), (None, ["uint8", "int8"])], ids=str
)
def test_what_runs_bytes_depends_on_the_processor(accumulates_int32: bool | None, forms: list[str]) -> None:
    kernels = layer_kernels([[conv_layer(8, 16, size=12)]], [W8A8], accumulates_int32=accumulates_int32)
    assert [kernel.program.name for kernel in kernels] == forms


def test_weight_only_widths_are_for_linear_layers() -> None:
    kernels = layer_kernels(
        [[conv_layer(8, 16, size=12), linear_layer(8, 4)]], [W8A8, W8A32], accumulates_int32=False
    )
    assert [(kernel.layer.kind, kernel.program.name) for kernel in kernels] == [
        ("conv2d", "uint8"),
        ("linear", "uint8"),
        ("linear", "nbits8"),
    ]


def test_a_layer_that_runs_twice_is_timed_as_one_run() -> None:
    once = conv_layer(8, 16, size=12)
    twice = replace(once, calls=2, macs=2 * once.macs)
    (kernel,) = layer_kernels([[twice]], [W8A8], accumulates_int32=True)
    assert kernel.geometry["macs"] == once.macs


def test_nothing_to_measure_and_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = conv_layer(8, 16, size=12)
    with pytest.raises(HwbmpqError, match="no layer of these networks can run at W8A32"):
        layer_kernels([[layer]], [W8A32])
    monkeypatch.setattr(manifest, "MOST_KERNELS", 1)
    with pytest.raises(HwbmpqError, match="2 kernels to measure, at most 1"):
        layer_kernels([[layer]], [W4A8, W8A8])


def test_titles_are_made_fit_for_results_before_anything_is_measured() -> None:
    kernels = layer_kernels([[linear_layer(8, 4)]], [W8A8], accumulates_int32=True)
    models = ["file:\x1b[1m\U0001f600.py", "x" * 500]
    files = dict(manifest.kernel_files(kernels, widths=[W8A8], models=models))
    assert json.loads(files["manifest.json"])["models"] == ["file:?[1m?.py", "x" * 300]


def test_without_the_name_of_a_network_nothing_is_written() -> None:
    kernels = layer_kernels([[conv_layer(8, 16, size=12)]], [W8A8], accumulates_int32=True)
    written: list[str] = []
    with pytest.raises(HwbmpqError, match="at least one network"):
        written += [name for name, _ in manifest.kernel_files(kernels, widths=[W8A8], models=[])]
    assert written == []


def test_what_is_between_layers_is_counted(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    assert sum("form" not in entry for entry in content["kernels"]) == count_between_layers() == 52


def test_the_manifest_names_every_file(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    names = {f"{entry['id']}.onnx" for entry in content["kernels"]}
    assert len(names) == len(content["kernels"])
    assert {path.name for path in folder.iterdir()} == names | {"manifest.json", "reference.onnx"}
    assert content["widths"] == [str(precision) for precision in DEFAULT_WIDTHS]
    assert all(
        (folder / f"{entry['id']}.onnx").stat().st_size == entry["bytes"] for entry in content["kernels"]
    )
