"""The ways to decide widths during training: BMPQ, the methods it is compared with, and controls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from hwbmpq.allocate import (
    Allocation,
    check_feasible,
    density_widths,
    greedy_fill,
    random_fill,
    reversed_fill,
)
from hwbmpq.allocate.objectives import WITHOUT_ACTIVATIONS, without_activations
from hwbmpq.allocate.problem import AllocationProblem
from hwbmpq.allocate.solve import solve_problem
from hwbmpq.costs.earlier import counted_as_in
from hwbmpq.errors import HwbmpqError
from hwbmpq.graph import LayerGraph
from hwbmpq.hardware import HardwareProfile, common_widths, uniform
from hwbmpq.hardware.widths import are_apart
from hwbmpq.registry import METHODS, OBJECTIVES, wrong_return
from hwbmpq.search.config import AllocationConfig
from hwbmpq.search.decisions import Decision, DecisionContext
from hwbmpq.search.space import SearchSpace, build_search_space
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.values import Precision, Sensitivity


@dataclass(frozen=True, kw_only=True)
class Method:
    name: str
    summary: str
    decides: Literal["every interval", "once", "never"]
    decide: Callable[[DecisionContext], Decision]
    """For those that never decide: the widths that hold from the first step."""
    keeps_budget: bool = True
    takes_all_widths: bool = False
    """Whether its candidates are by default all widths of the device, not the paper's {2, 4}."""
    in_float: bool = False
    """Whether the network is trained without quantization."""
    is_optimal: bool = False
    """Whether an integer program finds the best by its own measure."""
    looks_at: frozenset[str] = frozenset({"enbg"})
    takes_pairs: bool = True
    """Whether it can choose activation widths apart from weight widths."""

    def search_space(
        self, graph: LayerGraph, profile: HardwareProfile, config: AllocationConfig
    ) -> SearchSpace:
        """What this method chooses from, for a network on a device."""
        profile = counted_as_in(config.memory_as_in, profile)
        bits = config.bits
        if self.takes_all_widths and bits is None:
            bits = common_widths(graph, profile)
        space = build_search_space(
            graph,
            profile,
            config.budgets,
            bits=(bits,) if isinstance(bits, int) else bits,
            activation_bits=config.activation_bits,
            activation_widths=config.activation_widths,
            pin=config.pin,
            keep_float=config.keep_float,
            ends=config.ends,
            needs_budget=self.keeps_budget,
        )
        kept = () if self.in_float else space.remarks  # they are about widths
        if not config.budgets or self.keeps_budget:
            return replace(space, remarks=kept)
        remark = f"the method {self.name} does not enforce budgets: {', '.join(config.budgets)} may exceed its limit"
        return replace(space, remarks=(*kept, remark))

    def check(self, space: SearchSpace, config: AllocationConfig) -> None:
        """Raise what would otherwise come up after the warm-up: ``InfeasibleBudget``, unknown names."""
        OBJECTIVES.check_name(config.objective)
        if config.objective == "hawq" and self.name == "bmpq":
            raise HwbmpqError(
                "the objective hawq weighs Hessian traces, and bmpq learns bit gradients",
                hint="use the method hawq, or the objective linear or error",
            )
        if any(are_apart(options) for options in space.choices.values()):
            self._check_apart(config.objective)
        if self.keeps_budget:
            check_feasible(space.problem, config.solver)

    def _check_apart(self, objective: str) -> None:
        if not self.takes_pairs:
            raise HwbmpqError(
                f"the method {self.name} has no value for activation widths, and cannot choose them apart",
                hint="use the method bmpq, or another rule for activations (--activation-bits same)",
            )
        if self.name == "bmpq" and objective in WITHOUT_ACTIVATIONS:
            raise without_activations(objective)


def get_method(name: str) -> Method:
    method = METHODS.get(name)
    if not isinstance(method, Method):
        raise wrong_return(
            METHODS, name, f"itself, a {type(method).__name__}", "hwbmpq.search.Method(name=…, decide=…)"
        )
    return method


def checked_decision(method: Method, decision: object, space: SearchSpace) -> Decision:
    """What a method decided, which may be a plug-in's: a candidate for every layer."""
    expected = "a Decision with a candidate for every layer (context.decision(allocation) builds one)"
    if not isinstance(decision, Decision):
        raise wrong_return(METHODS, method.name, decision, expected)
    for name, candidates in space.choices.items():
        width = decision.after.get(name)
        if width not in candidates:
            told = f"{width} for layer {name!r}, whose candidates are {', '.join(map(str, candidates))}"
            raise wrong_return(METHODS, method.name, told, expected)
    return decision


def _bmpq(context: DecisionContext) -> Decision:
    space, objective = context.space, context.objective
    problem = space.problem_for(context.sensitivity, objective)
    best = solve_problem(problem, context.solver, program=space.program)
    return context.decision(_held(best, problem, context), objective=objective)


def _held(best: Allocation, problem: AllocationProblem, context: DecisionContext) -> Allocation:
    """The best widths if moving to them is worth it, by the context's inertia; else those between that are.

    Sensitivities vary from interval to interval. Without inertia, layers that are worth about the same swap their widths at
    each decision, and lose what they were trained for.
    """
    if not context.inertia or best.bits == context.current:
        return best
    values = {
        layer: {
            choice: value - context.inertia * abs(value - options[context.current[layer]])
            for choice, value in options.items()
        }
        for layer, options in problem.values.items()
    }
    held = solve_problem(problem.with_values(values), context.solver, program=context.space.program)
    if held.bits == best.bits:
        return best
    is_proven = best.optimal and held.optimal
    return replace(
        held,
        objective=problem.objective(held.bits),
        bound=best.bound,
        inertia=context.inertia if is_proven else 0.0,
        problem=problem,
    )


def _hawq(context: DecisionContext) -> Decision:
    """Hessian traces with the weights as they are, in float, times squared weight errors."""
    if context.calibration is None:
        raise HwbmpqError(
            "the method hawq measures Hessian traces and needs labelled batches",
            hint="give BitAllocator a calibration function that returns some",
        )
    space = context.space
    traces = measure_sensitivity(
        context.model,
        space.graph,
        context.calibration(),
        method="hessian_trace",
        precisions=space.as_trained(space.widest),
        widths={name: [p.weight_bits for p in options] for name, options in space.choices.items()},
        seed=context.seed,
        loss=context.loss,
    )
    # Away from a minimum the loss may curve downwards in a layer; such a layer is the least in need of bits.
    traces = replace(traces, scores={name: max(score, 0.0) for name, score in traces.scores.items()})
    problem = space.problem_for(traces, "hawq")
    allocation = solve_problem(problem, context.solver, program=space.program)
    return context.decision(allocation, traces, objective="hawq")


def _ad(context: DecisionContext) -> Decision:
    """Activation density: width times density, rounded up to one that the device has; no budget."""
    choices = context.space.choices
    fixed = [name for name, options in choices.items() if len(options) == 1]
    widths = density_widths(context.current, context.densities, fixed=fixed, ties=context.space.graph.ties)
    bits = {name: uniform({name: choices[name]}, width)[name] for name, width in widths.items()}
    densities = Sensitivity(method="activation_density", scores=context.densities)
    return context.decision(_given(context.space, bits, "ad"), densities)


def _hpq(context: DecisionContext) -> Decision:
    widths = context.space.costs.widths
    if len(widths) > 1:
        raise HwbmpqError(
            f"the method hpq has one width for all layers, not {', '.join(map(str, widths))}",
            hint="give bits with one number",
        )
    nothing = Sensitivity(method="none", scores=dict.fromkeys(context.space.choices, 0.0))
    bits = uniform(context.space.choices, widths[0]) if widths else context.space.widest
    return context.decision(_given(context.space, bits, "hpq"), nothing)


def _given(space: SearchSpace, bits: Mapping[str, Precision], solver: str) -> Allocation:
    """An allocation that was not optimised and that no budget limits."""
    return Allocation(
        bits=dict(bits),
        objective=0.0,
        bound=0.0,
        costs={name: table.total(bits) for name, table in space.costs.tables.items()},
        budgets={},
        solver=solver,
        seconds=0.0,
    )


def _random(context: DecisionContext) -> Decision:
    return context.decision(random_fill(*_to_fill(context), seed=context.seed), by_scores=False)


def _greedy(context: DecisionContext) -> Decision:
    return context.decision(greedy_fill(*_to_fill(context), sizes=context.sizes), by_scores=False)


def _reversed(context: DecisionContext) -> Decision:
    return context.decision(reversed_fill(*_to_fill(context), scores=context.sensitivity.scores))


def _to_fill(context: DecisionContext) -> tuple[Any, ...]:
    space = context.space
    return space.choices, space.costs.tables, space.limits, space.graph.ties


for _method in (
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
        takes_pairs=False,
    ),
    Method(
        name="hpq",
        summary="one width for all layers, --bits k, whatever the budget",
        decides="never",
        decide=_hpq,
        keeps_budget=False,
        looks_at=frozenset(),
        takes_pairs=False,
    ),
    Method(
        name="ad",
        summary="activation density, once: width times the share of non-zero activations; no budget",
        decides="once",
        decide=_ad,
        keeps_budget=False,
        takes_all_widths=True,
        looks_at=frozenset({"density"}),
        takes_pairs=False,
    ),
    Method(
        name="hawq",
        summary="Hessian traces and an integer program, once after the warm-up",
        decides="once",
        decide=_hawq,
        is_optimal=True,
        takes_pairs=False,
    ),
    Method(
        name="random",
        summary="control: layers in random order get the widest that still fits",
        decides="once",
        decide=_random,
    ),
    Method(
        name="greedy",
        summary="control: the same, the smallest layers first",
        decides="once",
        decide=_greedy,
    ),
    Method(
        name="reversed",
        summary="control: the same, the least sensitive layers first",
        decides="once",
        decide=_reversed,
    ),
):
    METHODS.add(_method.name, _method)
