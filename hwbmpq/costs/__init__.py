"""Cost models, the paper's Φ: what a layer costs at each width on a device.

Names resolve on first use (PEP 562): ``costs.table`` alone needs neither profiles nor YAML.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from hwbmpq.deprecated import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from hwbmpq.costs.budgets import Budget as Budget
    from hwbmpq.costs.budgets import BudgetError as BudgetError
    from hwbmpq.costs.budgets import parse_budget as parse_budget
    from hwbmpq.costs.model import CostModel as CostModel
    from hwbmpq.costs.model import CostModelError as CostModelError
    from hwbmpq.costs.model import FigureLog as FigureLog
    from hwbmpq.costs.model import LayerwiseCost as LayerwiseCost
    from hwbmpq.costs.model import Registration as Registration
    from hwbmpq.costs.model import cost_models as cost_models
    from hwbmpq.costs.model import get_cost_model as get_cost_model
    from hwbmpq.costs.model import refused_plugins as refused_plugins
    from hwbmpq.costs.model import register as register
    from hwbmpq.costs.network import NetworkCosts as NetworkCosts
    from hwbmpq.costs.network import check_cost_models as check_cost_models
    from hwbmpq.costs.network import tabulate as tabulate
    from hwbmpq.costs.network import unanswered_costs as unanswered_costs
    from hwbmpq.costs.table import Candidates as Candidates
    from hwbmpq.costs.table import Capacity as Capacity
    from hwbmpq.costs.table import CostRow as CostRow
    from hwbmpq.costs.table import CostTable as CostTable
    from hwbmpq.costs.table import FigureUse as FigureUse
    from hwbmpq.costs.table import Uncosted as Uncosted

__getattr__, __dir__, __all__ = _lazy_names(__name__)
