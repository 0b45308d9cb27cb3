"""The integer program as a Pyomo model, kept from one decision to the next."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray
from pyomo.core.expr.numeric_expr import LinearExpression

from hwbmpq.allocate.problem import AllocationProblem
from hwbmpq.allocate.solvers import Answer, Session, Solver, SolverError
from hwbmpq.allocate.tableau import Floats, build_tableau, presolve, scaled_costs, scaled_gains
from hwbmpq.registry import SOLVERS, wrong_return

Picks = NDArray[np.int64]


class IntegerProgram:
    """One binary variable per group of layers and choice, budgets as constraints, the sum of values as objective.

    Building it takes longer than changing it, and a run decides many times under the same budgets: ``set_values`` changes
    the objective only, and each solver keeps the model that it has loaded.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self._groups = problem.groups
        self._tableau = presolve(build_tableau(problem), by_values=False)
        self._group_of, self._choice_of = np.nonzero(self._tableau.is_open)  # by variable
        self._sessions: dict[str, Session] = {}
        self.is_infeasible = self._tableau.is_infeasible
        """Whether a budget is below what the cheapest choices cost."""
        self.model: Any = None if self.is_infeasible else self._build(problem)
        """``pick[layer, choice]`` are the variables; tied layers go by the first of them.

        Values are shares of the largest gain, costs are shares of what the budget leaves above the cheapest choices:
        solvers stop early on coefficients that span decades. objective = total_value * value_unit + value_offset.
        """
        if self.model is not None:
            self.set_values(problem)

    def __getstate__(self) -> dict[str, Any]:
        """A copy loads its own model into the solvers, which cannot be copied."""
        return self.__dict__ | {"_sessions": {}}

    @property
    def size(self) -> int:
        """How many variables there are."""
        return len(self._group_of)

    def _build(self, problem: AllocationProblem) -> Any:
        all_costs, rooms = scaled_costs(self._tableau)
        model = pyo.ConcreteModel("bit_allocation")
        names = [(self._groups[g].name, str(self._groups[g].choices[j])) for g, j in self._variables()]
        model.value = pyo.Param(names, mutable=True, initialize=0.0)
        model.value_unit = pyo.Param(mutable=True, initialize=1.0)
        model.value_offset = pyo.Param(mutable=True, initialize=0.0)
        model.pick = pyo.Var(names, domain=pyo.Binary)
        picks = list(model.pick.values())
        model.one_choice = pyo.Constraint([group.name for group in self._groups])
        for g, group in enumerate(self._groups):
            own = [picks[i] for i in np.flatnonzero(self._group_of == g)]
            model.one_choice[group.name] = LinearExpression(linear_vars=own, linear_coefs=[1] * len(own)) == 1
        rows = problem.limited_rows
        labels = [f"{rows[r].cost} {rows[r].label}".strip() + f" #{r}" for r in self._tableau.rows]
        model.budget = pyo.Constraint(labels)
        for label, costs, room in zip(labels, all_costs, rooms, strict=True):
            coefficients = costs[self._group_of, self._choice_of]
            used = np.flatnonzero(coefficients)
            total = LinearExpression(
                linear_vars=[picks[i] for i in used], linear_coefs=coefficients[used].tolist()
            )
            model.budget[label] = total <= float(room)
        total_value = sum(model.value[name] * model.pick[name] for name in names)
        model.total_value = pyo.Objective(expr=total_value, sense=pyo.maximize)
        return model

    def _variables(self) -> list[tuple[int, int]]:
        return list(zip(self._group_of.tolist(), self._choice_of.tolist(), strict=True))

    def set_values(self, problem: AllocationProblem) -> None:
        """Take over the values of a problem that is otherwise the same."""
        values = build_tableau(problem.with_budgets({})).values
        gains, unit, offset = scaled_gains(values, self._tableau.is_open)
        self.model.value_unit.set_value(unit)
        self.model.value_offset.set_value(offset)
        for parameter, (g, j) in zip(self.model.value.values(), self._variables(), strict=True):
            parameter.set_value(float(gains[g, j]))

    def solve(self, solver: Solver, seconds: float, gap: float) -> Answer:
        """Solve the Pyomo model to a relative gap, as far as the time goes."""
        if solver.name not in self._sessions:
            self._sessions[solver.name] = solver.open(self.model)
        answer = self._sessions[solver.name].solve(seconds, gap)
        if not isinstance(answer, Answer):
            expected = "an Answer (hwbmpq.allocate.solvers) with one value for each variable of model.pick"
            raise wrong_return(SOLVERS, solver.name, answer, expected, error=SolverError)
        if answer.chosen is not None and not (
            answer.chosen.shape == (self.size,) and np.isfinite(answer.chosen).all()
        ):
            raise SolverError(f"{solver.name} gave an answer that is not a solution")
        return answer

    def in_problem(self, value: float) -> float:
        """A value of the model's objective in the problem's own numbers."""
        unit, offset = pyo.value(self.model.value_unit), pyo.value(self.model.value_offset)
        return float(value * unit + offset)

    def picks_of(self, chosen: Floats) -> Picks:
        """Each group's choice from the variables' values: its largest."""
        dense = np.full(self._tableau.is_open.shape, -np.inf)
        dense[self._group_of, self._choice_of] = chosen
        picks: Picks = dense.argmax(axis=1)
        return picks

    def show(self, picks: Sequence[int]) -> None:
        """Write an answer into the model."""
        for variable, (g, j) in zip(self.model.pick.values(), self._variables(), strict=True):
            variable.set_value(int(picks[g] == j), skip_validation=True)
