"""HiGHS, from the ``highspy`` wheel, through Pyomo's persistent interface: a model is loaded once."""

from typing import Any

import numpy as np
from pyomo.contrib.appsi.base import TerminationCondition
from pyomo.contrib.appsi.solvers import highs as appsi

from hwbmpq.allocate.solvers import Answer, SolverError, register_solver

_TOLERANCES = {
    "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9,
    "mip_feasibility_tolerance": 1e-9,
    "mip_abs_gap": 0.0,
}
_STOPPED = (TerminationCondition.optimal, TerminationCondition.maxTimeLimit)


class Highs:
    name = "highs"

    def why_unavailable(self) -> str:
        return "" if appsi.highspy_available else "highspy cannot be imported"

    def open(self, model: Any) -> "_Session":
        return _Session(model)


class _QuietHighs(appsi.Highs):  # type: ignore[misc]
    """Pyomo's interface, which redirects stdout and stderr of the whole process while it works: other threads that print, or
    solve, do not survive that. HiGHS is told to print nothing instead."""

    def set_instance(self, model: Any) -> None:
        self._reinit()
        self._model = model
        if self.use_extensions and appsi.cmodel_available:
            self._expr_types = appsi.cmodel.PyomoExprTypes()
        self._solver_model = appsi.highspy.Highs()
        self._solver_model.setOptionValue("output_flag", False)
        self.add_block(model)

    def _solve(self, timer: Any) -> Any:
        for name, value in self.highs_options.items():
            self._solver_model.setOptionValue(name, value)
        self._solver_model.run()
        return self._postsolve(timer)


class _Session:
    def __init__(self, model: Any) -> None:
        self._model, self._solver = model, _QuietHighs()
        self._solver.config.load_solution = False
        self._solver.config.warmstart = False

    def solve(self, seconds: float, gap: float) -> Answer:
        if self._solver._solver_model is not None:
            # An answer must not depend on earlier ones: a run that is resumed has none.
            self._solver._solver_model.clearSolver()
        limits = {"time_limit": max(seconds, 1e-3), "mip_rel_gap": gap, "threads": 1, "random_seed": 0}
        self._solver.highs_options = {**_TOLERANCES, **limits}
        try:
            results = self._solver.solve(self._model)
        except Exception as error:  # Pyomo raises many kinds, some of them bare
            raise SolverError(f"HiGHS failed: {error}") from error
        condition = results.termination_condition
        if condition == TerminationCondition.infeasible:
            return Answer(chosen=None, bound=None, is_infeasible=True)
        if condition not in _STOPPED:
            raise SolverError(f"HiGHS: {condition.name}")
        if results.best_feasible_objective is None or not np.isfinite(results.best_feasible_objective):
            return Answer(chosen=None, bound=None)
        values = results.solution_loader.get_primals()
        bound = results.best_objective_bound
        return Answer(
            chosen=np.array([values[variable] for variable in self._model.pick.values()]),
            bound=bound if bound is not None and np.isfinite(bound) else None,
        )


register_solver(Highs())
