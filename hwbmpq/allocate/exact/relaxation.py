"""The linear relaxation of a tableau: what a unit of each row is worth."""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from hwbmpq.allocate.tableau import Floats, Tableau, scaled_costs, scaled_gains

_INFEASIBLE = 2


def row_prices(tableau: Tableau) -> Floats | None:
    """The duals of the rows, in the scaled numbers; None if nothing fits, by the tolerances of floating point.

    If there is no answer for another reason, all are zero: the search is right with any prices, and fast with good ones.
    """
    groups, choices = np.nonzero(tableau.is_open)
    gains, _, _ = scaled_gains(tableau.values, tableau.is_open)
    costs, room = scaled_costs(tableau)
    one_choice = csr_array((np.ones(len(groups)), (groups, np.arange(len(groups)))))
    answer = linprog(
        -gains[groups, choices],  # it minimises
        A_ub=csr_array(costs[:, groups, choices]),
        b_ub=room,
        A_eq=one_choice,
        b_eq=np.ones(len(tableau.values)),
        method="highs",
    )
    if answer.status == _INFEASIBLE:
        return None
    if answer.status != 0:
        return np.zeros(len(room))
    prices: Floats = np.maximum(-answer.ineqlin.marginals, 0.0)
    return prices
