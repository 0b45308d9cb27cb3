"""Solvers that are missing, crash, hang or talk nonsense: an answer or a ``SolverError``, soon."""

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwbmpq.allocate import SolverError, glpk, highs, register_solver, solve, solver_names
from hwbmpq.allocate.solvers import Answer
from hwbmpq.errors import HwbmpqError
from hwbmpq.registry import SOLVERS

VALUES = {"a": {2: 0, 4: 3, 8: 4}, "b": {2: 0, 4: 2, 8: 5}, "c": {2: 0, 4: 1, 8: 6}}
COSTS = {
    "memory": {"a": {2: 20, 4: 40, 8: 80}, "b": {2: 10, 4: 20, 8: 40}, "c": {2: 15, 4: 30, 8: 60}},
    "latency": {"a": {2: 3, 4: 7, 8: 9}, "b": {2: 5, 4: 6, 8: 11}, "c": {2: 2, 4: 4, 8: 13}},
}
BUDGETS = {"memory": 140, "latency": 28}
BEST = 11.0

BROKEN = {
    "exits with 1": "exit 1",
    "kills itself": "kill -9 $$",
    "does nothing": "exit 0",
    "talks nonsense": "echo 'GLPSOL--GLPK LP/MIP Solver 5.0'; echo nonsense; exit 0",
    "is not executable code": "\x7fELF",
    "writes garbage": """
        case "$*" in *--version*) echo "GLPSOL--GLPK LP/MIP Solver 5.0"; exit 0;; esac
        while [ $# -gt 0 ]; do
            if [ "$1" = --write ] || [ "$1" = -w ]; then echo garbage > "$2"; fi
            shift
        done
        exit 0""",
    "writes a garbled solution": """
        case "$*" in *--version*) echo "GLPSOL--GLPK LP/MIP Solver 5.0"; exit 0;; esac
        while [ $# -gt 0 ]; do
            if [ "$1" = --write ] || [ "$1" = -w ]; then
                printf 's bas 99 99 f f x\\nj 1 b nan 0\\nj 7000 b 1 0\\ne o f\\n' > "$2"; fi
            shift
        done
        exit 0""",
}


@pytest.fixture
def _restored() -> Iterator[None]:
    """The registered solvers, as they were."""
    before = set(SOLVERS.names())
    yield
    for name in set(SOLVERS.names()) - before:
        SOLVERS.remove(name)


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glpk, "_PROBLEM", "swiglpk cannot be imported (gone)")


@pytest.fixture
def no_highs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs.Highs, "why_unavailable", lambda self: "highspy cannot be imported (gone)")


class OnStrike:
    def solve(self, seconds: float, gap: float) -> Answer:
        raise SolverError("HiGHS is on strike")


class Wrong:
    """Claims that the first choice of every layer is optimal; perhaps with numbers that are not a solution."""

    def __init__(self, model: Any, chosen: float) -> None:
        self._size, self._chosen = len(model.pick), chosen

    def solve(self, seconds: float, gap: float) -> Answer:
        return Answer(chosen=np.full(self._size, self._chosen), bound=0.0)


def processes() -> set[str]:
    """Programs named glpsol or sleep below this process."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text().replace("\0", " ")
            parents = (folder / "status").read_text()
        except OSError:
            continue
        if f"PPid:\t{os.getpid()}\n" in parents and ("glpsol" in command or "sleep" in command):
            found.add(command)
    return found


def test_the_solvers_are_known_by_name() -> None:
    assert set(solver_names()) == {"highs", "glpk"}


@pytest.mark.usefixtures("no_wheel", "no_highs", "without_glpsol")
@pytest.mark.parametrize("solver_name", ["auto", "highs", "glpk"])
def test_without_a_solver_it_says_how_to_get_one(solver_name: str) -> None:
    with pytest.raises(SolverError, match=r"no solver: .*cannot be imported \(gone\)") as caught:
        solve(VALUES, COSTS, BUDGETS, solver=solver_name)
    assert "pip install highspy swiglpk" in str(caught.value.hint)


@pytest.mark.usefixtures("no_highs")
def test_auto_takes_the_one_that_is_there() -> None:
    allocation = solve(VALUES, COSTS, BUDGETS)
    assert (allocation.solver, allocation.objective) == ("glpk", BEST)


@pytest.mark.usefixtures("no_wheel", "without_glpsol")
def test_auto_without_glpk_is_highs() -> None:
    allocation = solve(VALUES, COSTS, BUDGETS)
    assert (allocation.solver, allocation.objective) == ("highs", BEST)


def test_auto_falls_back_on_the_next_and_logs_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(highs.Highs, "open", lambda self, model: OnStrike())
    with caplog.at_level(logging.WARNING):
        allocation = solve(VALUES, COSTS, BUDGETS)
    assert (allocation.solver, allocation.objective) == ("glpk", BEST)
    assert "HiGHS is on strike; trying glpk" in caplog.text


def test_a_solver_that_was_asked_for_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs.Highs, "open", lambda self, model: OnStrike())
    with pytest.raises(SolverError, match=r"HiGHS is on strike"):
        solve(VALUES, COSTS, BUDGETS, solver="highs")


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_a_broken_glpsol_is_replaced_by_the_wheel(
    put_on_path: Callable[[str], Path], caplog: pytest.LogCaptureFixture, script: str
) -> None:
    put_on_path(script)
    with caplog.at_level(logging.WARNING):
        allocation = solve(VALUES, COSTS, BUDGETS, solver="glpk")
    assert (allocation.objective, allocation.optimal) == (BEST, True)
    assert "using the swiglpk library instead" in caplog.text


@pytest.mark.usefixtures("no_wheel")
@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_a_broken_glpsol_without_the_wheel_is_a_solver_error(
    put_on_path: Callable[[str], Path], script: str
) -> None:
    put_on_path(script)
    with pytest.raises(SolverError, match=r"glpsol"):
        solve(VALUES, COSTS, BUDGETS, solver="glpk")


@pytest.mark.parametrize(
    "script",
    [
        "exec sleep 60",
        'case "$*" in *--version*) echo "GLPSOL--GLPK LP/MIP Solver 5.0"; exit 0;; esac\n'
        "trap '' TERM INT\nexec sleep 60",
    ],
    ids=["always", "while solving, deaf to signals"],
)
def test_a_hanging_glpsol_is_killed(put_on_path: Callable[[str], Path], script: str) -> None:
    put_on_path(script)
    start = time.perf_counter()
    allocation = solve(VALUES, COSTS, BUDGETS, solver="glpk", time_limit=0.5)
    assert time.perf_counter() - start < 15
    assert allocation.objective == BEST
    assert processes() == set()


def test_without_a_folder_for_temporary_files_the_wheel_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file" / "below"))
    assert solve(VALUES, COSTS, BUDGETS, solver="glpk").objective == BEST


@pytest.mark.skipif(shutil.which("glpsol") is None, reason="glpsol is not installed")
@pytest.mark.usefixtures("no_wheel")
def test_without_a_folder_for_temporary_files_and_the_wheel_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file" / "below"))
    with pytest.raises(SolverError, match=r"glpsol failed") as caught:
        solve(VALUES, COSTS, BUDGETS, solver="glpk")
    assert "TMPDIR" in str(caught.value.hint)


def test_highs_needs_no_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file" / "below"))
    assert solve(VALUES, COSTS, BUDGETS, solver="highs").objective == BEST


def test_a_wrong_answer_of_a_solver_is_improved_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs.Highs, "open", lambda self, model: Wrong(model, 0.0))
    allocation = solve(VALUES, COSTS, BUDGETS, solver="highs")
    assert (allocation.objective, allocation.optimal) == (BEST, True)
    assert (allocation.solver, allocation.proven_by, allocation.is_improved) == (
        "highs",
        "exact search",
        True,
    )


@pytest.mark.parametrize("nonsense", [np.nan, np.inf])
def test_an_answer_that_is_not_a_solution_is_an_error(
    monkeypatch: pytest.MonkeyPatch, nonsense: float
) -> None:
    monkeypatch.setattr(highs.Highs, "open", lambda self, model: Wrong(model, nonsense))
    with pytest.raises(SolverError, match="highs gave an answer that is not a solution"):
        solve(VALUES, COSTS, BUDGETS, solver="highs")


@pytest.mark.parametrize("name", ["highs", "glpk"])
def test_the_solver_decides_and_the_search_proves(name: str) -> None:
    allocation = solve(VALUES, COSTS, BUDGETS, solver=name)
    assert (allocation.solver, allocation.proven_by, allocation.is_improved) == (name, "exact search", False)


@pytest.mark.usefixtures("_restored")
def test_a_registered_solver_can_be_named() -> None:
    class Idle(highs.Highs):
        name = "idle"

    register_solver(Idle())
    assert solve(VALUES, COSTS, BUDGETS, solver="idle").solver == "idle"


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("highs", "solver 'highs' is already registered by hwbmpq"),
        ("auto", "a solver cannot be named 'auto'"),
    ],
)
def test_a_name_is_registered_once(name: str, message: str) -> None:
    class Other(highs.Highs):
        pass

    other = Other()
    other.name = name
    with pytest.raises(HwbmpqError, match=message):
        register_solver(other)
