"""``Allocation``: the choice of every layer, what it costs, and how far it is proven."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

from hwbmpq.allocate.exact.prove import PROOF
from hwbmpq.allocate.ilp import IntegerProgram
from hwbmpq.allocate.problem import AllocationError, AllocationProblem, Choice
from hwbmpq.costs.table import Number
from hwbmpq.values import Precision

EXACT_SEARCH = "exact search"
"""As ``proven_by`` names it."""
_TITLES = {"highs": "HiGHS", "glpk": "GLPK"}
"""Solvers as people write them."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Layer name -> choice, with its costs and proof."""

    bits: Mapping[str, Choice]
    objective: float
    bound: float
    """No allocation within the budgets has a larger objective."""
    costs: Mapping[str, Number]
    budgets: Mapping[str, Number]
    solver: str
    """Who solved the integer program, or what else chose the bits."""
    seconds: float
    proven_by: str = ""
    """``exact search``, or the solver's name where its bound is the proof; empty if nothing is proven."""
    is_improved: bool = False
    """Whether the exact search found better bits than the solver, or the solver's were not within the budgets."""
    inertia: float = 0.0
    """Share by which gains of a move counted less, and losses more, if that kept layers at widths that are not the best by
    the values alone; else 0."""
    problem: AllocationProblem | None = field(default=None, repr=False, compare=False)
    """What was solved; not part of the JSON."""

    @property
    def slack(self) -> dict[str, Number]:
        """What each budget has left."""
        return {name: budget - self.costs[name] for name, budget in self.budgets.items()}

    @property
    def gap(self) -> float:
        """How much better the best allocation might still be, relative to this one."""
        difference = max(0.0, self.bound - self.objective)
        if difference == 0:
            return 0.0
        return difference / abs(self.objective) if self.objective else math.inf

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no allocation is better by more than 1e-6, relatively."""
        return self.gap <= PROOF

    @property
    def origin(self) -> str:
        """Who found and who proved it: ``solved by HiGHS, proven by exact search``."""
        solver = _TITLES.get(self.solver, self.solver)
        proof = (
            f"proven by {solver if self.proven_by == self.solver else self.proven_by}"
            if self.proven_by
            else ""
        )
        if not self.is_improved:
            return ", ".join(filter(None, [f"solved by {solver}", proof]))
        if self.proven_by == EXACT_SEARCH:
            return f"solved by {solver}, improved and {proof}"
        return ", ".join(filter(None, [f"solved by {solver}", f"improved by {EXACT_SEARCH}", proof]))

    @cached_property
    def model(self) -> Any:
        """The integer program as a Pyomo model, whole, with this answer in it."""
        if self.problem is None:
            raise AllocationError("an allocation that was read from JSON has no model", hint="solve it again")
        program = IntegerProgram(self.problem)
        program.show([group.choices.index(self.bits[group.name]) for group in self.problem.groups])
        return program.model

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: widths as numbers, pairs as lists, precisions as ``W4A8``."""
        return {
            "bits": {layer: _to_json(choice) for layer, choice in self.bits.items()},
            "objective": self.objective,
            "bound": self.bound,
            "gap": self.gap if math.isfinite(self.gap) else None,
            "optimal": self.optimal,
            "costs": dict(self.costs),
            "budgets": {n: b if math.isfinite(b) else None for n, b in self.budgets.items()},
            "slack": {n: s if math.isfinite(s) else None for n, s in self.slack.items()},
            "solver": self.solver,
            "proven_by": self.proven_by,
            "is_improved": self.is_improved,
            **({"inertia": self.inertia} if self.inertia else {}),
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Allocation":
        try:
            allocation = cls(
                bits={layer: _from_json(choice) for layer, choice in content["bits"].items()},
                objective=float(content["objective"]),
                bound=float(content["bound"]),
                costs=dict(content["costs"]),
                budgets={n: math.inf if b is None else b for n, b in content["budgets"].items()},
                solver=str(content["solver"]),
                proven_by=str(content.get("proven_by", "")),
                is_improved=bool(content.get("is_improved", False)),
                inertia=float(content.get("inertia", 0.0)),
                seconds=float(content["seconds"]),
            )
            allocation.slack  # noqa: B018 (a budget without a cost is a KeyError)
            return allocation
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise AllocationError(f"this is not an allocation: {type(error).__name__}: {error}") from None

    def to_json(self, **options: Any) -> str:
        return json.dumps(self.to_dict(), allow_nan=False, **options)

    @classmethod
    def from_json(cls, text: str) -> "Allocation":
        try:
            content = json.loads(text)
        except ValueError as error:
            raise AllocationError(f"this is not an allocation: {error}") from None
        return cls.from_dict(content)


def _to_json(choice: Choice) -> int | list[int] | str:
    if isinstance(choice, Precision):
        return str(choice)
    return list(choice) if isinstance(choice, tuple) else choice


def _from_json(choice: Any) -> Choice:
    if isinstance(choice, str):
        return Precision.parse(choice)
    if isinstance(choice, list):
        weight_bits, activation_bits = choice
        return int(weight_bits), int(activation_bits)
    return int(choice)


WrittenAllocation = Annotated[
    Allocation, PlainValidator(Allocation.from_dict), PlainSerializer(Allocation.to_dict)
]
"""An allocation as files keep it."""
