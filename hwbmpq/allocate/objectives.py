"""What a width is worth to a layer: sensitivities become the values that the allocator maximises."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from hwbmpq.allocate.problem import AllocationError, Choice, Table
from hwbmpq.registry import OBJECTIVES, wrong_return
from hwbmpq.values import Precision, Sensitivity

Choices = Mapping[str, Sequence[Any]]
"""By layer, in any order."""
Rule = Callable[[Sensitivity, Choices], Table]


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    name: str
    summary: str
    rule: Rule


_TRACES = ("hessian_trace", "file")


def register_objective(name: str) -> Callable[[Rule], Rule]:
    """Make a function of sensitivity and choices known under a name; its docstring's first line is its summary."""
    return OBJECTIVES.register(name)


def objectives() -> dict[str, Objective]:
    """Every objective that is known, by name."""
    found = {}
    for name in OBJECTIVES.names():
        rule = OBJECTIVES.get(name)
        summary = (rule.__doc__ or "").strip().partition("\n")[0]
        found[name] = Objective(name=name, summary=summary, rule=rule)
    return found


def values_for(sensitivity: Sensitivity, choices: Choices, objective: str = "linear") -> Table:
    """The values of every layer's choices, ready for ``solve``."""
    rule: Rule = OBJECTIVES.get(objective)
    missing = [layer for layer in choices if layer not in sensitivity.scores]
    if missing:
        raise AllocationError(
            f"no sensitivity for {len(missing)} of {len(choices)} layers: {', '.join(missing[:5])}",
            hint="was it measured on this network?",
        )
    return _checked(objective, rule(sensitivity, choices), choices)


def _checked(objective: str, values: Any, choices: Choices) -> Table:
    """What an objective returned, which may be a plug-in's."""
    expected = "a dict with a finite number for every layer and choice: {layer: {choice: value}}"
    if not isinstance(values, Mapping):
        raise wrong_return(OBJECTIVES, objective, values, expected, error=AllocationError)
    for layer, options in choices.items():
        by_choice = values.get(layer)
        for choice in options:
            value = by_choice.get(choice) if isinstance(by_choice, Mapping) else None
            if not isinstance(value, Real) or not math.isfinite(value):
                told = f"{value!r} for layer {layer!r} at {choice}"
                raise wrong_return(OBJECTIVES, objective, told, expected, error=AllocationError)
    return values


def weight_bits(choice: Choice) -> int:
    if isinstance(choice, Precision):
        return choice.weight_bits
    return choice[0] if isinstance(choice, tuple) else choice


def _activation_bits(choice: Choice) -> int:
    if isinstance(choice, Precision):
        return choice.activation_bits
    return choice[1] if isinstance(choice, tuple) else 0


WITHOUT_ACTIVATIONS = ("linear", "hawq")
"""Objectives for which one weight width is worth the same whatever the activations."""


def without_activations(objective: str) -> AllocationError:
    return AllocationError(
        f"the objective {objective} values weight widths alone, and cannot choose activation widths apart",
        hint="use the objective error, or a rule for activations (--activation-bits same)",
    )


def _refuse_apart(objective: str, choices: Choices) -> None:
    for options in choices.values():
        if len({weight_bits(choice) for choice in options}) < len(options):
            raise without_activations(objective)


@register_objective("linear")
def linear(sensitivity: Sensitivity, choices: Choices) -> Table:
    """The paper's: sensitivity times the position of the width among the candidates."""
    _refuse_apart("linear", choices)
    free = [options for options in choices.values() if len(options) > 1]
    widths = sorted({weight_bits(choice) for options in free for choice in options})
    return {
        layer: {
            choice: sensitivity.scores[layer] * widths.index(weight_bits(choice)) if len(options) > 1 else 0.0
            for choice in options
        }
        for layer, options in choices.items()
    }


@register_objective("error")
def error(sensitivity: Sensitivity, choices: Choices) -> Table:
    """Expected loss that is saved against the layer's narrowest widths, of weights and of activations."""
    weights = _saved_errors(sensitivity, choices, dict.fromkeys(choices, 1.0))
    return {
        layer: {
            choice: value + _saved_by_activations(sensitivity, layer, choice, choices[layer])
            for choice, value in values.items()
        }
        for layer, values in weights.items()
    }


def _saved_by_activations(
    sensitivity: Sensitivity, layer: str, choice: Choice, options: Sequence[Choice]
) -> float:
    """Nothing where all choices have one activation width, or each weight width its own and no errors are known."""
    widths = {_activation_bits(option) for option in options}
    if len(widths) < 2:
        return 0.0
    errors = sensitivity.activation_errors.get(layer, {})
    missing = sorted(widths - set(errors))
    if not missing:
        return errors[min(widths)] - errors[_activation_bits(choice)]
    if len({weight_bits(option) for option in options}) == len(options):
        return 0.0
    raise AllocationError(
        f"the sensitivity has no error of what layer {layer!r} reads at {', '.join(map(str, missing))} bits, which "
        "choosing activations apart needs",
        hint="measure it (--sensitivity enbg with --activation-bits apart), or use a rule for activations "
        "(--activation-bits same)",
    )


@register_objective("hawq")
def hawq(sensitivity: Sensitivity, choices: Choices) -> Table:
    """HAWQ's: average Hessian trace times the squared weight error that is saved."""
    _refuse_apart("hawq", choices)
    if sensitivity.method not in _TRACES:
        raise AllocationError(
            f"the objective hawq needs Hessian traces; the sensitivity is {sensitivity.method}",
            hint="measure hessian_trace (--sensitivity hessian-trace), or use the objective error",
        )
    return _saved_errors(sensitivity, choices, sensitivity.scores)


def _saved_errors(sensitivity: Sensitivity, choices: Choices, factors: Mapping[str, float]) -> Table:
    values = {}
    for layer, options in choices.items():
        if len(options) < 2:
            values[layer] = dict.fromkeys(options, 0.0)
            continue
        errors = sensitivity.errors.get(layer, {})
        missing = sorted({weight_bits(choice) for choice in options} - set(errors))
        if missing:
            raise AllocationError(
                f"the sensitivity has no error of layer {layer!r} at {', '.join(map(str, missing))} bits, which this "
                "objective needs",
                hint="measure it at these widths (--sensitivity enbg, divergence, weight-error or hessian-trace with --bits), or use "
                "the objective linear",
            )
        worst = errors[weight_bits(min(options))]
        values[layer] = {choice: factors[layer] * (worst - errors[weight_bits(choice)]) for choice in options}
    return values
