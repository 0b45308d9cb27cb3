"""The solvers behind one small registry."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hwbmpq.allocate.ilp import IntegerProgram
from hwbmpq.errors import HwbmpqError, UnknownNameError

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class SolverError(HwbmpqError):
    """A solver that is missing, was killed, or gave no answer."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a solver says: a point, perhaps, and what none can exceed; values are those of the scaled tableau."""

    chosen: NDArray[np.float64] | None
    bound: float | None
    is_infeasible: bool = False


class Solver(Protocol):
    """Both calls return within ``seconds``, or a moment later."""

    name: str

    def why_unavailable(self) -> str:
        """Empty if it can be used."""
        ...

    def prices(self, program: IntegerProgram, seconds: float) -> NDArray[np.float64] | None:
        """What a unit of each row is worth in the linear relaxation: its duals. None if nothing fits, by its tolerances."""
        ...

    def branch_and_bound(self, program: IntegerProgram, seconds: float, gap: float) -> Answer:
        """Solve the integer program to a relative gap, as far as the time goes."""
        ...


_SOLVERS: dict[str, Solver] = {}
AUTO = "auto"


def register_solver(solver: Solver) -> Solver:
    if solver.name in _SOLVERS or solver.name == AUTO:
        raise ValueError(f"a solver named {solver.name!r} is registered already")
    _SOLVERS[solver.name] = solver
    return solver


def solver_names() -> tuple[str, ...]:
    """The fastest first."""
    return tuple(_SOLVERS)


def solvers_for(name: str) -> list[Solver]:
    """The solvers to try, in this order: the one that is named, or all that can be used."""
    if name != AUTO and name not in _SOLVERS:
        raise UnknownNameError("solver", str(name), [AUTO, *_SOLVERS])
    wanted = list(_SOLVERS.values()) if name == AUTO else [_SOLVERS[name]]
    reasons = {solver.name: solver.why_unavailable() for solver in wanted}
    usable = [solver for solver in wanted if not reasons[solver.name]]
    if not usable:
        raise SolverError(
            "no solver: " + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()),
            hint="`pip install highspy swiglpk` brings both, Debian's glpk-utils has glpsol",
        )
    return usable


def first_that_works(solvers: list[Solver], ask: Callable[[Solver], T]) -> tuple[Solver, T]:
    """The answer of the first solver that gives one; the last one's error if none does."""
    for position, solver in enumerate(solvers):
        try:
            return solver, ask(solver)
        except SolverError as error:
            if position == len(solvers) - 1:
                error.hint = error.hint or "another solver may do: --solver auto tries all that there are"
                raise
            _LOG.warning("%s; trying %s", error, solvers[position + 1].name)
    raise AssertionError("there is always a solver to try")
