"""What a cost model must return, checked: plug-ins are written by others."""

import math
from collections.abc import Mapping, Sequence

from hwbmpq.costs.table import CostTable
from hwbmpq.errors import CostModelError
from hwbmpq.registry import COST_MODELS, wrong_return
from hwbmpq.values import Precision

_EXPECTED = "a CostTable with a number for every layer and every candidate (CostTable.additive builds one)"


def checked_table(name: str, table: object, choices: Mapping[str, Sequence[Precision]]) -> CostTable:
    """The table itself; ``CostModelError`` with what is wrong if it cannot be used."""
    if not isinstance(table, CostTable):
        raise wrong_return(COST_MODELS, name, table, _EXPECTED)
    if problem := _problem(table, choices):
        raise wrong_return(COST_MODELS, name, problem, _EXPECTED)
    values = (value for row in table.rows for choice in row.costs.values() for value in choice.values())
    if not all(0 <= value < math.inf for value in values):
        raise CostModelError(f"cost model {name!r} gave a cost that is negative or not a number")
    return table


def _problem(table: CostTable, choices: Mapping[str, Sequence[Precision]]) -> str:
    if not table.rows:
        return "a table without rows"
    without_figure = {entry.name for entry in table.uncosted}
    for row in table.rows:
        costed = row.costs.keys() | without_figure
        lacking = [layer for layer in choices if layer not in costed] if table.is_additive else []
        if lacking:
            return f"a table without layer {lacking[0]!r}"
        for layer, by_precision in row.costs.items():
            if layer not in choices:
                return f"a cost of layer {layer!r}, which is not in the network"
            missing = [str(precision) for precision in choices[layer] if precision not in by_precision]
            if missing:
                return f"no cost of layer {layer!r} at {missing[0]}"
            odd = [v for v in by_precision.values() if isinstance(v, bool) or not isinstance(v, (int, float))]
            if odd:
                return f"{type(odd[0]).__name__} {str(odd[0])[:40]!r} as a cost of layer {layer!r}"
    return ""
