"""The ways to decide widths during training: BMPQ, the methods it is compared with, and controls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor, nn

from hwbmpq.allocate import (
    Allocation,
    density_widths,
    greedy_fill,
    objectives,
    random_fill,
    reversed_fill,
    solve,
    values_for,
)
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.graph import LayerGraph
from hwbmpq.hardware import HardwareProfile, common_widths, uniform
from hwbmpq.search.space import Budgets, SearchSpace, build_search_space
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.values import Precision, Sensitivity

CalibrationBatches = Callable[[], Iterable[tuple[Tensor, Tensor]]]


@dataclass(frozen=True, kw_only=True)
class DecisionContext:
    """All that a method may look at when widths are decided."""

    space: SearchSpace
    model: nn.Module
    current: Mapping[str, Precision]
    sensitivity: Sensitivity
    """ENBG of the interval that ends."""
    densities: Mapping[str, float] = field(default_factory=dict)
    calibration: CalibrationBatches | None = None
    """Labelled batches, for methods that measure on their own."""
    objective: str = "linear"
    solver: str = "auto"
    seed: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        return {layer.name: layer.parameters for layer in self.space.graph}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a method decided, and by which numbers."""

    allocation: Allocation
    sensitivity: Sensitivity
    objective: str = "linear"


@dataclass(frozen=True, kw_only=True)
class Method:
    name: str
    summary: str
    decides: Literal["every interval", "once", "never"]
    decide: Callable[[DecisionContext], Outcome]
    """For those that never decide: the widths that hold from the first step."""
    keeps_budget: bool = True
    takes_all_widths: bool = False
    """Whether its candidates are by default all widths of the device, not the paper's {2, 4}."""
    in_float: bool = False
    """Whether the network is trained without quantization."""
    is_optimal: bool = False
    """Whether an integer program finds the best by its own measure."""
    by_scores: bool = True
    """Whether it decides by the scores of layers, so that they tell why one moved."""
    looks_at: frozenset[str] = frozenset({"enbg"})

    def space(
        self,
        graph: LayerGraph,
        profile: HardwareProfile,
        budgets: Budgets | None,
        bits: Sequence[int] | int | None,
        activation_bits: str | int,
    ) -> SearchSpace:
        """What this method is asked about a network on a device."""
        if self.takes_all_widths and bits is None:
            bits = common_widths(graph, profile)
        space = build_search_space(
            graph,
            profile,
            budgets,
            bits=(bits,) if isinstance(bits, int) else bits,
            activation_bits=activation_bits,
            needs_budget=self.keeps_budget,
        )
        if not budgets or self.keeps_budget:
            return space
        remark = f"the method {self.name} keeps no budget: {', '.join(budgets)} may end above it"
        return replace(space, remarks=(*space.remarks, remark))

    def check(self, space: SearchSpace, objective: str, solver: str) -> None:
        """Raise what would otherwise come up after the warm-up: ``InfeasibleBudget``, unknown names."""
        if objective not in objectives():
            raise UnknownNameError("objective", objective, objectives())
        if objective == "hawq" and self.name == "bmpq":
            raise HwbmpqError(
                "the objective hawq weighs Hessian traces, and bmpq learns bit gradients",
                hint="use the method hawq, or the objective linear or error",
            )
        if self.keeps_budget:
            values = {name: dict.fromkeys(options, 0) for name, options in space.choices.items()}
            solve(values, space.costs.tables, space.limits, space.graph.ties, solver=solver)


def get_method(name: str) -> Method:
    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS, hint=f"use one of {', '.join(METHODS)}")
    return METHODS[name]


def _bmpq(context: DecisionContext) -> Outcome:
    return _solved(context, context.sensitivity, context.objective)


def _hawq(context: DecisionContext) -> Outcome:
    """Hessian traces with the weights as they are, in float, times squared weight errors."""
    if context.calibration is None:
        raise HwbmpqError(
            "the method hawq measures Hessian traces and needs labelled batches",
            hint="give BitAllocator a calibration function that returns some",
        )
    choices = context.space.choices
    traces = measure_sensitivity(
        context.model,
        context.space.graph,
        context.calibration(),
        method="hessian_trace",
        precisions=context.space.as_trained(context.space.widest),
        widths={name: [p.weight_bits for p in options] for name, options in choices.items()},
        seed=context.seed,
    )
    # Away from a minimum the loss may curve downwards in a layer; such a layer is the least in need of bits.
    traces = replace(traces, scores={name: max(score, 0.0) for name, score in traces.scores.items()})
    return _solved(context, traces, "hawq")


def _solved(context: DecisionContext, sensitivity: Sensitivity, objective: str) -> Outcome:
    space = context.space
    allocation = solve(
        values_for(sensitivity, space.choices, objective),
        space.costs.tables,
        space.limits,
        space.graph.ties,
        solver=context.solver,
    )
    return Outcome(allocation=allocation, sensitivity=sensitivity, objective=objective)


def _ad(context: DecisionContext) -> Outcome:
    """Activation density: width times density, rounded up to one that the device has; no budget."""
    fixed = [name for name, options in context.space.choices.items() if len(options) == 1]
    widths = density_widths(context.current, context.densities, fixed=fixed, ties=context.space.graph.ties)
    bits = {name: uniform({name: context.space.choices[name]}, width)[name] for name, width in widths.items()}
    densities = Sensitivity(method="activation_density", scores=context.densities)
    return Outcome(allocation=_given(context.space, bits, "ad"), sensitivity=densities)


def _hpq(context: DecisionContext) -> Outcome:
    widths = context.space.costs.widths
    if len(widths) > 1:
        raise HwbmpqError(
            f"the method hpq has one width for all layers, not {', '.join(map(str, widths))}",
            hint="give bits with one number",
        )
    nothing = Sensitivity(method="none", scores=dict.fromkeys(context.space.choices, 0.0))
    return Outcome(allocation=_given(context.space, context.space.widest, "hpq"), sensitivity=nothing)


def _given(space: SearchSpace, bits: Mapping[str, Precision], solver: str) -> Allocation:
    """An allocation that nobody optimised, and that no budget binds."""
    return Allocation(
        bits=dict(bits),
        objective=0.0,
        bound=0.0,
        costs={name: table.total(bits) for name, table in space.costs.tables.items()},
        budgets={},
        solver=solver,
        seconds=0.0,
    )


def _random(context: DecisionContext) -> Outcome:
    space = context.space
    allocation = random_fill(
        space.choices, space.costs.tables, space.limits, space.graph.ties, seed=context.seed
    )
    return Outcome(allocation=allocation, sensitivity=context.sensitivity)


def _greedy(context: DecisionContext) -> Outcome:
    space = context.space
    allocation = greedy_fill(
        space.choices, space.costs.tables, space.limits, space.graph.ties, sizes=context.sizes
    )
    return Outcome(allocation=allocation, sensitivity=context.sensitivity)


def _reversed(context: DecisionContext) -> Outcome:
    space = context.space
    allocation = reversed_fill(
        space.choices,
        space.costs.tables,
        space.limits,
        space.graph.ties,
        scores=context.sensitivity.scores,
    )
    return Outcome(allocation=allocation, sensitivity=context.sensitivity)


METHODS = {
    method.name: method
    for method in (
        Method(
            name="bmpq",
            summary="bit gradients and an integer program, again after every interval (the paper's)",
            decides="every interval",
            decide=_bmpq,
            is_optimal=True,
        ),
        Method(
            name="fp32",
            summary="no quantization: what there is to lose",
            decides="never",
            decide=_hpq,
            keeps_budget=False,
            in_float=True,
            looks_at=frozenset(),
        ),
        Method(
            name="hpq",
            summary="one width for all layers, --bits k, whatever the budget",
            decides="never",
            decide=_hpq,
            keeps_budget=False,
            looks_at=frozenset(),
        ),
        Method(
            name="ad",
            summary="activation density, once: width times the share of non-zero activations; no budget",
            decides="once",
            decide=_ad,
            keeps_budget=False,
            takes_all_widths=True,
            looks_at=frozenset({"density"}),
        ),
        Method(
            name="hawq",
            summary="Hessian traces and an integer program, once after the warm-up",
            decides="once",
            decide=_hawq,
            is_optimal=True,
        ),
        Method(
            name="random",
            summary="control: layers in random order get the widest that still fits",
            decides="once",
            decide=_random,
            by_scores=False,
        ),
        Method(
            name="greedy",
            summary="control: the same, the smallest layers first",
            decides="once",
            decide=_greedy,
            by_scores=False,
        ),
        Method(
            name="reversed",
            summary="control: the same, the least sensitive layers first",
            decides="once",
            decide=_reversed,
        ),
    )
}
