"""What a solver of integer programs is, and which of the registered ones are tried."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hwbmpq.allocate.tableau import Floats
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.registry import SOLVERS

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
AUTO = "auto"


class SolverError(HwbmpqError):
    """A solver that is missing, was killed, or gave no answer."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A solution, if there is one, and an upper bound on the model's objective, if the solver gives one."""

    chosen: Floats | None
    """By variable, in the order of ``model.pick``."""
    bound: float | None
    is_infeasible: bool = False


class Session(Protocol):
    """A solver that has loaded a Pyomo model; it sees what changes in the model from one call to the next."""

    def solve(self, seconds: float, gap: float) -> Answer:
        """Solve to a relative gap; return within ``seconds``, or a moment later."""
        ...


class Solver(Protocol):
    name: str

    def why_unavailable(self) -> str:
        """Empty if it can be used."""
        ...

    def open(self, model: Any) -> Session:
        """Load a Pyomo model."""
        ...


def register_solver(solver: Solver) -> Solver:
    """Make a solver known by its name."""
    if solver.name == AUTO:
        raise HwbmpqError(f"a solver cannot be named {AUTO!r}: it stands for all of them")
    added: Solver = SOLVERS.add(solver.name, solver)
    return added


def solver_names() -> tuple[str, ...]:
    """The fastest first."""
    return SOLVERS.names()


def solvers_for(name: str) -> Iterator[Solver]:
    """The solvers to try, in this order: the one that is named, or all that can be used."""
    if name != AUTO and name not in SOLVERS:
        raise UnknownNameError("solver", name, [AUTO, *SOLVERS.names()])
    reasons = {}
    for each in SOLVERS.names() if name == AUTO else (name,):
        found = SOLVERS.registration(each)  # a plug-in that cannot be loaded does not stop the others
        solver: Solver | None = found.entry
        reasons[each] = found.error if solver is None else solver.why_unavailable()
        if solver is not None and not reasons[each]:
            yield solver
    if all(reasons.values()):
        raise SolverError(
            "no solver: " + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()),
            hint="`pip install highspy swiglpk` brings both, Debian's glpk-utils has glpsol",
        )


def first_that_works(name: str, ask: Callable[[Solver], T]) -> tuple[Solver, T]:
    """The answer of the first solver that gives one; the last one's error if none does."""
    failure: SolverError | None = None
    for solver in solvers_for(name):
        if failure is not None:
            _LOG.warning("%s; trying %s", failure, solver.name)
        try:
            return solver, ask(solver)
        except SolverError as error:
            failure = error
    assert failure is not None, "there is always a solver to try"
    failure.hint = failure.hint or "another solver may do: --solver auto tries all that there are"
    raise failure
