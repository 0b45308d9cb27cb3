"""What the history and the result of a run must be like to be shown; others may have written or changed them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from hwbmpq.errors import printable
from hwbmpq.report.accuracy import AccuracySearch
from hwbmpq.report.values import Plan, RunFacts
from hwbmpq.units import shown
from hwbmpq.values import Metric

_Amount = Annotated[float, Field(allow_inf_nan=False, gt=-1e30, lt=1e30)]
_Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_LONGEST_WORD = 200


class _Block(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Scores(_Block):
    method: str
    scores: dict[str, _Amount]


class _Move(BaseModel):
    model_config = ConfigDict(extra="forbid")
    layer: str
    before: str
    after: str
    why: str


class _Decision(_Block):
    decided_by: _Scores
    moves: list[_Move]
    after: dict[str, str] | None = None


class _Metric(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    higher_is_better: bool
    is_share: bool


class _Measured(_Block):
    """What was measured on test or validation images; other metrics than accuracy may be any number."""

    metric: _Metric | None = None
    test_accuracy: _Share | None = None
    test_metric: _Amount | None = None
    test_loss: _Amount | None = None
    validation_accuracy: _Share | None = None
    validation_metric: _Amount | None = None
    validation_loss: _Amount | None = None

    @model_validator(mode="after")
    def _has_figures(self) -> Self:
        key = Metric(**({} if self.metric is None else self.metric.model_dump())).key
        part = "test" if f"test_{key}" in self.model_fields_set else "validation"
        for name in (f"{part}_{key}", f"{part}_loss"):
            if getattr(self, name) is None:
                raise ValueError(f"has no {name}")
        return self


class _Record(_Measured):
    epoch: _Count
    loss: _Amount | None = None
    train_accuracy: _Share | None = None
    bits: dict[str, str]
    decision: _Decision | None = None


class _PackedLine(_Block):
    label: str
    predicted_bytes: _Count
    actual_bytes: _Count | None


class _PackedFile(_Block):
    actual_bytes: _Count | None
    lines: list[_PackedLine]


class _Result(_Measured):
    float_accuracy: _Share | None = None
    float_metric: _Amount | None = None
    packed_file: _PackedFile | None = None


_HISTORY, _RESULT = TypeAdapter(list[_Record]), TypeAdapter(_Result | None)
_TEXTS = TypeAdapter(tuple[str, ...])


def check_records(
    facts: RunFacts, history: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None
) -> None:
    """``ValueError`` if the lines of ``history.jsonl`` or the content of ``allocation.json`` cannot be shown."""
    _RESULT.validate_python(result)
    decisions = [record.decision for record in _HISTORY.validate_python(history) if record.decision]
    _check_words([*facts.tables, *(table.unit for table in facts.tables.values()), *facts.limits])
    for search in (facts.accuracy, None if result is None else result.get("accuracy_search")):
        if search is not None:
            found = search if isinstance(search, AccuracySearch) else AccuracySearch.from_dict(search)
            _check_words([found.cost, found.unit, found.asked, found.metric.name])
    moved = {move.layer for decision in decisions for move in decision.moves}
    layers, nodes = {layer.name for layer in facts.layers}, {node.name for node in facts.nodes}
    if not moved <= layers or not {node for edge in facts.edges for node in edge} <= nodes:
        raise ValueError("layers that the network does not have")


def _check_words(words: Iterable[str]) -> None:
    """Words of ours, such as costs, units and solvers, which are printed as they are."""
    for word in words:
        if len(word) > _LONGEST_WORD or "[" in word or printable(word) != word:
            raise ValueError(f"{shown(word)} is not a name of ours")


def check_plan(plan: Plan) -> None:
    """``ValueError`` if parts of a plan speak of layers or costs that it does not have."""
    _check_words([plan.objective, plan.sensitivity.method, plan.allocation.solver, plan.allocation.origin])
    _TEXTS.validate_python(plan.sensitivity.remarks)
    _check_words(alternative.label for alternative in plan.alternatives)
    for name, cost in plan.costs.items():
        _check_words([name, cost.unit, cost.asked, cost.capacity[0] if cost.capacity else ""])
    layers, costs = {layer.name for layer in plan.layers}, set(plan.costs)
    # A layer may lack a cost of which only a lower bound is known.
    bounds = {name for name, cost in plan.costs.items() if cost.is_lower_bound}
    if not layers or len({frozenset(layer.costs.keys() - bounds) for layer in plan.layers}) > 1:
        raise ValueError("layers without the costs of the others")
    named = {name for layer in plan.layers for name in layer.costs}
    if not all(costs <= alternative.costs.keys() for alternative in plan.alternatives):
        raise ValueError("an alternative without a cost")
    if plan.explanation is not None:
        named |= {price.cost for price in plan.explanation.prices}
        named |= {*plan.explanation.if_grown, *plan.explanation.if_shrunk}
    if not named <= costs or not plan.allocation.bits.keys() == layers:
        raise ValueError("costs or layers that the plan does not have")
