"""GLPK: ``glpsol`` through Pyomo if it is on the PATH, else the library in the ``swiglpk`` wheel."""

import logging
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyomo.environ as pyo
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

from hwbmpq.allocate.solvers import Answer, SolverError, register_solver

try:
    import swiglpk

    _PROBLEM = ""
except ImportError as error:
    _PROBLEM = f"glpsol is not on the PATH, and swiglpk cannot be imported ({error})"

_LOG = logging.getLogger(__name__)
_LARGEST_INT = 2**31 - 1


class Glpk:
    name = "glpk"

    def why_unavailable(self) -> str:
        return "" if shutil.which("glpsol") else _PROBLEM

    def open(self, model: Any) -> "_Session":
        return _Session(model)


class _Session:
    """GLPK has no persistent interface: it reads the whole model each time."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def solve(self, seconds: float, gap: float) -> Answer:
        if shutil.which("glpsol"):
            try:
                return _solve_by_program(self._model, seconds, gap)
            except SolverError as error:
                if _PROBLEM:
                    raise
                _LOG.warning("%s; using the swiglpk library instead", error)
        return _solve_by_library(self._model, seconds, gap)


def _answer(model: Any, chosen: list[float], *, gap: float, is_optimal: bool) -> Answer:
    """GLPK reports no bound; optimal means within the gap that was asked for."""
    rounded = np.round(np.array(chosen))
    values = np.array([pyo.value(parameter) for parameter in model.value.values()])
    return Answer(chosen=rounded, bound=float(values @ rounded) * (1 + gap) if is_optimal else None)


def _solve_by_program(model: Any, seconds: float, gap: float) -> Answer:
    """Pyomo writes the model to a file, and kills the program if it is late."""
    deadline = time.monotonic() + seconds
    solver = pyo.SolverFactory("glpk")
    solver.options["mipgap"], solver.options["cuts"] = gap, None
    limit = min(math.ceil(seconds), _LARGEST_INT)
    try:
        with _quiet_pyomo():
            results = solver.solve(model, load_solutions=False, timelimit=limit)
        if not len(results.solution):
            return Answer(chosen=None, bound=None, is_infeasible=_is_infeasible(results, deadline))
        model.solutions.load_from(results)
    except Exception as error:  # Pyomo raises many kinds, some of them bare
        raise SolverError(
            f"glpsol failed: {error}",
            hint="it needs a writable folder for temporary files (TMPDIR); the solver highs needs none",
        ) from error
    chosen = [float(pyo.value(variable, exception=False) or 0.0) for variable in model.pick.values()]
    return _answer(model, chosen, gap=gap, is_optimal=pyo.check_optimal_termination(results))


def _is_infeasible(results: Any, deadline: float) -> bool:
    condition = results.solver.termination_condition
    # "other" is what Pyomo makes of "undefined", glpsol's word if nothing fits; or if its time is over.
    is_undefined = condition == pyo.TerminationCondition.other and time.monotonic() < deadline
    return is_undefined or bool(condition == pyo.TerminationCondition.infeasible)


@contextmanager
def _quiet_pyomo() -> Iterator[None]:
    """Pyomo logs what it raises anyway."""
    logger = logging.getLogger("pyomo")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _solve_by_library(model: Any, seconds: float, gap: float) -> Answer:
    """GLPK in this process, through its C interface, with the matrix that Pyomo makes of the model."""
    swiglpk.glp_term_out(swiglpk.GLP_OFF)
    problem = swiglpk.glp_create_prob()
    try:
        columns = _load(problem, LinearStandardFormCompiler().write(model, mixed_form=True))
        settings = swiglpk.glp_iocp()
        swiglpk.glp_init_iocp(settings)
        settings.presolve, settings.msg_lev = swiglpk.GLP_ON, swiglpk.GLP_MSG_OFF
        settings.tm_lim, settings.mip_gap = min(max(1, round(seconds * 1000)), _LARGEST_INT), gap
        settings.gmi_cuts = settings.mir_cuts = settings.cov_cuts = swiglpk.GLP_ON
        code = swiglpk.glp_intopt(problem, settings)
        status = swiglpk.glp_mip_status(problem)
        if status not in (swiglpk.GLP_OPT, swiglpk.GLP_FEAS):
            is_infeasible = status == swiglpk.GLP_NOFEAS or code == swiglpk.GLP_ENOPFS
            return Answer(chosen=None, bound=None, is_infeasible=is_infeasible)
        chosen = [swiglpk.glp_mip_col_val(problem, columns[id(v)]) for v in model.pick.values()]
    finally:
        swiglpk.glp_delete_prob(problem)
    is_optimal = status == swiglpk.GLP_OPT or code == swiglpk.GLP_EMIPGAP
    return _answer(model, chosen, gap=gap, is_optimal=is_optimal)


def _load(problem: Any, form: Any) -> dict[int, int]:
    """Fill a GLPK problem; the column of each Pyomo variable. Indices start at 1."""
    matrix, objective = form.A.tocoo(), form.c.toarray().ravel()
    swiglpk.glp_set_obj_dir(problem, swiglpk.GLP_MIN)  # what the standard form is for
    swiglpk.glp_add_rows(problem, matrix.shape[0])
    swiglpk.glp_add_cols(problem, matrix.shape[1])
    for row, (limit, (_, kind)) in enumerate(zip(form.rhs, form.rows, strict=True), start=1):
        bounds = swiglpk.GLP_FX if kind == 0 else swiglpk.GLP_UP
        swiglpk.glp_set_row_bnds(problem, row, bounds, float(limit), float(limit))
    for column, cost in enumerate(objective.tolist(), start=1):
        swiglpk.glp_set_col_kind(problem, column, swiglpk.GLP_BV)
        swiglpk.glp_set_obj_coef(problem, column, cost)
    rows, columns = swiglpk.intArray(matrix.nnz + 1), swiglpk.intArray(matrix.nnz + 1)
    numbers = swiglpk.doubleArray(matrix.nnz + 1)
    entries = zip(matrix.row.tolist(), matrix.col.tolist(), matrix.data.tolist(), strict=True)
    for position, (row, column, number) in enumerate(entries, start=1):
        rows[position], columns[position], numbers[position] = row + 1, column + 1, number
    swiglpk.glp_load_matrix(problem, matrix.nnz, rows, columns, numbers)
    return {id(variable): column for column, variable in enumerate(form.columns, start=1)}


register_solver(Glpk())
