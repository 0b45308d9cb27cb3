"""Activations in memory: the peak over the schedule, or layer by layer."""

import itertools
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import ClassVar

from hwbmpq.costs.model import CostOptions, FigureLog, register
from hwbmpq.costs.table import Candidates, CostRow, CostTable, Layers, Number, candidates_of
from hwbmpq.errors import UnsupportedLayerError
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.widths import WidthFinder
from hwbmpq.values import FLOAT_BITS, Layer, Precision, Schedule, StoredTensor

RESIDUAL_BITS = 16
"""A tensor that feeds an addition is stored at this width, as in HAWQ."""
MOST_ROWS_PER_STEP = 64

Widths = dict[str, dict[Precision, int]]
"""Activation width of each layer at each of its candidates."""


class _ActivationCost(CostOptions):
    unit: ClassVar[str] = "bit"
    needs: ClassVar[tuple[str, ...]] = ("memory that holds activations: size_bytes (with level)",)
    level: str | None = None
    """The memory that the activations have to fit in (default: the last that holds them, if there is one)."""

    def _bounded(self, table: CostTable, profile: HardwareProfile) -> CostTable:
        """With the capacity of the memory that it has to fit in."""
        figures = FigureLog(profile, table.name)
        capacity = figures.capacity("activations", self.level)
        return replace(table, capacity=capacity, figures=figures.used)


class _LargestLayer(_ActivationCost):
    """The largest layer counts; needs no schedule."""

    name: ClassVar[str]

    def tabulate(self, layers: Layers, profile: HardwareProfile, precisions: Candidates) -> CostTable:
        layers = list(layers)
        widths = _stored_widths(layers, profile, precisions)
        rows = []
        for layer in layers:
            elements = self._elements(layer)
            costs = {precision: elements * bits for precision, bits in widths[layer.name].items()}
            rows.append(CostRow(label=layer.name, costs={layer.name: costs}))
        in_float = FLOAT_BITS * max(map(self._elements, layers), default=0)
        table = CostTable(
            name=self.name, model=self.name, unit=self.unit, rows=tuple(rows), float_total=in_float
        )
        return self._bounded(table, profile)

    @staticmethod
    @abstractmethod
    def _elements(layer: Layer) -> int:
        """Of the layer's largest call."""


@register("layer_working_set")
class LayerWorkingSet(_LargestLayer):
    """Bits of each layer's input and output together; the largest counts, of all calls. Needs no schedule."""

    formula: ClassVar[str] = "max over layers and their calls of (inputs + outputs) * activation_bits"
    name: ClassVar[str] = "layer_working_set"

    @staticmethod
    def _elements(layer: Layer) -> int:
        return max(prod(reads) + prod(makes) for reads, makes in layer.every_call)


@register("largest_input")
class LargestInput(_LargestLayer):
    """Bits of the largest tensor that a layer reads, as papers count the "maximum activation size". One tensor at a
    time: what else is in memory then, such as the other operand of an addition, is in ``activation_memory``.
    """

    formula: ClassVar[str] = "max over layers and their calls of inputs * activation_bits"
    name: ClassVar[str] = "largest_input"

    @staticmethod
    def _elements(layer: Layer) -> int:
        return max(prod(reads) for reads, _ in layer.every_call)


@register("activation_memory")
class ActivationMemory(_ActivationCost):
    """Bits of all activations in memory at the worst step of the forward pass.

    A tensor that feeds an addition is stored at 16 bits, any other at the width of its widest reader, one that
    leaves the network or is read by a product in float (a weight-only layer, attention) as 32-bit float. What
    attention and recurrent layers keep while they run (projections and scores, states and gates) counts as 32-bit
    float; scratch memory of kernels, such as im2col, does not count. Several readers make several rows, one per
    combination; beyond 64 in a step, the smaller tensors count at their widest candidate. Needs the network's
    graph (``hwbmpq.describe``), not only its layers.
    """

    formula: ClassVar[str] = "max over steps of sum over tensors in memory of elements * stored width"

    def tabulate(self, layers: Layers, profile: HardwareProfile, precisions: Candidates) -> CostTable:
        schedule = getattr(layers, "schedule", None)
        if not isinstance(schedule, Schedule):
            raise UnsupportedLayerError(
                "the cost model 'activation_memory' needs the network's tensors: pass the LayerGraph of "
                "hwbmpq.describe, not a list of layers",
                hint="or use 'layer_working_set', which looks at one layer at a time",
            )
        widths = _stored_widths(layers, profile, precisions)
        rows: dict[tuple[object, ...], CostRow] = {}
        at_widest = 0
        for step, alive in enumerate(_alive(schedule)):
            found, capped = _step_rows(schedule.steps[step], alive, widths)
            at_widest += capped
            for key, row in found:
                if key not in rows or rows[key].constant < row.constant:
                    rows[key] = row
        notes: tuple[str, ...] = ()
        if at_widest:
            notes = (
                f"in {at_widest} of {len(schedule.steps)} steps some tensors with several readers count at their "
                "widest candidate",
            )
        name = "activation_memory"
        in_float = FLOAT_BITS * max(sum(tensor.elements for tensor in alive) for alive in _alive(schedule))
        table = CostTable(
            name=name,
            model=name,
            unit=self.unit,
            rows=tuple(rows.values()),
            notes=notes,
            float_total=in_float,
        )
        return self._bounded(table, profile)


def _stored_widths(layers: Iterable[Layer], profile: HardwareProfile, precisions: Candidates) -> Widths:
    finder = WidthFinder(profile)
    return {
        layer.name: {
            precision: finder.execution_of(layer, precision).pair.activation.bits
            for precision in candidates_of(layer, precisions)
        }
        for layer in layers
    }


def _alive(schedule: Schedule) -> list[list[StoredTensor]]:
    """The tensors in memory at each step."""
    alive: list[list[StoredTensor]] = [[] for _ in schedule.steps]
    for tensor in schedule.tensors:
        for step in range(tensor.made_at, tensor.last_read_at + 1):
            alive[step].append(tensor)
    return alive


def _step_rows(
    label: str, alive: list[StoredTensor], widths: Widths
) -> tuple[list[tuple[tuple[object, ...], CostRow]], bool]:
    """The rows of one step, each with what identifies it, and whether a tensor counts at its widest."""
    constant: Number = 0
    choices: list[tuple[int, list[str]]] = []  # elements, and the readers that may decide their width
    combinations, is_capped = 1, False
    # Combinations go to the largest tensors, where counting at the widest would be furthest off.
    for tensor in sorted(alive, key=lambda tensor: -tensor.elements):
        deciders = _deciders(tensor.readers, widths)
        if tensor.leaves or tensor.read_in_float or not (tensor.feeds_addition or deciders):
            constant += tensor.elements * FLOAT_BITS
        elif tensor.feeds_addition:
            constant += tensor.elements * RESIDUAL_BITS
        elif combinations * len(deciders) <= MOST_ROWS_PER_STEP:
            combinations *= len(deciders)
            choices.append((tensor.elements, deciders))
        else:
            constant += tensor.elements * max(max(widths[reader].values()) for reader in deciders)
            is_capped = True
    rows: list[tuple[tuple[object, ...], CostRow]] = []
    for chosen in itertools.product(*(readers for _, readers in choices)):
        elements: dict[str, int] = {}
        for (count, _), reader in zip(choices, chosen, strict=True):
            elements[reader] = elements.get(reader, 0) + count
        costs = {
            reader: {precision: count * bits for precision, bits in widths[reader].items()}
            for reader, count in elements.items()
        }
        rows.append((tuple(sorted(elements.items())), CostRow(label=label, costs=costs, constant=constant)))
    return rows, is_capped


def _deciders(readers: Iterable[str], widths: Widths) -> list[str]:
    """The readers that can be the widest: not those that another one is never narrower than."""
    kept: list[str] = []
    for reader in sorted(readers, key=lambda name: -min(widths[name].values())):
        most = max(widths[reader].values())
        if not any(min(widths[other].values()) >= most for other in kept):
            kept.append(reader)
    return kept
