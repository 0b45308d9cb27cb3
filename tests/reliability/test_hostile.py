"""Files and folders of strangers: no code of theirs runs, nothing is written elsewhere, and time, memory and output are bounded.

Every case is a command in a process of its own. A sample runs each time, another one with another ``HWBMPQ_SEED``; all run
with ``-n 0 -m "slow or not slow"``, in one process, which writes down what was seen.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import hostile_files
import pytest
from hostile import CASES, LONGEST_S, MOST_MIB, ROOT, Case, Place, problems, run_case
from hostile_folders import copy

from hwbmpq.measure.kit_runner import machine_facts

COMPRESS = (
    "compress --model hwbmpq:resnet8 --target mpic --budget memory=24KiB --data digits --train-images 64 --test-images 32 "
    "--batch-size 16 --epochs 3 --quiet"
)
FEWEST = 30
SAMPLE = random.Random(int(os.environ.get("HWBMPQ_SEED", "17"))).sample(sorted(CASES), 6)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are limited and watched as Linux does it"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be changed."""
    folder = tmp_path_factory.mktemp("honest") / "run"
    words = [sys.executable, "-m", "hwbmpq", *COMPRESS.split(), "--run-dir", str(folder)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(words, check=True, capture_output=True, env=variables)
    return folder


@pytest.fixture(scope="module")
def longest_s(run: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """5 s of CPU; where even an honest export takes nearly as long, since the machine is slow, half as much again."""
    place = Place(root=tmp_path_factory.mktemp("honest_export"), run=run)
    honest = run_case(Case(name="honest", make=export_of_a_copy, says=""), place)
    assert honest.code == 0, honest.err
    return max(LONGEST_S, 1.5 * honest.cpu_s)


def export_of_a_copy(place: Place) -> list[str]:
    copy(place)
    return ["export", "../sent/run", "--format", "packed"]


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= FEWEST


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in sorted(CASES)]
)
def test_a_stranger_gets_nowhere(
    name: str, run: Path, tmp_path: Path, record: dict[str, Any], longest_s: float
) -> None:
    seen = run_case(CASES[name], Place(root=tmp_path, run=run))
    found = problems(CASES[name], seen, longest_s=longest_s)
    record[name] = {
        "sent": "files" if CASES[name].make.__module__ == hostile_files.__name__ else "folders",
        "seconds": round(seen.cpu_s, 2),
        "mib": seen.mib,
        "exit_code": seen.code,
        "executed": seen.executed,
        "written_outside": len(seen.changed_outside),
        "failed_checks": len(found),
    }
    assert not found, f"{found}\n{seen.out[-1500:]}\n{seen.err[-3000:]}"


@pytest.fixture(scope="module")
def record() -> Any:
    """What was seen, written down where ``HWBMPQ_RESULTS`` says if all cases ran."""
    found: dict[str, Any] = {}
    yield found
    folder = os.environ.get("HWBMPQ_RESULTS")
    if folder and len(found) == len(CASES):
        limits = {"most_seconds": LONGEST_S, "most_mib": MOST_MIB}
        facts = {"machine": machine_facts(), **limits, "cases": found}
        (Path(folder) / "hostile.json").write_text(json.dumps(facts, indent=1) + "\n")
