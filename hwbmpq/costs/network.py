"""The cost tables of one network on one device, and why some are missing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hwbmpq.costs.registry import get_cost_model
from hwbmpq.costs.table import CostRow, CostTable, Number
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.widths import layer_candidates, op_of, uniform, weight_widths
from hwbmpq.values import Layer, Precision

_ALWAYS = ("memory", "activation_memory")
_WITHOUT_A_DEVICE = "bops"


@dataclass(frozen=True, kw_only=True)
class NetworkCosts:
    """What a network costs on a device, at each weight width."""

    profile: HardwareProfile
    choices: Mapping[str, tuple[Precision, ...]]
    tables: Mapping[str, CostTable]
    missing: Mapping[str, str]
    """Costs that cannot be had, and why."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Weight widths of the layers that have a choice, ascending."""
        free = [precisions for precisions in self.choices.values() if len(precisions) > 1]
        return tuple(
            sorted({p.weight_bits for precisions in free or self.choices.values() for p in precisions})
        )

    def total(self, cost: str, weight_bits: int) -> Number:
        """With every layer at one weight width, the ends at their own."""
        return self.tables[cost].total(uniform(self.choices, weight_bits))

    def peak(self, cost: str, weight_bits: int) -> CostRow:
        """The sum that decides then, for a cost that has several."""
        return self.tables[cost].peak(uniform(self.choices, weight_bits))

    def summary(self) -> dict[str, Any]:
        """Totals by cost and width."""
        return {
            "totals": {
                name: {"unit": table.unit, **{f"W{w}": self.total(name, w) for w in self.widths}}
                for name, table in self.tables.items()
            },
            "missing": dict(self.missing),
            "caveats": list(self.profile.caveats),
        }

    def to_dict(self) -> dict[str, Any]:
        return {**self.summary(), "tables": {name: table.to_dict() for name, table in self.tables.items()}}


def tabulate(
    layers: Iterable[Layer],
    profile: HardwareProfile,
    *,
    costs: Sequence[str] | None = None,
    bits: Sequence[int] | None = None,
    activation_bits: str | int = "same",
) -> NetworkCosts:
    """What a network costs on a device.

    ``layers`` is the graph of ``hwbmpq.describe`` (a list of layers will do for costs that look at one layer at a
    time). ``costs``: names of cost models; by default memory, activation memory and what the profile has models
    for. ``bits``: weight widths; by default all integer widths that the device has for all of these layers.
    """
    wanted = list(costs or [])
    if not wanted:
        wanted = [*_ALWAYS, *(name for name in profile.cost_models if name not in _ALWAYS)]
        if profile.device_class == "abstract":
            wanted.append(_WITHOUT_A_DEVICE)
    widths = bits if bits is not None else _all_widths(layers, profile)
    choices = layer_candidates(layers, profile, widths, activation_bits=activation_bits)
    tables, missing = {}, {}
    for name in wanted:
        try:
            tables[name] = get_cost_model(name).tabulate(layers, profile, choices)
        except UnknownNameError:
            raise
        except HwbmpqError as error:
            missing[name] = str(error)
    return NetworkCosts(profile=profile, choices=choices, tables=tables, missing=missing)


def _all_widths(layers: Iterable[Layer], profile: HardwareProfile) -> tuple[int, ...] | None:
    """The integer widths that all of the network's operations have."""
    ops = {op_of(layer) for layer in layers if not layer.is_end} or {"*"}
    shared = set.intersection(*(set(weight_widths(profile, op)) for op in ops))
    return tuple(sorted(shared)) or None
