"""One decision on widths during training: what was known, what changed, and why."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter
from torch import nn

from hwbmpq.allocate import Allocation, values_for
from hwbmpq.allocate.allocation import WrittenAllocation
from hwbmpq.costs.table import Number, WrittenPrecision
from hwbmpq.search.space import Choices, SearchSpace
from hwbmpq.sensitivity.measure import Batch, LossFunction
from hwbmpq.values import Sensitivity

Bits = Mapping[str, WrittenPrecision]
CalibrationBatches = Callable[[], Iterable[Batch]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A layer that got another width."""

    layer: str
    before: WrittenPrecision
    after: WrittenPrecision
    why: str

    def __str__(self) -> str:
        return f"{self.layer} {self.before} to {self.after}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The widths from the end of an epoch on."""

    epoch: int
    """It was made at the end of this epoch, counted from 1."""
    method: str
    sensitivities: Mapping[str, float]
    """ENBG by layer over the interval that ended; empty if the method does not look at it."""
    decided_by: Sensitivity
    """ENBG, or what else the method looked at: densities, Hessian traces."""
    objective: str = "linear"
    before: Bits
    after: Bits
    moves: tuple[Move, ...]
    allocation: WrittenAllocation

    @property
    def costs(self) -> Mapping[str, Number]:
        return self.allocation.costs

    @property
    def slack(self) -> Mapping[str, Number]:
        return self.allocation.slack

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        content: dict[str, Any] = _WRITTEN.dump_python(self, mode="json")
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Decision":
        return _WRITTEN.validate_python(content)


_WRITTEN = TypeAdapter(Decision)


@dataclass(frozen=True, kw_only=True)
class DecisionContext:
    """All that a method may look at when widths are decided."""

    space: SearchSpace
    model: nn.Module
    method: str
    epoch: int
    """The one that ends."""
    current: Bits
    sensitivity: Sensitivity
    """ENBG of the interval that ends."""
    earlier_scores: Mapping[str, float] = field(default_factory=dict)
    """What the decision before this one looked at."""
    densities: Mapping[str, float] = field(default_factory=dict)
    calibration: CalibrationBatches | None = None
    """Labelled batches, for methods that measure on their own."""
    loss: LossFunction | None = None
    """Their loss of (outputs, targets); None: cross entropy."""
    objective: str = "linear"
    solver: str = "auto"
    seed: int = 0
    inertia: float = 0.0
    """Share by which gains of a move count less, and losses more; 0 before the first decision."""

    @property
    def sizes(self) -> dict[str, int]:
        """Weights by layer."""
        return {layer.name: layer.parameters for layer in self.space.graph}

    def decision(
        self,
        allocation: Allocation,
        decided_by: Sensitivity | None = None,
        *,
        objective: str = "linear",
        by_scores: bool = True,
    ) -> "Decision":
        """The decision for an allocation. ``by_scores``: whether the scores tell why a layer moved."""
        decided_by = self.sensitivity if decided_by is None else decided_by
        after: Any = allocation.bits
        free = {name: size for name, size in self.sizes.items() if len(self.space.choices[name]) > 1}
        scores = self.weighed(decided_by, objective) if by_scores else {}
        return Decision(
            epoch=self.epoch,
            method=self.method,
            sensitivities=self.sensitivity.scores,
            decided_by=decided_by,
            objective=objective,
            before=self.current,
            after=after,
            allocation=replace(allocation, problem=None),  # the whole integer program is not part of it
            moves=find_moves(
                self.current,
                after,
                scores,
                self.earlier_scores,
                free,
                what="expected loss"
                if objective == "error" and decided_by.activation_errors
                else "sensitivity",
            ),
        )

    def weighed(self, sensitivity: Sensitivity, objective: str) -> Mapping[str, float]:
        """By layer: what an objective looks at, the loss that its widths differ by or the sensitivity itself."""
        return weighed_scores(sensitivity, objective, self.space.choices)


def weighed_scores(sensitivity: Sensitivity, objective: str, choices: Choices) -> Mapping[str, float]:
    """What tells why an objective gave a layer its width."""
    if objective != "error" or not sensitivity.activation_errors:
        return sensitivity.scores
    values = values_for(sensitivity, choices, objective)
    return {layer: max(of.values()) - min(of.values()) for layer, of in values.items()}


def find_moves(
    before: Bits,
    after: Bits,
    scores: Mapping[str, float],
    earlier_scores: Mapping[str, float],
    sizes: Mapping[str, int],
    *,
    what: str = "sensitivity",
) -> tuple[Move, ...]:
    """The layers whose width changed, each with the figures that speak for it.

    ``scores`` are those of the decision, ``earlier_scores`` those of the one before, if any; ``sizes`` are
    weights by layer. Ranks and shares are among the layers that have a choice, given by ``sizes``. ``what`` the scores are.
    """
    return tuple(
        Move(
            layer=layer,
            before=before[layer],
            after=after[layer],
            why=_reason(layer, scores, earlier_scores, sizes, what),
        )
        for layer in after
        if after[layer] != before[layer]
    )


def _reason(
    layer: str,
    scores: Mapping[str, float],
    earlier: Mapping[str, float],
    sizes: Mapping[str, int],
    what: str,
) -> str:
    """``rank 3 of 18 (was 9), 12% of the sensitivity for 2.1% of the weights``."""
    if layer not in scores or layer not in sizes:
        return "the method looks at no scores"
    total = sum(scores[name] for name in sizes) or 1.0
    weights = sum(sizes.values()) or 1
    was = f" (was {_rank(layer, earlier, sizes)})" if earlier else ""
    return (
        f"rank {_rank(layer, scores, sizes)} of {len(sizes)}{was}, {scores[layer] / total:.1%} of the {what} "
        f"for {sizes[layer] / weights:.1%} of the weights"
    )


def _rank(layer: str, scores: Mapping[str, float], among: Mapping[str, int]) -> int:
    return 1 + sum(scores[name] > scores[layer] for name in among)
