"""Everything that is chosen by name: cost models, sensitivities, objectives, methods, solvers, quantizers, data sources,
export formats.

A name is known from one of three places: hwbmpq itself (the tables below, imported on first use), a program that calls
``register``, or an installed package that declares an entry point. Listing names imports none of them.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from hwbmpq.errors import HwbmpqError, UnknownNameError

T = TypeVar("T")
OURS = "hwbmpq"
"""The provider of what comes with hwbmpq."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration(Generic[T]):
    """What a name stands for, and who says so."""

    name: str
    entry: T | None
    """None if it could not be loaded."""
    provider: str
    """``hwbmpq``, the module that registered it, or the plug-in's distribution."""
    error: str = ""
    """Why a plug-in's entry cannot be used."""


@dataclass(eq=False)
class Registry(Generic[T]):
    """Entries of one kind by name."""

    what: str
    """As messages call an entry: ``cost model``."""
    group: str
    """Of entry points: what a package declares to add an entry."""
    ours: Mapping[str, str] = field(default_factory=dict)
    """Module by name; importing the module registers the name."""
    hint: str = ""
    """What helps somebody who gave an unknown name."""
    check: Callable[[T], str] = field(default=lambda entry: "")
    """What is wrong with an entry; empty if nothing is."""
    _known: dict[str, Registration[T]] = field(default_factory=dict, repr=False)

    def add(self, name: str, entry: T, *, provider: str | None = None) -> T:
        """Make an entry known; a name is given once."""
        provider = provider or _provider(entry)
        if name in self._known or (name in self.ours and provider != OURS):
            owner = self._known[name].provider if name in self._known else OURS
            raise HwbmpqError(f"{self.what} {name!r} is already registered by {owner}")
        if problem := self.check(entry):
            raise HwbmpqError(f"{self.what} {name!r}: {problem}")
        self._known[name] = Registration(name=name, entry=entry, provider=provider)
        return entry

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: make a class or function known."""
        return lambda entry: self.add(name, entry)

    def remove(self, name: str) -> None:
        """Forget an entry that a program registered."""
        del self._known[name]

    def names(self) -> tuple[str, ...]:
        """All names, ours first and in our order; nothing is imported for it."""
        return tuple(dict.fromkeys([*self.ours, *self._known, *_entry_points(self.group)]))

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def check_name(self, name: str) -> None:
        """Raise ``UnknownNameError`` unless the name is known."""
        if name not in self.names():
            hint = self.hint or f"use one of {', '.join(self.names())}"
            raise UnknownNameError(self.what, name, self.names(), hint=hint)

    def registration(self, name: str) -> Registration[T]:
        """The entry of a name and its provider, loaded."""
        self.check_name(name)
        if name not in self._known and name in self.ours:
            import_module(self.ours[name])
        if name not in self._known:
            self._known[name] = self._loaded(_entry_points(self.group)[name])
        return self._known[name]

    def get(self, name: str) -> T:
        """The entry of a name, or an error that says what is known."""
        found = self.registration(name)
        if found.entry is None:
            raise HwbmpqError(f"{self.what} {name!r} of {found.provider} cannot be loaded: {found.error}")
        return found.entry

    def items(self) -> dict[str, Registration[T]]:
        """Every entry by name, loaded, broken plug-ins included."""
        return {name: self.registration(name) for name in self.names()}

    def refused(self) -> tuple[Registration[T], ...]:
        """Entries of plug-ins whose name is one of ours."""
        return tuple(
            Registration(name=name, entry=None, provider=_distribution(point), error="the name is ours")
            for name, point in _entry_points(self.group).items()
            if name in self.ours
        )

    def _loaded(self, point: EntryPoint) -> Registration[T]:
        """A plug-in must not break the rest, whatever it does while it loads."""
        try:
            entry = point.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            if point.name in self._known:  # the module registered the name itself
                return self._known[point.name]
            reason = self.check(entry)
        usable = None if reason else entry
        return Registration(name=point.name, entry=usable, provider=_distribution(point), error=reason)


@functools.cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def _provider(entry: object) -> str:
    module = getattr(entry, "__module__", None) or type(entry).__module__
    return OURS if module.partition(".")[0] == OURS else module


def _in(package: str, names: str) -> dict[str, str]:
    """``"a b=c"``: a in the module of its own name, b in the module c."""
    pairs = (name.partition("=") for name in names.split())
    return {name: f"{package}.{module or name}" for name, _, module in pairs}


COST_MODELS: Registry[type] = Registry(
    "cost model",
    "hwbmpq.cost_models",
    _in(
        "hwbmpq.costs",
        "memory=quantities flash=quantities ram=quantities latency=quantities energy=quantities weight_memory=memory "
        "activation_memory=activations layer_working_set=activations bops mac_energy=energy energy_per_op=energy "
        "power_time=energy roofline=latency throughput_table=latency lookup_table=lookup ne16 gap8 bit_serial=arrays "
        "bit_fusion=arrays",
    ),
    hint="`hwbmpq costs list` shows them all",
)
SENSITIVITIES: Registry[Any] = Registry(
    "sensitivity",
    "hwbmpq.sensitivities",
    _in("hwbmpq.sensitivity", "enbg divergence weight_error hessian_trace activation_density uniform"),
)
OBJECTIVES: Registry[Any] = Registry(
    "objective",
    "hwbmpq.objectives",
    dict.fromkeys(("linear", "error", "hawq"), "hwbmpq.allocate.objectives"),
)
SOLVERS: Registry[Any] = Registry("solver", "hwbmpq.solvers", _in("hwbmpq.allocate", "highs glpk"))
METHODS: Registry[Any] = Registry(
    "method",
    "hwbmpq.methods",
    dict.fromkeys("bmpq fp32 hpq ad hawq random greedy reversed".split(), "hwbmpq.search.methods"),
)
QUANTIZERS: Registry[Any] = Registry(
    "weight quantizer",
    "hwbmpq.quantizers",
    dict.fromkeys(("paper", "symmetric"), "hwbmpq.quant.weight_quantizer"),
)
DATA_SOURCES: Registry[Any] = Registry(
    "data source",
    "hwbmpq.data_sources",
    _in(
        "hwbmpq.data",
        "digits=bundled cifar10=torchvision_sets cifar100=torchvision_sets tinyimagenet=folder "
        "fashion-mnist=torchvision_sets folder npz fake=bundled",
    ),
)
EXPORT_FORMATS: Registry[Any] = Registry(
    "export format",
    "hwbmpq.export_formats",
    dict.fromkeys(("onnx", "packed", "qonnx"), "hwbmpq.export.formats"),
)
