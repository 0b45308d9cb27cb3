"""Every decision is made by the Pyomo model, solved once; the model is built once a run."""

import copy
import pickle
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from pyomo.contrib.appsi.solvers import highs as appsi
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler
from torch import nn

from hwbmpq import BitAllocator
from hwbmpq.allocate import glpk, highs
from hwbmpq.allocate.ilp import IntegerProgram
from hwbmpq.allocate.problem import build_problem
from hwbmpq.allocate.solve import solve_problem


class Calls:
    """Counts the calls of a method, which still does its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.count = 0
        real = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)


def trained(solver: str) -> BitAllocator:
    """An own loop of four epochs with three decisions."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(6)), nn.Linear(8, 3))
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
    budgets = {"memory": "88%"}
    allocator = BitAllocator(
        model, x[:1], target="generic", bits=(2, 4), epochs=4, warmup_epochs=1, budgets=budgets, solver=solver
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        nn.functional.cross_entropy(model(x), y).backward()
        allocator.step()
        optimizer.step()
        optimizer.zero_grad()
        allocator.epoch_end()
    assert len(allocator.history) == 3
    return allocator


def test_highs_solves_the_pyomo_model_once_per_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = Calls(monkeypatch, appsi.Highs, "solve")
    loaded = Calls(monkeypatch, highs._QuietHighs, "set_instance")
    built = Calls(monkeypatch, IntegerProgram, "_build")
    allocator = trained("highs")
    assert (solved.count, loaded.count, built.count) == (3, 1, 1)
    assert {decision.allocation.solver for decision in allocator.history} == {"highs"}


def test_glpk_solves_the_pyomo_model_once_per_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glpk.shutil, "which", lambda name: None)  # the library, wherever the program is
    solved = Calls(monkeypatch, LinearStandardFormCompiler, "write")
    built = Calls(monkeypatch, IntegerProgram, "_build")
    allocator = trained("glpk")
    assert (solved.count, built.count) == (3, 1)
    assert {decision.allocation.solver for decision in allocator.history} == {"glpk"}


def test_both_solvers_decide_alike() -> None:
    one, other = trained("highs"), trained("glpk")
    assert [d.after for d in one.history] == [d.after for d in other.history]


def problem(layers: int, widths: int, budgets: int, seed: int) -> Any:
    """Sizes, sensitivities and costs over several decades."""
    rng = np.random.default_rng(seed)
    bits = [2, 3, 4, 8][:widths] if widths > 2 else [2, 4]

    def table(unit: Any, power: float) -> dict[str, dict[int, float]]:
        return {f"l{i}": {b: round(float(u) * b**power) for b in bits} for i, u in enumerate(unit)}

    scores = np.exp(rng.normal(0, 2, layers))
    values = {f"l{i}": {b: float(s) * k for k, b in enumerate(bits)} for i, s in enumerate(scores)}
    units = np.exp(rng.normal(0, 1.4, (budgets, layers))) * 1e4
    costs = {f"c{r}": table(unit, 1 + 0.3 * r) for r, unit in enumerate(units)}
    ends = [[sum(pick(c.values()) for c in t.values()) for pick in (min, max)] for t in costs.values()]
    limits = {f"c{r}": low + 0.4 * (high - low) for r, (low, high) in enumerate(ends)}
    return build_problem(values, costs, limits)


def test_an_answer_does_not_depend_on_earlier_ones() -> None:
    problems = [problem(40, 3, 2, seed=5).valued(problem(40, 3, 2, seed=s).values) for s in range(4)]
    program = IntegerProgram(problems[0])
    kept = [solve_problem(each, "highs", program=program) for each in problems]
    anew = [solve_problem(each, "highs") for each in problems]
    assert [a.bits for a in kept] == [a.bits for a in anew]
    assert all(a.optimal for a in kept)


@pytest.mark.parametrize(("size", "most"), [((21, 2, 1), 0.1), ((54, 3, 3), 0.6)], ids=str)
def test_a_decision_is_fast(size: tuple[int, int, int], most: float) -> None:
    """Seconds of processor time, Pyomo included: a busy machine does not change them."""
    seconds = []
    for seed in range(5):
        posed = problem(*size, seed=seed)
        start = time.process_time()
        assert solve_problem(posed, "highs").optimal
        seconds.append(time.process_time() - start)
    assert statistics.median(seconds) < most


@pytest.mark.parametrize("solver", ["highs", "glpk"])
def test_threads_solve_and_print_side_by_side(solver: str, capfd: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda seed: solve_problem(problem(12, 2, 1, seed), solver), range(9)))
        sys.stdout.write("still here\n")
    assert all(allocation.optimal for allocation in found)
    assert capfd.readouterr().out == "still here\n"


def test_an_allocator_can_be_copied_after_it_decided() -> None:
    allocator = trained("highs")
    other = copy.deepcopy(allocator)
    sensitivity = allocator.history[-1].decided_by
    assert other.decide(sensitivity).after == allocator.decide(sensitivity).after
    assert pickle.loads(pickle.dumps(allocator.space)).program.size == allocator.space.program.size
