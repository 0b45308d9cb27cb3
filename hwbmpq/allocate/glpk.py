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
from numpy.typing import NDArray

from hwbmpq.allocate.ilp import IntegerProgram
from hwbmpq.allocate.solvers import Answer, SolverError

try:
    import swiglpk

    _PROBLEM = ""
except ImportError as error:
    _PROBLEM = f"glpsol is not on the PATH, and swiglpk cannot be imported ({error})"

_LOG = logging.getLogger(__name__)


class Glpk:
    name = "glpk"

    def why_unavailable(self) -> str:
        return "" if shutil.which("glpsol") else _PROBLEM

    def prices(self, program: IntegerProgram, seconds: float) -> NDArray[np.float64] | None:
        if shutil.which("glpsol"):
            try:
                return _Glpsol(program, seconds).prices()
            except SolverError as error:
                _fall_back_on_the_wheel(error)
        return _Library(program, seconds).prices()

    def branch_and_bound(self, program: IntegerProgram, seconds: float, gap: float) -> Answer:
        if shutil.which("glpsol"):
            try:
                return _Glpsol(program, seconds).branch_and_bound(gap)
            except SolverError as error:
                _fall_back_on_the_wheel(error)
        return _Library(program, seconds).branch_and_bound(gap)


def _fall_back_on_the_wheel(error: SolverError) -> None:
    if _PROBLEM:
        raise error
    _LOG.warning("%s; using the swiglpk library instead", error)


class _Glpsol:
    """The program, called by Pyomo, which writes the model to a file and kills the program if it is late."""

    def __init__(self, program: IntegerProgram, seconds: float) -> None:
        self._program, self._seconds = program, seconds
        self._deadline = time.monotonic() + seconds

    def prices(self) -> NDArray[np.float64] | None:
        model = self._program.model
        model.dual = pyo.Suffix(direction=pyo.Suffix.IMPORT)
        try:
            results = self._run(model, nomip=None)
            if self._is_infeasible(results):
                return None
            if not pyo.check_optimal_termination(results):
                raise SolverError(f"glpsol: {results.solver.termination_condition} in the relaxation")
            model.solutions.load_from(results)
            duals = [model.dual.get(row, 0.0) for row in model.budget.values()]
        finally:
            model.del_component("dual")
        prices: NDArray[np.float64] = np.maximum(np.array(duals, dtype=float), 0.0)
        return prices

    def branch_and_bound(self, gap: float) -> Answer:
        model = self._program.model
        results = self._run(model, mipgap=gap, cuts=None)
        if not len(results.solution):
            return Answer(chosen=None, bound=None, is_infeasible=self._is_infeasible(results))
        model.solutions.load_from(results)
        chosen = np.array([float(pyo.value(v, exception=False) or 0.0) for v in model.pick.values()])
        is_optimal = pyo.check_optimal_termination(results)
        value = float(self._program.values @ np.round(chosen))
        # glpsol's report has no bound; optimal means within the gap that was asked for.
        return Answer(chosen=chosen, bound=value * (1 + gap) if is_optimal else None)

    def _is_infeasible(self, results: Any) -> bool:
        condition = results.solver.termination_condition
        # "other" is what Pyomo makes of "undefined", glpsol's word if nothing fits; or if its time is over.
        is_undefined = condition == pyo.TerminationCondition.other and time.monotonic() < self._deadline
        return is_undefined or bool(condition == pyo.TerminationCondition.infeasible)

    def _run(self, model: Any, **options: Any) -> Any:
        solver = pyo.SolverFactory("glpk")
        for name, value in options.items():
            solver.options[name] = value
        with _quiet_pyomo():
            try:
                # Pyomo kills the program when it is a second late.
                return solver.solve(
                    model,
                    load_solutions=False,
                    timelimit=min(math.ceil(self._seconds), 2**31 - 1),
                    suffixes=["dual"],
                )
            except Exception as error:  # Pyomo raises many kinds, some of them bare
                raise SolverError(
                    f"glpsol failed: {error}",
                    hint="it needs a writable folder for temporary files (TMPDIR); the solver highs needs none",
                ) from error


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


class _Library:
    """GLPK in this process, through its C interface. Indices start at 1."""

    def __init__(self, program: IntegerProgram, seconds: float) -> None:
        self._program, self._milliseconds = program, min(max(1, round(seconds * 1000)), 2**31 - 1)
        self._groups = len(program.tableau.values)

    def prices(self) -> NDArray[np.float64] | None:
        with self._loaded() as lp:
            if not self._relax(lp):
                return None
            rows = range(self._groups + 1, self._groups + len(self._program.costs) + 1)
            duals = [swiglpk.glp_get_row_dual(lp, row) for row in rows]
        prices: NDArray[np.float64] = np.maximum(np.array(duals, dtype=float), 0.0)
        return prices

    def branch_and_bound(self, gap: float) -> Answer:
        columns = range(1, len(self._program.values) + 1)
        with self._loaded() as lp:
            if not self._relax(lp):
                return Answer(chosen=None, bound=None, is_infeasible=True)
            for column in columns:
                swiglpk.glp_set_col_kind(lp, column, swiglpk.GLP_BV)
            settings = swiglpk.glp_iocp()
            swiglpk.glp_init_iocp(settings)
            settings.msg_lev, settings.tm_lim, settings.mip_gap = (
                swiglpk.GLP_MSG_OFF,
                self._milliseconds,
                gap,
            )
            settings.gmi_cuts = settings.mir_cuts = settings.cov_cuts = swiglpk.GLP_ON
            code = swiglpk.glp_intopt(lp, settings)
            status = swiglpk.glp_mip_status(lp)
            if status not in (swiglpk.GLP_OPT, swiglpk.GLP_FEAS):
                return Answer(chosen=None, bound=None, is_infeasible=status == swiglpk.GLP_NOFEAS)
            chosen = np.array([swiglpk.glp_mip_col_val(lp, column) for column in columns])
        value = float(self._program.values @ np.round(chosen))
        is_close = status == swiglpk.GLP_OPT or code == swiglpk.GLP_EMIPGAP
        return Answer(chosen=chosen, bound=value * (1 + gap) if is_close else None)

    def _relax(self, lp: Any) -> bool:
        """Solve the relaxation; whether anything fits."""
        settings = swiglpk.glp_smcp()
        swiglpk.glp_init_smcp(settings)
        settings.msg_lev, settings.tm_lim = swiglpk.GLP_MSG_OFF, self._milliseconds
        swiglpk.glp_scale_prob(lp, swiglpk.GLP_SF_AUTO)
        swiglpk.glp_adv_basis(lp, 0)
        code = swiglpk.glp_simplex(lp, settings)
        status = swiglpk.glp_get_status(lp)
        if not code and status == swiglpk.GLP_NOFEAS:
            return False
        if code or status != swiglpk.GLP_OPT:
            raise SolverError(f"GLPK could not solve the relaxation (code {code}, status {status})")
        return True

    @contextmanager
    def _loaded(self) -> Iterator[Any]:
        program = self._program
        swiglpk.glp_term_out(swiglpk.GLP_OFF)
        lp = swiglpk.glp_create_prob()
        try:
            swiglpk.glp_set_obj_dir(lp, swiglpk.GLP_MAX)
            swiglpk.glp_add_rows(lp, self._groups + len(program.costs))
            swiglpk.glp_add_cols(lp, len(program.values))
            for row in range(1, self._groups + 1):
                swiglpk.glp_set_row_bnds(lp, row, swiglpk.GLP_FX, 1.0, 1.0)
            for row in range(self._groups + 1, self._groups + len(program.costs) + 1):
                swiglpk.glp_set_row_bnds(lp, row, swiglpk.GLP_UP, 0.0, 1.0)
            for column, value in enumerate(program.values.tolist(), start=1):
                swiglpk.glp_set_col_bnds(lp, column, swiglpk.GLP_DB, 0.0, 1.0)
                swiglpk.glp_set_obj_coef(lp, column, value)
            self._load_matrix(lp)
            yield lp
        finally:
            swiglpk.glp_delete_prob(lp)

    def _load_matrix(self, lp: Any) -> None:
        program = self._program
        row, column = np.nonzero(program.costs)
        rows = np.concatenate([program.groups, self._groups + row]) + 1
        columns = np.concatenate([np.arange(len(program.values)), column]) + 1
        numbers = np.concatenate([np.ones(len(program.values)), program.costs[row, column]])
        arrays = (
            swiglpk.intArray(len(rows) + 1),
            swiglpk.intArray(len(rows) + 1),
            swiglpk.doubleArray(len(rows) + 1),
        )
        for array, content in zip(arrays, (rows, columns, numbers), strict=True):
            for position, number in enumerate(content.tolist(), start=1):
                array[position] = number
        swiglpk.glp_load_matrix(lp, len(rows), *arrays)
