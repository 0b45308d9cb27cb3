"""What a sensitivity method is given, and the checks that all methods share."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import as_precision, assign, prepare, quantized_layers
from hwbmpq.values import FLOAT_BITS, Layer, Precision, is_width

Batch = tuple[Tensor, Tensor]
"""Images and their labels."""


@dataclass(frozen=True, kw_only=True)
class SensitivityInputs:
    """A network and what to measure on it. The network is the user's own: methods work on ``quantized_copy``."""

    network: nn.Module
    layers: tuple[Layer, ...]
    batches: Iterable[Batch]
    precisions: Mapping[str, Precision]
    """What the layers are quantized at while gradients are read."""
    widths: Mapping[str, Sequence[int]]
    """The weight widths that each layer may take."""
    per_channel: bool = False
    on_batch: Callable[[int], None] | None = None
    """Called after each batch with the number of batches done."""
    seed: int = 0

    def __post_init__(self) -> None:
        for layer in self.layers:
            if layer.name not in self.precisions:
                raise HwbmpqError(f"no precision is given for layer {layer.name!r}")
            widths = self.widths.get(layer.name, ())
            bad = [width for width in widths if not is_width(width)]
            if bad or not widths:
                raise HwbmpqError(
                    f"layer {layer.name!r}: {bad[0]!r} is not a weight width"
                    if bad
                    else f"no weight widths are given for layer {layer.name!r}",
                    hint=f"use 2 to 16, or {FLOAT_BITS} for float",
                )

    def quantized_copy(self, precisions: Mapping[str, Precision]) -> nn.Module:
        """A copy in evaluation mode whose layers quantize at ``precisions``; no parameter wants a gradient."""
        try:
            network = copy.deepcopy(self.network)
        except (RuntimeError, TypeError) as error:
            raise HwbmpqError(f"the network cannot be copied: {error}") from error
        try:
            if not any(True for _ in quantized_layers(network)):
                prepare(network, self.layers, per_channel=self.per_channel)
        except AttributeError as error:
            raise HwbmpqError(f"the layers are not those of this network: {error}") from error
        assign(network, {layer.name: precisions[layer.name] for layer in self.layers})
        return network.eval().requires_grad_(False)

    def float_copy(self) -> nn.Module:
        """A copy that computes in float, its layers nonetheless of the quantized kind."""
        return self.quantized_copy({layer.name: as_precision(FLOAT_BITS) for layer in self.layers})
