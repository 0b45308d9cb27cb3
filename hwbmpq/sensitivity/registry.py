"""The methods that measure sensitivity, by name. Importing this file does not import torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hwbmpq.registry import SENSITIVITIES, wrong_return
from hwbmpq.values import Layer, Sensitivity

if TYPE_CHECKING:
    from hwbmpq.sensitivity.measure import SensitivityInputs

OUR_METHODS = tuple(sorted(SENSITIVITIES.ours))
"""The methods that come with hwbmpq."""

Measure: TypeAlias = "Callable[[SensitivityInputs], Sensitivity]"


@dataclass(frozen=True, kw_only=True, slots=True)
class SensitivityMethod:
    """A way to tell which layers need their bits."""

    name: str
    needs_data: bool
    """Whether it uses labelled images."""
    needs_weights: bool = True
    """Whether it uses the values of the weights."""
    measure: Measure


def register(name: str, *, needs_data: bool, needs_weights: bool = True) -> Callable[[Measure], Measure]:
    """Function decorator: make a method known as ``name``."""

    def add(measure: Measure) -> Measure:
        SENSITIVITIES.add(
            name,
            SensitivityMethod(name=name, needs_data=needs_data, needs_weights=needs_weights, measure=measure),
        )
        return measure

    return add


def methods() -> Mapping[str, SensitivityMethod]:
    """Every method that can be used, by name."""
    found = sorted(SENSITIVITIES.registrations().items())
    return {name: known.entry for name, known in found if known.entry is not None}


def checked_result(method: str, found: object, layers: Sequence[Layer]) -> Sensitivity:
    """What a method returned, which may be a plug-in's."""
    expected = "a Sensitivity with a finite score of every layer, at least 0"
    if not isinstance(found, Sensitivity):
        raise wrong_return(SENSITIVITIES, method, found, expected)
    for layer in layers:
        if layer.name not in found.scores:
            raise wrong_return(SENSITIVITIES, method, f"no score of layer {layer.name!r}", expected)
        score = found.scores[layer.name]
        if not isinstance(score, (int, float)) or not math.isfinite(score):
            raise wrong_return(
                SENSITIVITIES, method, f"the score {score!r} of layer {layer.name!r}", expected
            )
    return found
