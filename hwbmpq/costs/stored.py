"""What a device stores: each weight at its width with its scales, and the rest of the network as it is."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

from hwbmpq.costs.geometry import divide_up
from hwbmpq.costs.model import FigureLog, LayerCost, LayerwiseCost, register
from hwbmpq.costs.table import Candidates, Capacity, CostTable, Layers
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.values import CLIPPING, FLOAT_BITS, Layer, StoredState

SCALE_BITS = 32
WEIGHTS, SCALES, IN_FLOAT = "packed weights", "scales", "other tensors in float"
"""Lines of an account of what is stored; the others are the labels of ``StoredState``."""
WIDER = "stored wider on the device"
_BYTE = 8


def stored_weight(parameters: int, bits: int, *, scales: int, float_bits: int = FLOAT_BITS) -> dict[str, int]:
    """Bits that a weight tensor takes, by line: packed into whole bytes with its scales, or as it is in float."""
    if bits == FLOAT_BITS:
        return {IN_FLOAT: parameters * float_bits}
    packed = _BYTE * divide_up(parameters * bits, _BYTE)
    return {WEIGHTS: packed, SCALES: SCALE_BITS * scales if parameters else 0}


def layer_storage(layer: Layer, bits: int) -> dict[str, int]:
    """Bits that a layer's weight takes, by line."""
    return stored_weight(layer.parameters, bits, scales=layer.scales, float_bits=layer.float_bits)


def stored_lines(
    layers: Iterable[Layer], weight_bits: Mapping[str, int], beside: Iterable[StoredState]
) -> dict[str, int]:
    """Bits that a network takes at these widths, by line."""
    found: Counter[str] = Counter()
    for layer in layers:
        found.update(layer_storage(layer, weight_bits[layer.name]))
    for state in beside:
        found[state.label] += state.bits
    return dict(found)


@register("stored_memory")
class StoredMemory(LayerwiseCost):
    """Bits of the whole network as it is stored: what a packed file holds, without its header.

    Weights are packed into whole bytes, each with its scales. Biases, norms, clipping points, and all that stays in
    float are counted too. Needs the network's graph (``hwbmpq.describe``): a list of layers does not say what is
    stored beside their weights.
    """

    unit: ClassVar[str] = "bit"
    formula: ClassVar[str] = (
        "sum over layers of (8 * ceil(weights * weight_bits / 8) + 32 * scales) + biases, norms, clipping points "
        "and what stays in float"
    )
    needs: ClassVar[tuple[str, ...]] = ("memory that holds weights: size_bytes (with level)",)
    level: str | None = None
    """The memory that the network has to fit in (default: the last that holds weights, if there is one)."""

    def per_layer(self, figures: FigureLog) -> LayerCost:
        return lambda layer, pair: sum(layer_storage(layer, pair.weight.bits).values())

    def capacity(self, figures: FigureLog) -> Capacity | None:
        return figures.capacity("weights", self.level)

    def tabulate(self, layers: Layers, profile: HardwareProfile, precisions: Candidates) -> CostTable:
        beside: tuple[StoredState, ...] | None = getattr(layers, "stored", None)
        layers = layers if beside is not None else list(layers)
        table = super().tabulate(layers, profile, precisions)
        if beside is None:
            return replace(
                table,
                leaves_out="only the layers are known here: what is stored beside their weights is not counted",
            )
        row = replace(table.rows[0], constant=sum(state.bits for state in beside))
        in_float = sum(layer.parameters * layer.float_bits for layer in layers)
        in_float += sum(state.bits for state in beside if state.label != CLIPPING)
        return replace(table, rows=(row,), float_total=in_float)
