"""The integer program as a Pyomo model."""

from functools import cached_property
from typing import Any

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray
from pyomo.core.expr.numeric_expr import LinearExpression

from hwbmpq.allocate.problem import AllocationProblem
from hwbmpq.allocate.tableau import Tableau, scaled


class IntegerProgram:
    """One binary per group and open choice; the same numbers as arrays for solvers that take them directly."""

    def __init__(self, problem: AllocationProblem, tableau: Tableau) -> None:
        self._problem = problem
        self.tableau, self.value_unit, self.value_offset = scaled(tableau)
        self.groups, self.choices = np.nonzero(tableau.is_open)  # of each variable
        self.values = self.tableau.values[self.groups, self.choices]
        self.costs = self.tableau.costs[:, self.groups, self.choices]

    @cached_property
    def model(self) -> Any:
        """``pick[layer, choice]`` are the binaries; tied layers go by their first.

        Values are shown as shares of the largest gain, costs as shares of what the budget leaves above the
        cheapest choices: objective = total_value * value_unit + value_offset.
        """
        model = pyo.ConcreteModel("bit_allocation")
        groups = self._problem.groups
        pairs = [
            (groups[g].name, str(groups[g].choices[j]))
            for g, j in zip(self.groups, self.choices, strict=True)
        ]
        model.value_unit = pyo.Param(initialize=self.value_unit)
        model.value_offset = pyo.Param(initialize=self.value_offset)
        model.pick = pyo.Var(pairs, domain=pyo.Binary)
        picks = list(model.pick.values())
        starts = [0, *np.flatnonzero(np.diff(self.groups)) + 1, len(picks)]
        model.one_choice = pyo.Constraint([group.name for group in groups])
        for group, start, end in zip(groups, starts, starts[1:], strict=False):
            model.one_choice[group.name] = _sum(np.ones(end - start), picks[start:end]) == 1
        rows = self._problem.limited_rows
        names = [f"{rows[r].cost} {rows[r].label}".strip() + f" #{r}" for r in self.tableau.rows]
        model.budget = pyo.Constraint(names)
        for name, costs in zip(names, self.costs, strict=True):
            used = np.flatnonzero(costs)
            model.budget[name] = _sum(costs[used], [picks[i] for i in used]) <= 1
        model.total_value = pyo.Objective(expr=_sum(self.values, picks), sense=pyo.maximize)
        return model

    def picks_of(self, chosen: NDArray[np.float64]) -> NDArray[np.int64]:
        """Each group's choice from the variables' values: its largest."""
        dense = np.full(self.tableau.is_open.shape, -np.inf)
        dense[self.groups, self.choices] = chosen
        picks: NDArray[np.int64] = dense.argmax(axis=1)
        return picks

    def show(self, picks: NDArray[np.int64]) -> None:
        """Write an answer into the model."""
        for variable, group, choice in zip(self.model.pick.values(), self.groups, self.choices, strict=True):
            variable.set_value(int(picks[group] == choice), skip_validation=True)


def _sum(coefficients: NDArray[np.float64], variables: list[Any]) -> Any:
    return LinearExpression(linear_coefs=coefficients.tolist(), linear_vars=variables)
