"""Pages that have to be written to store a network."""

from collections.abc import Iterable

from hwbmpq.costs import Candidates, CostTable
from hwbmpq.hardware import HardwareProfile
from hwbmpq.values import Layer, Precision

PAGE_BITS = 4096 * 8


class FlashWear:
    """Flash pages written to store the weights."""

    unit = "page"
    formula = "ceil(weights * weight_bits / 32768)"

    def tabulate(
        self, layers: Iterable[Layer], profile: HardwareProfile, precisions: Candidates
    ) -> CostTable:
        def pages(layer: Layer, precision: Precision) -> int:
            return -(-layer.parameters * precision.weight_bits // PAGE_BITS)

        return CostTable.additive("flash_wear", layers, precisions, pages, unit=self.unit)
