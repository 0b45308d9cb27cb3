"""HiGHS, from the ``highspy`` wheel: the numbers go in as arrays, without a file in between."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwbmpq.allocate.ilp import IntegerProgram
from hwbmpq.allocate.solvers import Answer, SolverError

try:
    import highspy

    _PROBLEM = ""
except ImportError as error:
    _PROBLEM = f"highspy cannot be imported ({error})"


class Highs:
    name = "highs"

    def why_unavailable(self) -> str:
        return _PROBLEM

    def prices(self, program: IntegerProgram, seconds: float) -> NDArray[np.float64] | None:
        # Without presolve: the program is presolved already, and the rest costs more than it saves (measured).
        highs = _highs(program, seconds, presolve="off")
        highs.run()
        if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return None
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise SolverError(f"HiGHS: {highs.modelStatusToString(highs.getModelStatus())} in the relaxation")
        duals = np.array(highs.getSolution().row_dual)[len(program.tableau.values) :]
        prices: NDArray[np.float64] = np.maximum(-duals, 0.0)
        return prices

    def branch_and_bound(self, program: IntegerProgram, seconds: float, gap: float) -> Answer:
        highs = _highs(program, seconds, mip_rel_gap=gap, mip_abs_gap=0.0, mip_feasibility_tolerance=1e-9)
        count = len(program.values)
        kinds = np.full(count, highspy.HighsVarType.kInteger)
        highs.changeColsIntegrality(count, np.arange(count, dtype=np.int32), kinds)
        highs.run()
        info = highs.getInfo()
        has_point = info.primal_solution_status == 2  # kSolutionStatusFeasible
        chosen = np.array(highs.getSolution().col_value) if has_point else None
        bound = -info.mip_dual_bound
        return Answer(
            chosen=chosen,
            bound=bound if np.isfinite(bound) else None,
            is_infeasible=highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible,
        )


def _highs(program: IntegerProgram, seconds: float, **options: Any) -> Any:
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    tolerances = {"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9}
    settings = {"output_flag": False, "threads": 1, "random_seed": 0, "time_limit": max(seconds, 1e-3)}
    for name, value in {**settings, **tolerances, **options}.items():
        highs.setOptionValue(name, value)
    groups, rows = len(program.tableau.values), len(program.costs)
    count = len(program.values)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = count, groups + rows
    lp.col_cost_ = -program.values  # HiGHS minimises
    lp.col_lower_, lp.col_upper_ = np.zeros(count), np.ones(count)
    lp.row_lower_ = np.concatenate([np.ones(groups), np.full(rows, -np.inf)])
    lp.row_upper_ = np.ones(groups + rows)
    matrix = lp.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kColwise
    index = np.empty((count, rows + 1), dtype=np.int32)
    index[:, 0], index[:, 1:] = program.groups, np.arange(groups, groups + rows)
    matrix.start_ = np.arange(0, index.size + 1, rows + 1, dtype=np.int32)
    matrix.index_ = index.ravel()
    matrix.value_ = np.column_stack([np.ones(count), program.costs.T]).ravel()
    highs.passModel(lp)
    return highs
