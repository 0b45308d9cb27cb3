"""Costs by formula from a profile's figures: bit operations, latency from peak rates, and energy."""

import math
from collections.abc import Callable
from math import prod
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hwbmpq.costs.accelerators import fusion_factor
from hwbmpq.costs.geometry import as_gemm, traffic_bits
from hwbmpq.costs.model import (
    MS_PER_SECOND,
    CostOptions,
    FigureLog,
    LayerCost,
    LayerwiseCost,
    register,
)
from hwbmpq.costs.quantities import chosen_model
from hwbmpq.costs.table import Candidates, CostTable, FigureUse, Layers, Number
from hwbmpq.errors import CostModelError, UnsupportedPrecisionError
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import MemoryLevel, WidthPair
from hwbmpq.hardware.widths import op_of
from hwbmpq.values import Layer


@register("bops")
class BitOperations(LayerwiseCost):
    """Bit operations, MACs times both widths: a proxy, not the time or energy of a real device."""

    unit: ClassVar[str] = "bit-op"
    counts_work: ClassVar[bool] = True
    is_proxy: ClassVar[bool] = True
    formula: ClassVar[str] = "MACs * weight_bits * activation_bits"

    def per_layer(self, figures: FigureLog) -> LayerCost:
        return lambda layer, pair: layer.macs * pair.weight.bits * pair.activation.bits

    def notes(self, profile: HardwareProfile) -> tuple[str, ...]:
        return ("bit operations are a proxy: real devices gain less from fewer bits",)


class _MemoryTraffic(LayerwiseCost):
    """Counts what moves between the compute units and the memories that store weights and activations."""

    counts_work: ClassVar[bool] = True

    weights_in: str | None = None
    """The memory that stores the weights (default: the last that holds them)."""
    activations_in: str | None = None
    """The memory that stores the activations (default: the last that holds them)."""

    def levels(self, figures: FigureLog) -> tuple[MemoryLevel, MemoryLevel]:
        weights = figures.level("weights", self.weights_in)
        return weights, figures.level("activations", self.activations_in)


@register("throughput_table")
class ThroughputTable(LayerwiseCost):
    """Milliseconds from the MACs per cycle that the profile lists per operation and widths."""

    unit: ClassVar[str] = "ms"
    counts_work: ClassVar[bool] = True
    formula: ClassVar[str] = "MACs / (efficiency * units * macs_per_cycle(op, w, a) * clock), or / macs_per_s"
    needs: ClassVar[tuple[str, ...]] = ("clock.core_hz (for macs_per_cycle)", "compute.table")

    def per_layer(self, figures: FigureLog) -> LayerCost:
        units = figures.profile.compute.units * figures.efficiency()
        rates: dict[tuple[str, tuple[int, ...], WidthPair], float] = {}

        def cost(layer: Layer, pair: WidthPair) -> Number:
            key = (op_of(layer), layer.kernel_size, pair)
            if key not in rates:
                field, rate = figures.row("compute", *key)
                rates[key] = rate * (figures.need("clock", "core_hz") if field == "macs_per_cycle" else 1.0)
            return layer.macs / (rates[key] * units) * MS_PER_SECOND

        return cost


@register("roofline")
class Roofline(_MemoryTraffic, ThroughputTable):
    """Milliseconds, the longer of computing and of moving weights and activations.

    Each memory that holds weights or activations moves its share at its bandwidth, all at the same time. A
    memory that is ``on_chip`` keeps up with the compute units.
    """

    formula: ClassVar[str] = (
        "max(MACs / (efficiency * units * macs_per_cycle * clock), bytes / bandwidth of each memory); "
        "bytes = weights * w / 8 + (inputs + outputs) * a / 8"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "clock.core_hz (for macs_per_cycle)",
        "compute.table",
        "memory that holds weights, activations: bandwidth_bytes_per_s or bytes_per_cycle",
    )

    def per_layer(self, figures: FigureLog) -> LayerCost:
        compute = super().per_layer(figures)
        weights, activations = self.levels(figures)
        weight_rate = _bytes_per_second(figures, weights)
        activation_rate = _bytes_per_second(figures, activations)

        def cost(layer: Layer, pair: WidthPair) -> Number:
            weight_bits, activation_bits = traffic_bits(layer, pair.weight.bits, pair.activation.bits)
            times = (weight_bits / 8 / weight_rate, activation_bits / 8 / activation_rate)
            moving = sum(times) if weights is activations else max(times)
            return max(compute(layer, pair), moving * MS_PER_SECOND)

        return cost

    def notes(self, profile: HardwareProfile) -> tuple[str, ...]:
        efficiency = profile.compute.efficiency
        is_measured = any(
            "measured" in (row.kind, row.macs_per_cycle and row.macs_per_cycle.kind)
            for row in profile.compute.table
        )
        if not is_measured and (efficiency is None or efficiency.value == 1):
            return ("a peak roofline: real kernels are slower",)
        return ()


def _bytes_per_second(figures: FigureLog, level: MemoryLevel) -> float:
    if level.bandwidth_bytes_per_s is None and level.bytes_per_cycle is not None:
        return figures.need_of(level, "bytes_per_cycle") * figures.need("clock", "core_hz")
    if level.bandwidth_bytes_per_s is None and level.on_chip:
        return float("inf")
    return figures.need_of(level, "bandwidth_bytes_per_s")


UJ_PER_PJ = 1e-6
OPERATIONS_PER_MAC = 2

# QKeras' fit through Horowitz, ISSCC 2014, 45 nm, 0.9 V (github.com/google/qkeras, 78ea90f, qtools/config_public.py).
_ADD_PJ_PER_BIT = 0.003125
_MULTIPLY_PJ = (0.002994791667, 0.001041666667)  # per bit squared, per bit
_FLOAT_PJ = {"fp16": 0.4 + 1.1, "fp32": 0.9 + 3.7}  # addition and multiplication
# Bit Fusion, synthesis table of a 4x4 array of 8/2 fusion units, 45 nm, 500 MHz (github.com/hsharma35/bitfusion, 04ec1c8).
_FUSION_UNIT_PJ = 0.4592
# Vasquez et al. 2021, arXiv:2101.04354, as commonly restated; the paper's own table was not read.
_VASQUEZ_ACCESS_PJ_PER_BIT = 2.5
_VASQUEZ_MAC = (3.1 / 32, 0.1)

_HOROWITZ = FigureUse(
    path="mac_energy.horowitz45_fit",
    value=_MULTIPLY_PJ[0],
    unit="pJ/bit²",
    kind="derived",
    sources=("QKeras qtools, fit through Horowitz, ISSCC 2014, 45 nm",),
    note="45 nm arithmetic alone: a Cortex-M system takes 600 to 2600 times as much per MAC",
)
_BIT_FUSION = FigureUse(
    path="mac_energy.bitfusion45",
    value=_FUSION_UNIT_PJ,
    unit="pJ/cycle",
    kind="simulated",
    sources=("Bit Fusion simulator, synthesis table, 45 nm",),
)
_VASQUEZ = FigureUse(
    path="mac_energy.vasquez2021",
    value=_VASQUEZ_MAC[0],
    unit="pJ/bit",
    kind="uncertain",
    is_doubtful=True,
    sources=("Vasquez et al. 2021, arXiv:2101.04354",),
    note="formula as commonly restated; the paper's table was not read",
)


@register("mac_energy")
class MacEnergy(_MemoryTraffic):
    """Microjoules: energy of the multiply-accumulates, and of moving weights and activations.

    ``horowitz45_fit`` is a fit through Horowitz' 45 nm table with an accumulator, ``bitfusion45`` a fusion unit,
    ``vasquez2021`` the linear model of the activation-density paper (one width, the larger, for both operands),
    ``table`` the profile's ``energy.table``.
    """

    unit: ClassVar[str] = "uJ"
    formula: ClassVar[str] = (
        "MACs * pJ(w, a) + weight bits * pJ/bit + (input + output bits) * pJ/bit; "
        "horowitz45_fit: 0.002994791667*w*a + 0.001041666667*sqrt(w*a) + 0.003125*accumulator; "
        "bitfusion45: 0.4592 / ((8//w)*(8//a)); "
        "vasquez2021: 3.1*k/32 + 0.1, with 2.5*k per input and weight"
    )
    needs: ClassVar[tuple[str, ...]] = (
        "precisions.accumulator_bits (for horowitz45_fit)",
        "memory that holds weights, activations: energy_pj_per_bit (with traffic)",
        "energy.table (with mac: table)",
    )
    mac: Literal["horowitz45_fit", "bitfusion45", "vasquez2021", "table"] = "horowitz45_fit"
    """Where the energy of one MAC comes from."""
    accumulator: Literal["grown"] | Annotated[int, Field(ge=1)] | None = None
    """Bits of the accumulator for horowitz45_fit (default: the profile's); ``grown``: ceil(log2(depth)) + w + a."""
    traffic: bool = True
    """Count moving weights and activations as well."""

    def per_layer(self, figures: FigureLog) -> LayerCost:
        arithmetic = self.per_mac(figures)
        moving = self._traffic(figures) if self.traffic else None

        def cost(layer: Layer, pair: WidthPair) -> Number:
            picojoules = layer.macs * arithmetic(layer, pair)
            return (picojoules + (moving(layer, pair) if moving else 0.0)) * UJ_PER_PJ

        return cost

    def per_mac(self, figures: FigureLog) -> LayerCost:
        """Picojoules of one multiply-accumulate."""
        if self.mac == "table":
            return lambda layer, pair: figures.row("energy", op_of(layer), layer.kernel_size, pair)[1]
        if self.mac == "bitfusion45":
            figures.constant(_BIT_FUSION)
            return lambda layer, pair: _FUSION_UNIT_PJ / fusion_factor(layer, pair)
        if self.mac == "vasquez2021":
            figures.constant(_VASQUEZ)
            return lambda layer, pair: _VASQUEZ_MAC[0] * _wider(pair) + _VASQUEZ_MAC[1]
        figures.constant(_HOROWITZ)
        accumulator = self.accumulator or figures.profile.precisions.accumulator_bits
        if accumulator is None:
            raise figures.missing("precisions.accumulator_bits")
        return lambda layer, pair: _horowitz(layer, pair, accumulator)

    def _traffic(self, figures: FigureLog) -> Callable[[Layer, WidthPair], float]:
        """Picojoules of moving a layer's operands."""
        if self.mac == "vasquez2021":  # has its own: every input and every weight once
            return lambda layer, pair: (
                _VASQUEZ_ACCESS_PJ_PER_BIT
                * _wider(pair)
                * (prod(layer.input_shape) + layer.weight_elements)
                * layer.calls
            )
        levels = self.levels(figures)
        per_weight_bit, per_activation_bit = (figures.need_of(level, "energy_pj_per_bit") for level in levels)

        def cost(layer: Layer, pair: WidthPair) -> float:
            weights, activations = traffic_bits(layer, pair.weight.bits, pair.activation.bits)
            return weights * per_weight_bit + activations * per_activation_bit

        return cost


def _horowitz(layer: Layer, pair: WidthPair, accumulator: str | int) -> float:
    """Picojoules of a multiplication and an addition to the accumulator."""
    if pair.weight.is_float or pair.activation.is_float:
        if pair.compute not in _FLOAT_PJ:
            raise UnsupportedPrecisionError(
                f"layer {layer.name!r}: horowitz45_fit has fp16, fp32 and integers, not {pair.compute}"
            )
        return _FLOAT_PJ[pair.compute]
    product = pair.weight.bits * pair.activation.bits
    if isinstance(accumulator, str):
        accumulator = math.ceil(math.log2(as_gemm(layer).depth)) + pair.weight.bits + pair.activation.bits
    return _MULTIPLY_PJ[0] * product + _MULTIPLY_PJ[1] * math.sqrt(product) + _ADD_PJ_PER_BIT * accumulator


def _wider(pair: WidthPair) -> int:
    return max(pair.weight.bits, pair.activation.bits)


@register("energy_per_op")
class EnergyPerOperation(LayerwiseCost):
    """Microjoules from a device's energy per operation, whatever the widths."""

    unit: ClassVar[str] = "uJ"
    counts_work: ClassVar[bool] = True
    formula: ClassVar[str] = "ops_per_mac * MACs * energy_pj_per_op"
    needs: ClassVar[tuple[str, ...]] = ("power.energy_pj_per_op",)
    ops_per_mac: float = Field(OPERATIONS_PER_MAC, gt=0)
    """Operations that the vendor counts for one multiply-accumulate."""

    def per_layer(self, figures: FigureLog) -> LayerCost:
        energy = figures.need("power", "energy_pj_per_op")
        return lambda layer, pair: self.ops_per_mac * layer.macs * energy * UJ_PER_PJ

    def notes(self, profile: HardwareProfile) -> tuple[str, ...]:
        return ("a vendor's energy per operation does not depend on the widths",)


@register("power_time")
class PowerTime(CostOptions):
    """Microjoules: power while computing, times the profile's latency."""

    unit: ClassVar[str] = "uJ"
    formula: ClassVar[str] = "power * latency"
    needs: ClassVar[tuple[str, ...]] = (
        "power.active_w (or budget_w with upper_bound)",
        "cost_models.latency",
    )
    kind: Literal["active", "upper_bound"] = "active"
    """``active``: the power while computing. ``upper_bound``: all that the board may draw."""

    def tabulate(self, layers: Layers, profile: HardwareProfile, precisions: Candidates) -> CostTable:
        figures = FigureLog(profile, "power_time")
        watts = figures.need("power", "active_w" if self.kind == "active" else "budget_w")
        latency = chosen_model("latency", profile).tabulate(layers, profile, precisions)
        if latency.unit != "ms":
            raise CostModelError(f"cost model {latency.model!r} gave {latency.unit} for latency")
        notes = latency.notes
        if self.kind == "upper_bound":
            notes = (*notes, "an upper bound: the board's whole power budget for the whole time")
        return latency.scaled(
            watts * 1e3,  # ms * W = mJ
            name="power_time",
            model="power_time",
            unit=self.unit,
            figures=(*latency.figures, *figures.used),
            notes=notes,
        )
