"""The cost models by name: ours, those registered in a program, and those of installed plug-ins."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from hwbmpq.costs.model import CostModel
from hwbmpq.errors import HwbmpqError, UnknownNameError

ENTRY_POINT_GROUP = "hwbmpq.cost_models"
_OURS = (
    "memory",
    "activations",
    "bops",
    "energy",
    "latency",
    "lookup",
    "arrays",
    "ne16",
    "gap8",
    "quantities",
)

M = TypeVar("M", bound=type)


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """A cost model and where it comes from."""

    name: str
    model: Callable[..., CostModel] | None
    provider: str
    """``hwbmpq``, the module that registered it, or the plug-in's distribution."""
    error: str = ""
    """Why a plug-in's model cannot be used."""


_MODELS: dict[str, Registration] = {}
_REFUSED: list[Registration] = []


class CostModelError(HwbmpqError):
    """A cost model that cannot be used as asked."""


def register(name: str) -> Callable[[M], M]:
    """Class decorator: make a cost model known as ``name``."""

    def add(model: M) -> M:
        if name in _MODELS:
            raise CostModelError(f"cost model {name!r} is already registered by {_MODELS[name].provider}")
        if not callable(getattr(model, "tabulate", None)):
            raise CostModelError(
                f"cost model {name!r}: {model.__name__} has no method tabulate(layers, profile, precisions)"
            )
        model.registered_name = name  # type: ignore[attr-defined]
        provider = "hwbmpq" if model.__module__.startswith("hwbmpq.costs.") else model.__module__
        _MODELS[name] = Registration(
            name=name, model=cast(Callable[..., CostModel], model), provider=provider
        )
        return model

    return add


def cost_models() -> Mapping[str, Registration]:
    """Every cost model that is known, broken plug-ins included, by name."""
    _load_ours()
    _load_plugins()
    return dict(sorted(_MODELS.items()))


def refused_plugins() -> tuple[Registration, ...]:
    """Models of plug-ins whose name is taken."""
    cost_models()
    return tuple(_REFUSED)


def get_cost_model(name: str, **options: Any) -> CostModel:
    """The cost model of that name with its options, or an error that says what is known."""
    known = cost_models()
    if name not in known:
        raise UnknownNameError("cost model", name, known, hint="`hwbmpq costs list` shows them all")
    registration = known[name]
    if registration.model is None:
        raise CostModelError(
            f"cost model {name!r} of {registration.provider} cannot be loaded: {registration.error}"
        )
    try:
        return registration.model(**options)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {_said(item)}" for item in error.errors(include_url=False)
        )
        allowed = ", ".join(getattr(registration.model, "model_fields", ())) or "none"
        raise CostModelError(f"cost model {name!r}: {problems} (its options: {allowed})") from None
    except TypeError as error:
        raise CostModelError(f"cost model {name!r}: {error}") from None


def _said(item: Any) -> str:
    return "no such option" if item["type"] == "extra_forbidden" else str(item["msg"])


@functools.cache
def _load_ours() -> None:
    for module in _OURS:
        import_module(f"hwbmpq.costs.{module}")


@functools.cache
def _load_plugins() -> None:
    for point in entry_points(group=ENTRY_POINT_GROUP):
        provider = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        _MODELS[point.name] = _load_plugin(point, provider)


def _load_plugin(point: EntryPoint, provider: str) -> Registration:
    """A plug-in must not break the rest, whatever it does while it loads."""
    existing = _MODELS.get(point.name)
    if existing is not None and existing.provider == "hwbmpq":
        _REFUSED.append(
            Registration(name=point.name, model=None, provider=provider, error="the name is ours")
        )
        return existing
    try:
        model = point.load()  # a module that registers the name itself is fine
    except Exception as error:
        model, reason = None, f"{type(error).__name__}: {error}"
    else:
        reason = "" if callable(getattr(model, "tabulate", None)) else "it has no method tabulate"
    if existing is not None:
        return existing
    if reason:
        return Registration(name=point.name, model=None, provider=provider, error=reason)
    if "registered_name" not in vars(model):  # a subclass of one of ours has a name of its own
        model.registered_name = point.name
    return Registration(name=point.name, model=model, provider=provider)
