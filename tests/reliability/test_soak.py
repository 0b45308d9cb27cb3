"""Two hundred short runs that something happens to: nothing lost, nothing left running, nothing half-written taken."""

import json
import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from faults import KINDS, Trial
from ranks_killed import SLOWEST, forked_ranks, killed_rank
from runs import ForkServer, assert_finished, assert_same_result, result_of

from hwbmpq.measure.kit_runner import machine_facts

PLAN = {
    "kills": 80,
    "full disk": 30,
    "read-only disk": 20,
    "damaged checkpoints": 30,
    "failing solver": 16,
    "NaN batch": 14,
}
RANK_KILLS = 10
_all: dict[str, dict[str, Any]] = {}


def soak(kind: str, trials: list[Trial], happen: Any) -> None:
    """Let it happen to each; every failure is reported, with the seed that repeats it."""
    counts: Counter[str] = Counter()
    failures, start = {}, time.monotonic()
    for number, trial in enumerate(trials):
        trial.folder.mkdir()
        try:
            happen(trial)
        except AssertionError as error:
            failures[number] = str(error)[:2000]
        slowest = max(counts.pop(SLOWEST, 0), trial.counts.pop(SLOWEST, 0))
        counts.update(trial.counts)
        if slowest:
            counts[SLOWEST] = slowest
        shutil.rmtree(trial.folder)
    seconds = round(time.monotonic() - start, 1)
    _all[kind] = {"runs": len(trials), "failures": len(failures), "seconds": seconds, **counts}
    _record()
    assert failures == {}


def _record() -> None:
    """With HWBMPQ_RESULTS, leave what was seen in that folder."""
    folder = os.environ.get("HWBMPQ_RESULTS")
    if folder and _all.keys() == {*PLAN, "killed ranks"}:
        total: Counter[str] = Counter()
        for found in _all.values():
            total.update({name: count for name, count in found.items() if name != SLOWEST})
        facts = {
            "machine": machine_facts(),
            "total": {**total, "seconds": round(total["seconds"], 1)},
            "by fault": _all,
        }
        (Path(folder) / "soak.json").write_text(json.dumps(facts, indent=2) + "\n")


@pytest.mark.slow
@pytest.mark.usefixtures("_mounts")
@pytest.mark.parametrize("kind", PLAN)
def test_runs_that_something_happens_to_end_as_if_it_had_not(
    kind: str, server: ForkServer, expected: dict[str, Any], tmp_path: Path
) -> None:
    trials = [
        Trial(
            server=server,
            folder=tmp_path / str(number),
            expected=expected,
            chance=random.Random(f"{kind} {number}"),
        )
        for number in range(PLAN[kind])
    ]
    soak(kind, trials, KINDS[kind])


@pytest.mark.slow
def test_distributed_runs_whose_ranks_are_killed_end_as_if_they_had_not(
    server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    for ended in forked_ranks(server, tmp_path / "whole", *server.compress("run", "-q")):
        assert_finished(ended)
    expected = result_of(tmp_path / "whole" / "run")

    def happen(trial: Trial) -> None:
        killed_rank(trial)
        assert_same_result(trial.folder / "run", expected)
        trial.counts["equal to the uninterrupted run"] += 1

    trials = [
        Trial(
            server=server,
            folder=tmp_path / str(number),
            expected=expected,
            chance=random.Random(f"ranks {number}"),
        )
        for number in range(RANK_KILLS)
    ]
    soak("killed ranks", trials, happen)
