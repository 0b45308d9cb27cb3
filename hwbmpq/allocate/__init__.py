"""Which bit width each layer gets: a proven optimum under any set of budgets, and an explanation."""

from hwbmpq.allocate.allocation import Allocation as Allocation
from hwbmpq.allocate.glpk import Glpk as _Glpk
from hwbmpq.allocate.highs import Highs as _Highs
from hwbmpq.allocate.infeasible import InfeasibleBudget as InfeasibleBudget
from hwbmpq.allocate.problem import AllocationError as AllocationError
from hwbmpq.allocate.problem import build_problem as build_problem
from hwbmpq.allocate.solve import solve as solve
from hwbmpq.allocate.solvers import SolverError as SolverError
from hwbmpq.allocate.solvers import register_solver as register_solver
from hwbmpq.allocate.solvers import solver_names as solver_names

for _solver in (_Highs(), _Glpk()):  # the fastest first, as measured by benchmarks/allocate.py
    register_solver(_solver)
