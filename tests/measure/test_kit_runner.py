"""The runner, on this machine."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hwbmpq.measure import kit_runner
from hwbmpq.measure.results import parse_results


def ops_of(measured: dict[str, Any], op: str, form: str) -> set[str]:
    op, _, positions = op.partition("x")
    (ident,) = [
        entry["id"]
        for entry in measured["manifest"]["kernels"]
        if entry.get("form") == form
        and entry["geometry"]["op"] == op
        and (op != "linear" or entry["geometry"]["positions"] == int(positions or 1))
    ]
    return set(measured["times"][ident]["ops"])


@pytest.mark.parametrize(
    ("op", "form", "kernel"),
    [
        ("conv2d", "float32", "Conv"),
        ("conv2d", "int8", "QLinearConv"),
        ("conv2d", "uint8", "QLinearConv"),
        ("dwconv2d", "int8", "QLinearConv"),
        ("conv2d", "qdq16", "QuantizeLinear"),
        ("linear", "int8", "QGemm"),
        ("linear", "uint8", "QGemm"),
        ("linearx5", "int8", "MatMulIntegerToFloat"),
        ("linear", "nbits2", "MatMulNBits"),
        ("linear", "nbits8", "MatMulNBits"),
    ],
)
def test_the_kernels_are_those_that_a_deployed_network_runs(
    measured: dict[str, Any], op: str, form: str, kernel: str
) -> None:
    assert kernel in ops_of(measured, op, form)


def test_every_kernel_was_timed_in_every_round(measured: dict[str, Any]) -> None:
    assert measured["is_complete"]
    assert not measured["failed"]
    results = parse_results(measured, "here")
    assert len(results.times) == len(results.manifest.kernels)
    assert all(len(node.us) == 4 for kernel in results.times.values() for node in kernel.ops.values())


def test_only_the_last_copy_counts(measured: dict[str, Any]) -> None:
    copies = {entry["id"]: entry["copies"] for entry in measured["manifest"]["kernels"]}
    counted = [
        node["nodes"]
        for ident, kernel in measured["times"].items()
        for op, node in kernel["ops"].items()
        if copies[ident] == 2 and op == "QLinearConv"
    ]
    assert counted
    assert set(counted) == {1}


def test_an_interruption_keeps_what_was_measured(folder: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total * 0.9:
            raise KeyboardInterrupt

    results = kit_runner.measure(folder, rounds=3, threads=1, on_progress=interrupt)
    assert not results["is_complete"]
    assert 0 < len(results["times"]) < len(results["manifest"]["kernels"])
    assert not parse_results(results, "here").is_complete


def test_a_kernel_that_the_runtime_lacks_is_named_and_the_others_run(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    shutil.copytree(folder, copied)
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["kernels"] = manifest["kernels"][:6]
    (copied / "manifest.json").write_text(json.dumps(manifest))
    broken = manifest["kernels"][5]["id"]
    (copied / f"{broken}.onnx").write_bytes(b"no model")
    results = kit_runner.measure(copied, rounds=3, threads=1)
    assert set(results["failed"]) == {broken}
    assert len(results["times"]) == 5
    assert results["is_complete"]


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(ValueError, match="has no manifest"):
        kit_runner.measure(tmp_path, rounds=3, threads=1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_cores_are_given_back() -> None:
    before = os.sched_getaffinity(0)
    with kit_runner.pinned(1) as cores:
        assert os.sched_getaffinity(0) == set(cores)
        assert len(cores) == 1
    assert os.sched_getaffinity(0) == before


def test_disturbed_runs_are_repeated_and_the_calmest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0, 3, 3, 4, 4, 9, 9, 11])  # before and after each run: 3, 1, 5 and 2 preemptions
    monkeypatch.setattr(kit_runner, "preemptions", lambda: next(counts))
    assert kit_runner.undisturbed(lambda: None) == 1
    calm = iter([0, 0])
    monkeypatch.setattr(kit_runner, "preemptions", lambda: next(calm))
    assert kit_runner.undisturbed(lambda: None) == 0


def test_groups_are_bounded_in_number_and_bytes() -> None:
    small = [{"id": str(index), "bytes": 1} for index in range(100)]
    assert [len(group) for group in kit_runner.groups(small)] == [48, 48, 4]
    large = [{"id": str(index), "bytes": kit_runner.MOST_OPEN_BYTES} for index in range(3)]
    assert [len(group) for group in kit_runner.groups(large)] == [1, 1, 1]
