"""The search space: a network on a device, the candidate widths of its layers, their costs, and the budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hwbmpq.allocate import values_for
from hwbmpq.allocate.ilp import IntegerProgram
from hwbmpq.allocate.problem import AllocationProblem, build_problem
from hwbmpq.costs import NetworkCosts, parse_budget, tabulate
from hwbmpq.errors import HwbmpqError
from hwbmpq.graph import LayerGraph
from hwbmpq.hardware import HardwareProfile, layer_candidates, remarks_on, trained_precisions
from hwbmpq.hardware.widths import APART, FIXED, FREE, are_apart
from hwbmpq.search.pins import FixedLayers, Pins, fixed_layers
from hwbmpq.values import Precision, Sensitivity

Budgets = Mapping[str, str | float]
"""As people say them (``"350KiB"``, ``"12x"``), or numbers in the cost's own unit."""
Choices = Mapping[str, tuple[Precision, ...]]

DEFAULT_RANGE = 0.25
"""Default memory budget, as a share of the way from the smallest to the largest."""


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """A network on a device under budgets: all that an allocation depends on but the sensitivity."""

    graph: LayerGraph
    costs: NetworkCosts
    limits: Mapping[str, float]
    """Budgets in the costs' own units."""
    asked: Mapping[str, str]
    """Budgets as they were said."""
    remarks: tuple[str, ...] = ()

    @property
    def choices(self) -> Choices:
        return self.costs.choices

    @property
    def not_shown_to_hold(self) -> tuple[str, ...]:
        """Budgets on costs of which only a lower bound is known, and why."""
        tables = {name: self.costs.table(name) for name in self.limits}
        return tuple(
            f"the budget on {name} is not shown to hold: {table.no_figure}"
            for name, table in tables.items()
            if table.is_lower_bound
        )

    @property
    def widest(self) -> dict[str, Precision]:
        """Every layer at its widest candidate."""
        return {name: max(options) for name, options in self.choices.items()}

    @property
    def activation_widths(self) -> dict[str, tuple[int, ...]]:
        """By layer: the activation widths to choose from, of layers that have several."""
        found = {
            name: tuple(sorted({p.activation_bits for p in options}))
            for name, options in self.choices.items()
        }
        return {name: widths for name, widths in found.items() if len(widths) > 1}

    @property
    def pairs_apart(self) -> tuple[Precision, ...]:
        """The pairs that layers choose from, if weights and activations are chosen apart; else nothing."""
        apart = [options for options in self.choices.values() if are_apart(options)]
        return tuple(sorted({pair for options in apart for pair in options}))

    @cached_property
    def problem(self) -> AllocationProblem:
        """What is to be solved, with values of zero."""
        zeros = {name: dict.fromkeys(options, 0) for name, options in self.choices.items()}
        return build_problem(zeros, self.costs.tables, self.limits, self.graph.ties)

    @cached_property
    def program(self) -> IntegerProgram:
        """The integer program, kept: from one decision to the next only its objective changes."""
        return IntegerProgram(self.problem)

    def problem_for(self, sensitivity: Sensitivity, objective: str) -> AllocationProblem:
        """What is to be solved, with the values that an objective makes of a sensitivity."""
        return self.problem.valued(values_for(sensitivity, self.choices, objective))

    def as_trained(self, bits: Mapping[str, Precision]) -> dict[str, Precision]:
        """What to quantize the network at so that it computes as the device does with ``bits``."""
        return trained_precisions(self.graph, self.costs.profile, bits)


def build_search_space(
    graph: LayerGraph,
    profile: HardwareProfile,
    budgets: Budgets | None = None,
    *,
    bits: Sequence[int] | None = None,
    activation_bits: str | int = "auto",
    activation_widths: Sequence[int] | None = None,
    pin: Pins | None = None,
    keep_float: Sequence[str] = (),
    ends: str = "fixed",
    needs_budget: bool = True,
) -> SearchSpace:
    """Candidates, costs and budgets of a network on a device; defaults come from the profile.

    ``pin`` gives layers their one width, by patterns of their names (``{"head.*": 8, "stem": "W4A8"}``);
    ``keep_float`` names layers that are not quantized. With ``activation_bits="apart"`` a layer's candidates are all pairs
    that the device runs, activations among ``activation_widths``. With ``ends="free"`` the first and the last layer choose
    too. Without ``needs_budget`` only budgets count that are given.
    """
    if activation_widths is not None and activation_bits != APART:
        raise HwbmpqError(
            "activation widths to choose from go with widths apart",
            hint="--activation-bits apart (activation_bits='apart'), or leave out --activation-widths",
        )
    said: Budgets = budgets or (profile.budgets if needs_budget else {})
    parsed = {name: parse_budget(name, text) for name, text in said.items()}
    wanted = list(dict.fromkeys(["memory", *profile.cost_models, *parsed]))
    fixed = fixed_layers(graph, profile, pin or {}, keep_float)
    known, why = _activation_policy(
        graph, profile, list(parsed) or ["memory"], bits, activation_bits, fixed, activation_widths, ends
    )
    tables = _with_costs(graph, known, wanted)
    limits = {name: tables.limit(budget) for name, budget in parsed.items() if tables.table(name)}
    asked = {name: str(text) for name, text in said.items()}
    remarks = [*([why] if why else []), *fixed.remarks(tables.choices), *_on_ends(ends, profile)]
    if not budgets and limits:
        remarks.append(f"budgets of the profile: {', '.join(f'{n}={t}' for n, t in asked.items())}")
    if not limits and needs_budget:
        limits = {"memory": _default_memory(tables)}
        asked = {"memory": f"{DEFAULT_RANGE:.0%} of the range"}
        remarks.append(
            "no budget was given and the profile has none: memory at its smallest value plus a quarter of the range"
        )
    remarks += [*remarks_on(profile), *_promotions(tables), *_findings(tables)]
    if len(tables.widths) == 1:
        remarks.append(
            f"{tables.label(tables.widths[0])} is the only candidate: there is nothing to allocate"
        )
    return SearchSpace(graph=graph, costs=tables, limits=limits, asked=asked, remarks=tuple(remarks))


def default_choices(graph: LayerGraph, profile: HardwareProfile, bits: Sequence[int] | None) -> Choices:
    """The candidates of a run to which only weight widths are given: activations follow the profile's own budgets."""
    wanted = list(profile.budgets) or ["memory"]
    known = tabulate(graph, profile, costs=wanted, bits=bits).tables
    none = FixedLayers(given={})
    return _activation_policy(graph, profile, list(known) or ["memory"], bits, "auto", none)[0].choices


def _on_ends(ends: str, profile: HardwareProfile) -> list[str]:
    if ends not in (FIXED, FREE):
        raise HwbmpqError(f"ends={ends!r}: the first and the last layer are {FIXED!r} or {FREE!r}")
    given = profile.constraints.first_last
    if ends != FREE or given is None:
        return []
    return [
        f"the first and the last layer stay at {given.w} weights and {given.a} inputs: profile {profile.target} says so"
    ]


def _findings(costs: NetworkCosts) -> list[str]:
    """What a measurement of the device says about widths and time, for this network and in general."""
    table = costs.tables.get("latency")
    is_measured = any(known.overheads is not None for known in costs.profile.tables.values())
    if table is None or not is_measured:
        return []
    return [*table.findings, *costs.profile.caveats]


def _promotions(costs: NetworkCosts) -> list[str]:
    """Widths that the device stores or runs as wider ones."""
    promoted = {pair: None for table in costs.tables.values() for pair in table.promotions.items()}
    target = costs.profile.target
    return [
        f"{asked} is stored and runs as {run} on {target}: it costs as much and rounds more; {_instead(asked, run)}"
        for asked, run in promoted
    ]


def _instead(asked: Precision, run: Precision) -> str:
    if asked.weight_bits != run.weight_bits:
        return f"use {run.weight_bits} bits instead of {asked.weight_bits} (--bits)"
    return f"use {run.activation_bits} bits for activations (--activation-bits)"


def _activation_policy(
    graph: LayerGraph,
    profile: HardwareProfile,
    budgeted: Sequence[str],
    bits: Sequence[int] | None,
    asked: str | int,
    fixed: FixedLayers,
    among: Sequence[int] | None = None,
    ends: str = "fixed",
) -> tuple[NetworkCosts, str]:
    """The candidates with the budgeted costs, and why these candidates.

    ``auto``: the widest activations for all, unless a budget depends on them; then the same as the weights.
    """

    def candidates(policy: str | int) -> Choices:
        free = layer_candidates(
            graph, profile, bits, activation_bits=policy, activation_widths=among, ends=ends
        )
        return {**free, **fixed.choices(graph, profile, policy)}

    def tabulated(choices: Choices) -> NetworkCosts:
        found = tabulate(graph, profile, costs=budgeted, choices=choices)
        return replace(found, ends=tuple(dict.fromkeys([*found.ends, *fixed.given])))

    if asked != "auto":
        found = tabulated(candidates(asked))
        remark = {"same": _not_the_same, APART: _not_apart}.get(str(asked), lambda _: "")
        return found, remark(found.choices)
    widest, same = candidates("widest"), tabulated(candidates("same"))
    if widest == same.choices:
        return same, ""
    wide = tabulated(widest)
    depends = [
        name
        for name in budgeted
        if any(wide.total(name, width) != same.total(name, width) for width in same.widths)
    ]
    if depends:
        return same, f"activations as wide as weights: the budget on {', '.join(depends)} depends on them"
    bits_for_all = wide.typical(wide.widths[-1]).activation_bits
    return wide, f"one activation width for all (A{bits_for_all}): no budget depends on it"


def _with_costs(graph: LayerGraph, known: NetworkCosts, wanted: Sequence[str]) -> NetworkCosts:
    """The costs that are known and those that are not tabulated yet, in the order of ``wanted``."""
    more = [name for name in wanted if name not in known.tables and name not in known.missing]
    if not more:
        return known
    added = tabulate(graph, known.profile, costs=more, choices=known.choices)
    tables, missing = {**known.tables, **added.tables}, {**known.missing, **added.missing}
    return replace(
        known,
        tables={name: tables[name] for name in wanted if name in tables},
        missing={name: missing[name] for name in wanted if name in missing},
    )


def _not_the_same(choices: Choices) -> str:
    """What to say if the device has no activations as narrow as the weights."""
    free = {p for options in choices.values() if len(options) > 1 for p in options}
    wider = sorted(p for p in free if p.activation_bits != p.weight_bits)
    if not wider:
        return ""
    return f"the device has no activations as narrow as the weights: {', '.join(map(str, wider))}"


def _not_apart(choices: Choices) -> str:
    """What to say if the device has no weight width with several activation widths."""
    if any(are_apart(options) for options in choices.values()):
        return ""
    return "the device has one activation width for each weight width: there is nothing to choose apart"


def _default_memory(costs: NetworkCosts) -> float:
    smallest, largest = costs.smallest_and_largest("memory")
    return smallest + DEFAULT_RANGE * (largest - smallest)
