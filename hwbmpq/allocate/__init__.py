"""Which bit width each layer gets: a proven optimum under any set of budgets, and an explanation.

Numbers in, bits out: nothing here knows of torch or YAML.
"""

from hwbmpq.allocate.allocation import Allocation as Allocation
from hwbmpq.allocate.baselines import density_widths as density_widths
from hwbmpq.allocate.baselines import fill as fill
from hwbmpq.allocate.baselines import greedy_fill as greedy_fill
from hwbmpq.allocate.baselines import random_fill as random_fill
from hwbmpq.allocate.baselines import reversed_fill as reversed_fill
from hwbmpq.allocate.explain import Explanation as Explanation
from hwbmpq.allocate.explain import explain as explain
from hwbmpq.allocate.frontier import Frontier as Frontier
from hwbmpq.allocate.frontier import FrontierPoint as FrontierPoint
from hwbmpq.allocate.frontier import frontier as frontier
from hwbmpq.allocate.infeasible import BudgetReport as BudgetReport
from hwbmpq.allocate.infeasible import InfeasibleBudget as InfeasibleBudget
from hwbmpq.allocate.objectives import objectives as objectives
from hwbmpq.allocate.objectives import register_objective as register_objective
from hwbmpq.allocate.objectives import values_for as values_for
from hwbmpq.allocate.problem import AllocationError as AllocationError
from hwbmpq.allocate.solve import check_feasible as check_feasible
from hwbmpq.allocate.solve import solve as solve
from hwbmpq.allocate.solvers import SolverError as SolverError
from hwbmpq.allocate.solvers import register_solver as register_solver
from hwbmpq.allocate.solvers import solver_names as solver_names
