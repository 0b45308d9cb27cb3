"""The costs of one network on one device, and a check of the profile's choice of cost models."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hwbmpq.costs.budgets import Budget as Budget
from hwbmpq.costs.budgets import BudgetError as BudgetError
from hwbmpq.costs.budgets import parse_budget as parse_budget
from hwbmpq.costs.check import checked_table
from hwbmpq.costs.model import CostModelError, get_cost_model
from hwbmpq.costs.quantities import chosen_model
from hwbmpq.costs.table import CostRow, CostTable, Number
from hwbmpq.errors import HwbmpqError, UnknownNameError, UnsupportedPrecisionError
from hwbmpq.hardware.document import ProfileError, ProfileProblem
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.remarks import remarks_on
from hwbmpq.hardware.widths import candidates, common_widths, layer_candidates, uniform, weight_widths
from hwbmpq.values import FLOAT_BITS, Layer, Precision

_ALWAYS = ("memory", "activation_memory")
_WITHOUT_A_DEVICE = "bops"


@dataclass(frozen=True, kw_only=True)
class NetworkCosts:
    """What a network costs on a device, at each weight width."""

    profile: HardwareProfile
    choices: Mapping[str, tuple[Precision, ...]]
    ends: tuple[str, ...]
    """Layers whose width is fixed."""
    tables: Mapping[str, CostTable]
    missing: Mapping[str, HwbmpqError]
    """Costs that cannot be had, and why."""
    layer_weights: Mapping[str, int] = field(default_factory=dict)
    """How many weights each layer owns."""
    covered_macs: float = 1.0
    """Share of the network's MACs that its layers have; the others are computed in float."""

    @property
    def weights(self) -> int:
        """Weights of all layers."""
        return sum(self.layer_weights.values())

    @property
    def widths(self) -> tuple[int, ...]:
        """Weight widths that the layers between the ends may take, ascending."""
        return tuple(sorted({p.weight_bits for precisions in self._free.values() for p in precisions}))

    @property
    def _free(self) -> Mapping[str, tuple[Precision, ...]]:
        """The choices of the layers between the ends, or of all if there are only ends."""
        return {name: c for name, c in self.choices.items() if name not in self.ends} or self.choices

    def typical(self, weight_bits: int) -> Precision:
        """What most layers have with every layer at one weight width."""
        return _most_common(list(uniform(self._free, weight_bits).values()))

    def label(self, weight_bits: int) -> str:
        """``W4A8``: a weight width with the activation width that most layers have then."""
        pairs = [p for p in uniform(self._free, weight_bits).values() if p.weight_bits == weight_bits]
        return str(_most_common(pairs)) if pairs else f"W{weight_bits}"

    def table(self, cost: str) -> CostTable:
        """One cost; raises what was wrong if it cannot be had."""
        if cost in self.missing:
            raise self.missing[cost]
        if cost not in self.tables:
            raise UnknownNameError("tabulated cost", cost, self.tables)
        return self.tables[cost]

    def total(self, cost: str, weight_bits: int) -> Number:
        """With every layer at one weight width (or its next wider one, if it does not have that), the ends at
        their own."""
        if weight_bits not in self.widths:
            raise UnsupportedPrecisionError(
                f"no {weight_bits}-bit weights here; there are {', '.join(map(str, self.widths))}"
            )
        return self.table(cost).total(uniform(self.choices, weight_bits))

    def smallest_and_largest(self, cost: str) -> tuple[Number, Number]:
        """With every layer at its narrowest, and at its widest."""
        narrow, wide = (
            self.table(cost).total({name: pick(options) for name, options in self.choices.items()})
            for pick in (min, max)
        )
        return narrow, wide

    def limit(self, budget: Budget) -> float:
        """What a budget allows this network, in the unit of its cost."""
        if budget.amount is not None:
            return budget.amount
        if budget.share is not None:
            return budget.share * self.smallest_and_largest(budget.cost)[1]
        if budget.bits_per_weight is not None:
            return budget.bits_per_weight * self.weights + self._beside_weights(budget.cost)
        assert budget.ratio is not None
        in_float = self.table(budget.cost).float_total
        # A plug-in's own memory does not say what it is in float: the weights are its measure.
        return (FLOAT_BITS * self.weights if in_float is None else in_float) / budget.ratio

    def _beside_weights(self, cost: str) -> Number:
        """What a memory counts whatever the widths: scales, biases, norms, what stays in float."""
        widest = {name: max(options) for name, options in self.choices.items()}
        weights = sum(self.layer_weights[name] * p.weight_bits for name, p in widest.items())
        return max(0, self.table(cost).total(widest) - weights)

    def peak(self, cost: str, weight_bits: int) -> CostRow:
        """The sum that decides then, for a cost that has several."""
        return self.tables[cost].peak(uniform(self.choices, weight_bits))

    def summary(self) -> dict[str, Any]:
        """Totals by cost and pair of widths; also by weight width alone, as 0.1.0 had them."""
        return {
            "totals": {
                name: {
                    "unit": table.unit,
                    **{key: self.total(name, w) for w in self.widths for key in (self.label(w), f"W{w}")},
                }
                for name, table in self.tables.items()
            },
            "notes": {name: list(table.notes) for name, table in self.tables.items()},
            "rests_on": sorted(
                {use.path for table in self.tables.values() for use in table.doubtful_figures}
            ),
            "covered_macs": self.covered_macs,
            "uncosted": {
                name: [asdict(entry) for entry in table.uncosted]
                for name, table in self.tables.items()
                if table.is_lower_bound
            },
            "leaves_out": {name: t.leaves_out for name, t in self.tables.items() if t.leaves_out},
            "missing": {name: str(error) for name, error in self.missing.items()},
            "caveats": list(self.profile.caveats),
        }

    def to_dict(self) -> dict[str, Any]:
        return {**self.summary(), "tables": {name: table.to_dict() for name, table in self.tables.items()}}


def _most_common(pairs: Sequence[Precision]) -> Precision:
    """The pair of most layers; weight-only ones, which read floats, count only where no other layer does."""
    rounded = [pair for pair in pairs if pair.activation_bits != FLOAT_BITS]
    return Counter(rounded or pairs).most_common(1)[0][0]


def tabulate(
    layers: Collection[Layer],
    profile: HardwareProfile,
    *,
    costs: str | Sequence[str] | None = None,
    bits: Sequence[int] | None = None,
    activation_bits: str | int = "same",
    choices: Mapping[str, tuple[Precision, ...]] | None = None,
) -> NetworkCosts:
    """What a network costs on a device.

    ``layers`` is the graph of ``hwbmpq.describe`` (a list of layers will do for costs that look at one layer at a
    time). ``costs``: names of cost models; by default memory, activation memory and what the profile has models
    for. ``bits``: weight widths; by default all integer widths that the device has for all of these layers.
    ``choices`` gives the precisions by layer instead.
    """
    wanted = [costs] if isinstance(costs, str) else list(costs or [])
    if not wanted:
        wanted = [*_ALWAYS, *(name for name in profile.cost_models if name not in _ALWAYS)]
        if profile.device_class == "abstract":
            wanted.append(_WITHOUT_A_DEVICE)
    if choices is None:
        widths = bits if bits is not None else common_widths(layers, profile)
        choices = layer_candidates(layers, profile, widths, activation_bits=activation_bits)
    tables: dict[str, CostTable] = {}
    missing: dict[str, HwbmpqError] = {}
    for name in wanted:
        try:
            table = checked_table(name, get_cost_model(name).tabulate(layers, profile, choices), choices)
            tables[name] = replace(table, name=name)
        except UnknownNameError:
            raise
        except HwbmpqError as error:
            missing[name] = error
        except Exception as error:  # a plug-in's own defect must not take the other costs along
            missing[name] = CostModelError(f"cost model {name!r} failed: {type(error).__name__}: {error}")
    layer_macs = sum(layer.macs for layer in layers)
    return NetworkCosts(
        profile=profile,
        choices=choices,
        ends=tuple(layer.name for layer in layers if layer.is_end),
        tables=tables,
        missing=missing,
        layer_weights={layer.name: layer.parameters for layer in layers},
        covered_macs=layer_macs / getattr(layers, "macs", layer_macs) if layer_macs else 1.0,
    )


_PROBE = Layer(
    name="3x3 convolution",
    kind="conv2d",
    weight_shape=(32, 32, 3, 3),
    parameters=9216,
    bias_parameters=0,
    macs=9216 * 64,
    input_shape=(1, 32, 8, 8),
    output_shape=(1, 32, 8, 8),
    in_channels=32,
    out_channels=32,
    kernel_size=(3, 3),
    stride=(1, 1),
)


def check_cost_models(profile: HardwareProfile) -> tuple[str, ...]:
    """Remarks on a profile: probable mistakes, costs that it cannot answer yet, and its assumed and uncertain figures.

    Unknown models, options and budgets raise ``ProfileError``. A missing figure is not a fault of the file.
    """
    problems = []
    for quantity in profile.cost_models:
        try:
            chosen_model(quantity, profile)
        except HwbmpqError as error:
            problems.append(_problem(profile, "cost_models", quantity, str(error)))
    for name, budget in profile.budgets.items():
        try:
            parse_budget(name, str(budget))  # as text: in a file, a bare number has no unit
        except HwbmpqError as error:
            problems.append(_problem(profile, "budgets", name, str(error)))
    if problems:
        raise ProfileError(problems)
    doubtful = [path for path, figure, _ in profile.figures() if figure.is_doubtful]
    return (
        *remarks_on(profile),
        *unanswered_costs(profile),
        *([f"assumed or uncertain: {', '.join(doubtful)}"] if doubtful else []),
    )


def unanswered_costs(profile: HardwareProfile) -> tuple[str, ...]:
    """Why the profile's cost models cannot cost a 3x3 convolution, if they cannot."""
    remarks = []
    for quantity in () if profile.abstract else profile.cost_models:
        model = chosen_model(quantity, profile)
        try:
            precisions = candidates(profile, weight_widths(profile, _PROBE.kind), op=_PROBE.kind)
            model.tabulate([_PROBE], profile, precisions)
        except HwbmpqError as error:
            remarks.append(f"{quantity}: {error}")
    return tuple(remarks)


def _problem(profile: HardwareProfile, block: str, key: str, message: str) -> ProfileProblem:
    return ProfileProblem(place=profile.place(block, key), field=f"{block}.{key}", message=message)
