"""Models that extend one of ours, raise, or return nonsense."""

from typing import ClassVar

from hwbmpq.costs import FigureLog, LayerwiseCost
from hwbmpq.costs.analytic import Roofline
from hwbmpq.costs.model import LayerCost


class SlowRoofline(Roofline):
    """A roofline at half the speed."""

    def per_layer(self, figures: FigureLog) -> LayerCost:
        cost = super().per_layer(figures)
        return lambda layer, pair: 2 * cost(layer, pair)


class Raises(LayerwiseCost):
    """Fails on every layer."""

    unit: ClassVar[str] = "ms"

    def per_layer(self, figures: FigureLog) -> LayerCost:
        return lambda layer, pair: layer.macs / 0


class Negative(LayerwiseCost):
    """Less than nothing."""

    unit: ClassVar[str] = "ms"

    def per_layer(self, figures: FigureLog) -> LayerCost:
        return lambda layer, pair: -1
