"""The methods that measure sensitivity, by name. Importing this file imports no torch."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.values import Sensitivity

if TYPE_CHECKING:
    from hwbmpq.sensitivity.measurement import SensitivityInputs

OUR_METHODS = ("activation_density", "divergence", "enbg", "hessian_trace", "uniform", "weight_error")
"""The methods that come with hwbmpq, each in the file of its name."""

Measure: TypeAlias = "Callable[[SensitivityInputs], Sensitivity]"


@dataclass(frozen=True, kw_only=True, slots=True)
class SensitivityMethod:
    """A way to tell which layers need their bits."""

    name: str
    needs_data: bool
    measure: Measure


_METHODS: dict[str, SensitivityMethod] = {}


def register(name: str, *, needs_data: bool) -> Callable[[Measure], Measure]:
    """Function decorator: make a method known as ``name``."""

    def add(measure: Measure) -> Measure:
        if name in _METHODS:
            owner = _METHODS[name].measure.__module__
            raise HwbmpqError(f"sensitivity method {name!r} is already registered by {owner}")
        _METHODS[name] = SensitivityMethod(name=name, needs_data=needs_data, measure=measure)
        return measure

    return add


def methods() -> Mapping[str, SensitivityMethod]:
    """Every method that is known, by name."""
    _load_ours()
    return dict(sorted(_METHODS.items()))


def get_method(name: str) -> SensitivityMethod:
    """The method of that name, or an error that says what is known."""
    known = methods()
    if name not in known:
        raise UnknownNameError("sensitivity method", name, known, hint=f"use one of {', '.join(known)}")
    return known[name]


@functools.cache
def _load_ours() -> None:
    for name in OUR_METHODS:
        import_module(f"hwbmpq.sensitivity.{name}")
