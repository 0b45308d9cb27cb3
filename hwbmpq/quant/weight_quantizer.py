"""The weight quantizers that ``prepare`` chooses from by name, each a child of the layer whose weight it rounds.

Everything that wants to see or replace a weight uses ordinary torch hooks on this module: a forward pre-hook gets the
weight that enters (computed by the layer or not), a forward hook what the layer multiplies with.
"""

from abc import abstractmethod
from collections import OrderedDict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hwbmpq.quant.functional import max_scale_codes, quantize_weight, straight_through
from hwbmpq.quant.loading import LoadsFloatCheckpoints
from hwbmpq.registry import QUANTIZERS
from hwbmpq.values import FLOAT_BITS

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class WeightQuantizer(LoadsFloatCheckpoints):
    """Rounds the weight of one layer to ``bits``; at 32 bits it returns the weight itself.

    A subclass says by ``codes_and_scale`` what a weight is stored as; packing, ONNX and sizes read it from there. One
    that learns has parameters of its own, names them in ``added_entries`` and gives them a gradient in ``forward``;
    after ``set_bits`` it starts anew from the next weight it sees. ``parameter_groups`` finds the parameters.

    Hooks belong to this network only: they are neither copied nor pickled.
    """

    added_entries: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, channel_axis: int | None, name: str, like: Tensor) -> None:
        """``like`` is the layer's weight: its shape, dtype and device are those of what will be rounded."""
        super().__init__()
        self.bits = FLOAT_BITS
        self.channel_axis = channel_axis
        """The axis with a scale for each index; None: one scale in all."""
        self.name = name

    @abstractmethod
    def codes_and_scale(self, weight: Tensor, bits: int | None = None) -> tuple[Tensor, Tensor]:
        """Integers (as floats) and the scale that they are multiplied with, at ``bits`` if not at the present width.

        The scale has the weight's number of axes, all of length 1 but ``channel_axis``. Half precision is computed in
        float32. The same weight always gives the same codes.
        """

    def set_bits(self, bits: int) -> None:
        """Switch the width."""
        self.bits = bits

    def forward(self, weight: Tensor) -> Tensor:
        """The weight as the layer multiplies with it; the gradient passes straight through."""
        if self.bits == FLOAT_BITS:
            return weight
        with torch.no_grad():
            codes, scale = self.codes_and_scale(weight)
        return straight_through(weight, codes, scale, self.name)

    def rounding_error(self, weight: Tensor, bits: int) -> Tensor:
        """``W - Q(W)`` at a width."""
        if bits == FLOAT_BITS:
            return torch.zeros_like(weight)
        with torch.no_grad():
            return weight - straight_through(weight, *self.codes_and_scale(weight, bits), self.name)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {name: OrderedDict() for name in _HOOKS}

    def extra_repr(self) -> str:
        return f"bits={self.bits}, channel_axis={self.channel_axis}"


def keep_weights(quantizer: WeightQuantizer, weights: list[Tensor]) -> RemovableHandle:
    """Add what enters a quantizer to ``weights``, until the hook is removed."""

    def keep(_: nn.Module, args: tuple[Tensor]) -> None:
        weights.append(args[0])

    return quantizer.register_forward_pre_hook(keep)


@QUANTIZERS.register("paper")
class PaperQuantizer(WeightQuantizer):
    """The scale of the largest magnitude; at 2 bits TWN's ternary weights."""

    def codes_and_scale(self, weight: Tensor, bits: int | None = None) -> tuple[Tensor, Tensor]:
        return quantize_weight(weight, bits or self.bits, channel_axis=self.channel_axis)


@QUANTIZERS.register("symmetric")
class SymmetricQuantizer(WeightQuantizer):
    """The scale of the largest magnitude at every width."""

    def codes_and_scale(self, weight: Tensor, bits: int | None = None) -> tuple[Tensor, Tensor]:
        return max_scale_codes(weight, bits or self.bits, channel_axis=self.channel_axis)
