"""The script that fuzzes the readers keeps the inputs that fail."""

from pathlib import Path

import pytest

pytest.importorskip("resource", reason="libFuzzer's processes are measured as Unix does it")


def test_inputs_that_fail_are_kept_with_the_log(tmp_path: Path) -> None:
    from fuzz import keep_failure

    folder, kept = tmp_path / "fuzzer", tmp_path / "build" / "kept"
    folder.mkdir()
    for name in ("crash-1", "oom-2", "timeout-3", "counts.json"):
        (folder / name).write_text(name)
    paths = keep_failure(folder, "budget", "how it ended", kept)
    assert {path.name: path.read_text() for path in paths} == {
        "budget-crash-1": "crash-1",
        "budget-oom-2": "oom-2",
        "budget-timeout-3": "timeout-3",
        "budget.log": "how it ended",
    }
    assert sorted(kept.iterdir()) == sorted(paths)
