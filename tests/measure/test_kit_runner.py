"""The runner, on this machine."""

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import hwbmpq
from hwbmpq.measure import Measurement, kit_runner, write_profile
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


def test_an_interruption_keeps_what_was_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total * 0.9:
            raise KeyboardInterrupt

    monkeypatch.setattr(kit_runner, "MOST_OPEN", 40)
    results = kit_runner.measure(folder, rounds=3, threads=1, on_progress=interrupt)
    assert not results["is_complete"]
    assert 0 < len(results["times"]) < len(results["manifest"]["kernels"])
    assert not parse_results(results, "here").is_complete


def interrupted(folder: Path, share: float, rounds: int) -> dict[str, Any]:
    def interrupt(done: int, total: int) -> None:
        if done > total * share:
            raise KeyboardInterrupt

    return kit_runner.measure(folder, rounds=rounds, threads=1, on_progress=interrupt)


def test_an_interruption_keeps_the_complete_rounds_of_the_group_that_ran(
    folder: Path, tmp_path: Path
) -> None:
    """The 74 kernels are one group: of 12 rounds, 4 are complete after 34 %."""
    results = interrupted(folder, 0.34, rounds=12)
    assert not results["is_complete"]
    assert [len(marks) for marks in results["rounds"]] == [4]
    assert len(results["times"]) == len(results["manifest"]["kernels"])
    lengths = {len(node["us"]) for kernel in results["times"].values() for node in kernel["ops"].values()}
    assert lengths == {4}
    profile = write_profile(Measurement.of(parse_results(results, "here")), "part", folder=tmp_path)
    assert profile.tables["layers"].measurement["rounds"] == 4


def test_an_interruption_keeps_finished_groups_and_the_one_that_ran(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit_runner, "MOST_OPEN", 40)
    results = interrupted(folder, 0.9, rounds=6)
    assert [len(marks) for marks in results["rounds"]] == [6, 4]
    assert {kernel["group"] for kernel in results["times"].values()} == {0, 1}
    assert not parse_results(results, "here").is_complete


def test_too_few_complete_rounds_of_a_group_are_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit_runner, "MOST_OPEN", 40)
    results = interrupted(folder, 0.7, rounds=6)
    assert [len(marks) for marks in results["rounds"]] == [6]
    assert len(results["times"]) == 40
    assert not parse_results(results, "here").is_complete


@pytest.mark.parametrize(
    ("rounds", "threads", "message"),
    [
        (2, 1, "at least 3 rounds"),
        (10_001, 1, "at most 10000"),
        (3, 3, "this machine has 2 cores"),
        (3, 0, "1 thread"),
    ],
)
def test_settings_that_cannot_be_are_told(
    rounds: int, threads: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit_runner, "usable_cores", lambda: 2)
    assert message in kit_runner.settings_problem(rounds=rounds, threads=threads)
    assert kit_runner.settings_problem(rounds=10_000, threads=2) == ""


def test_texts_are_made_printable() -> None:
    assert kit_runner.printable("a\x1b[31m\n b\U0001f600\u2028c") == "a?[31m b? c"
    assert len(kit_runner.printable("x" * 1000)) == 300


@pytest.mark.parametrize(("is_terminal", "lines", "ends"), [(False, 10, "\n"), (True, 200, " ")])
def test_progress_is_a_few_lines_where_nobody_watches(
    is_terminal: bool, lines: int, ends: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show = kit_runner.progress_line(is_terminal=is_terminal)
    for done in range(1, 1000):
        show(done, 999)
    written = capsys.readouterr().err
    assert written.count("visits") == lines
    assert written.endswith(f"999 of 999 visits (100%){ends}")


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
    runs = itertools.count()
    assert kit_runner.undisturbed(lambda: next(runs)) == 1
    calm = iter([0, 0])
    monkeypatch.setattr(kit_runner, "preemptions", lambda: next(calm))
    runs = itertools.count()
    assert kit_runner.undisturbed(lambda: next(runs)) == 0


def test_groups_are_bounded_in_number_and_bytes() -> None:
    small = [{"id": str(index), "bytes": 1} for index in range(100)]
    assert [len(group) for group in kit_runner.groups(small)] == [96, 4]
    large = [{"id": str(index), "bytes": kit_runner.MOST_OPEN_BYTES} for index in range(3)]
    assert [len(group) for group in kit_runner.groups(large)] == [1, 1, 1]


def test_the_old_name_of_format_duration_still_works() -> None:
    with pytest.warns(DeprecationWarning, match=r"spoken_seconds is now hwbmpq\.measure\.format_duration"):
        assert hwbmpq.measure.spoken_seconds(3) == hwbmpq.measure.format_duration(3) == "about 5 s"
