"""Everything that is chosen by name: cost models, sensitivities, objectives, methods, solvers, quantizers, data sources,
tasks, export formats.

A name is known from one of three places: hwbmpq itself (the tables below, imported on first use), a program that calls
``register``, or an installed package that declares an entry point. Listing names imports none of them.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hwbmpq.deprecated import warn
from hwbmpq.errors import CostModelError, HwbmpqError, UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
OURS = "hwbmpq"
"""The provider of what comes with hwbmpq."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration(Generic[T]):
    """What a name stands for, and who registered it."""

    name: str
    entry: T | None
    """None if it could not be loaded."""
    provider: str
    """``hwbmpq``, the module that registered it, or the plug-in's distribution."""
    error: str = ""
    """Why a plug-in's entry cannot be used."""

    @property
    def model(self) -> T | None:
        """The entry, by its name in 0.1.0."""
        warn("Registration.model", "Registration.entry")
        return self.entry


def _nothing_wrong(entry: object) -> str:
    return ""


@dataclass(eq=False)
class Registry(Generic[T]):
    """Entries of one kind by name; a mapping that loads an entry when it is asked for."""

    what: str
    """As messages call an entry: ``cost model``."""
    group: str
    """Of entry points: what a package declares to add an entry."""
    ours: Mapping[str, str] = field(default_factory=dict)
    """Module by name; importing the module registers the name."""
    hint: str = ""
    """What helps somebody who gave an unknown name."""
    check: Callable[[T], str] = _nothing_wrong
    """What is wrong with an entry; empty if nothing is."""
    error: type[HwbmpqError] = HwbmpqError
    """Raised for an entry that cannot be registered or loaded."""
    _known: dict[str, Registration[T]] = field(default_factory=dict, repr=False)

    def add(self, name: str, entry: T, *, provider: str | None = None) -> T:
        """Make an entry known; a name is given once."""
        provider = provider or _provider(entry)
        if name in self._known or (name in self.ours and provider != OURS):
            owner = self._known[name].provider if name in self._known else OURS
            raise self.error(f"{self.what} {name!r} is already registered by {owner}")
        if problem := self.check(entry):
            raise self.error(f"{self.what} {name!r}: {problem}")
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

    def resolve(self, name: str) -> str:
        """A name as it is registered (``weight-error`` is ``weight_error``), or ``UnknownNameError``."""
        known = self.names()
        if name in known:
            return name
        for other in known:
            if other.replace("-", "_") == name.replace("-", "_"):
                return other
        raise UnknownNameError(self.what, name, known, hint=self.hint or f"use one of {', '.join(known)}")

    def check_name(self, name: str) -> None:
        """Raise ``UnknownNameError`` unless the name is known."""
        self.resolve(name)

    def registration(self, name: str) -> Registration[T]:
        """The entry of a name and its provider, loaded."""
        if name not in self._known:
            name = name if name in self.ours else self.resolve(name)
            if name in self.ours:
                import_module(self.ours[name])
            elif name not in self._known:
                self._known[name] = self._loaded(_entry_points(self.group)[name])
        return self._known[name]

    def get(self, name: str) -> T:
        """The entry of a name, or an error that says what is known."""
        found = self.registration(name)
        if found.entry is None:
            raise self.error(f"{self.what} {name!r} of {found.provider} cannot be loaded: {found.error}")
        return found.entry

    def registrations(self) -> dict[str, Registration[T]]:
        """Every entry by name, loaded, broken plug-ins included."""
        return {name: self.registration(name) for name in self.names()}

    def refused(self) -> tuple[Registration[T], ...]:
        """Entries of plug-ins whose name is one of ours."""
        return tuple(
            Registration(name=name, entry=None, provider=_distribution(point), error="the name is ours")
            for name, point in _entry_points(self.group).items()
            if name in self.ours
        )

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __getitem__(self, name: str) -> T:
        return self.get(name)

    def values(self) -> tuple[T, ...]:
        """Every entry that can be used, loaded."""
        return tuple(found.entry for found in self.registrations().values() if found.entry is not None)

    def _loaded(self, point: "EntryPoint") -> Registration[T]:
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


def wrong_return(
    registry: Registry[Any],
    name: str,
    found: object,
    expected: str,
    *,
    error: type[HwbmpqError] | None = None,
) -> HwbmpqError:
    """For an entry that gave back something that cannot be used: who it is, what that was, what it should be.

    ``found`` is the thing itself, or a text about it.
    """
    told = found if isinstance(found, str) else f"{type(found).__name__} {_brief(found)}".rstrip()
    provider = registry.registration(name).provider
    return (error or registry.error)(
        f"{registry.what} {name!r} of {provider} returned {told}; expected {expected}",
        hint="" if provider == OURS else f"this is a defect of {provider}",
    )


def _brief(value: object) -> str:
    text = repr(value) if isinstance(value, (int, float, bool, str, tuple, list, dict)) else ""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_LONGEST = 60


@functools.cache
def _entry_points(group: str) -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # slow to import, and `--help` needs no names

    return {point.name: point for point in entry_points(group=group)}


def _distribution(point: "EntryPoint") -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def _provider(entry: object) -> str:
    """Whose code an entry is; a record belongs to the module of its first function."""
    parts = fields(entry) if is_dataclass(entry) and not isinstance(entry, type) else ()
    functions = (getattr(entry, part.name) for part in parts)
    maker = next((found for found in functions if isinstance(found, FunctionType)), entry)
    module = getattr(maker, "__module__", None) or type(maker).__module__
    return OURS if module.partition(".")[0] == OURS else module


def _has_method(signature: str) -> Callable[[Any], str]:
    """A check of entries: ``signature`` is as somebody would write the method."""

    def check(entry: Any) -> str:
        if callable(getattr(entry, signature.partition("(")[0], None)):
            return ""
        return f"{getattr(entry, '__name__', type(entry).__name__)} has no method {signature}"

    return check


def _is_callable(signature: str) -> Callable[[Any], str]:
    """A check of entries that are functions."""
    return lambda entry: "" if callable(entry) else f"{type(entry).__name__} is not a function {signature}"


def _in(package: str, names: str) -> dict[str, str]:
    """``"a b=c"``: a in the module of its own name, b in the module c."""
    pairs = (name.partition("=") for name in names.split())
    return {name: f"{package}.{module or name}" for name, _, module in pairs}


COST_MODELS: Registry[type] = Registry(
    "cost model",
    "hwbmpq.cost_models",
    _in(
        "hwbmpq.costs",
        "memory=quantities flash=quantities ram=quantities latency=quantities energy=quantities "
        "weight_memory=quantities stored_memory=stored "
        "activation_memory=activations layer_working_set=activations largest_input=activations bops=analytic mac_energy=analytic "
        "energy_per_op=analytic power_time=analytic roofline=analytic throughput_table=analytic lookup_table=lookup "
        "ne16=accelerators gap8=accelerators bit_serial=accelerators bit_fusion=accelerators",
    ),
    hint="`hwbmpq costs list` shows them all",
    check=_has_method("tabulate(layers, profile, precisions)"),
    error=CostModelError,
)
SENSITIVITIES: Registry[Any] = Registry(
    "sensitivity",
    "hwbmpq.sensitivities",
    _in(
        "hwbmpq.sensitivity",
        "enbg divergence=alternatives weight_error=alternatives hessian_trace=alternatives "
        "activation_density=density_meter uniform=alternatives",
    ),
    check=_has_method("measure(inputs)"),
)
OBJECTIVES: Registry[Any] = Registry(
    "objective",
    "hwbmpq.objectives",
    dict.fromkeys(("linear", "error", "hawq"), "hwbmpq.allocate.objectives"),
    check=_is_callable("of (sensitivity, choices)"),
)
SOLVERS: Registry[Any] = Registry(
    "solver",
    "hwbmpq.solvers",
    _in("hwbmpq.allocate", "highs glpk"),
    check=_has_method("open(model)"),
)
METHODS: Registry[Any] = Registry(
    "method",
    "hwbmpq.methods",
    dict.fromkeys("bmpq fp32 hpq ad hawq random greedy reversed".split(), "hwbmpq.search.methods"),
    check=_has_method("decide(context)"),
)
QUANTIZERS: Registry[Any] = Registry(
    "weight quantizer",
    "hwbmpq.quantizers",
    {
        **dict.fromkeys(("paper", "symmetric"), "hwbmpq.quant.quantizers"),
        "learned": "hwbmpq.quant.learned",
    },
    check=_has_method("codes_and_scale(weight, bits)"),
)
DATA_SOURCES: Registry[Any] = Registry(
    "data source",
    "hwbmpq.data_sources",
    _in(
        "hwbmpq.data",
        "digits=bundled cifar10=torchvision_sets cifar100=torchvision_sets tinyimagenet=folder "
        "fashion-mnist=torchvision_sets folder npz file=own_loaders fake=bundled",
    ),
    check=_has_method("open(request)"),
)
TASKS: Registry[Any] = Registry(
    "task",
    "hwbmpq.tasks",
    _in("hwbmpq.tasks", "classification regression segmentation"),
    hint="use classification, regression, segmentation or file:PATH.py:NAME, a hwbmpq.tasks.Task of your own",
    check=_has_method("loss(outputs, targets)"),
)
EXPORT_FORMATS: Registry[Any] = Registry(
    "export format",
    "hwbmpq.export_formats",
    dict.fromkeys(("onnx", "packed", "qonnx"), "hwbmpq.export.deployment"),
    check=_has_method("write(network, data, settings, path)"),
)
