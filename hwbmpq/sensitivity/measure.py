"""``measure_sensitivity``: one call from a network and some images to one score per layer."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import as_precision, assign, prepare, quantized_layers
from hwbmpq.registry import SENSITIVITIES
from hwbmpq.sensitivity.registry import SensitivityMethod, methods
from hwbmpq.values import FLOAT_BITS, Layer, Precision, Sensitivity, is_width

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


def measure_sensitivity(
    network: nn.Module,
    layers: Iterable[Layer],
    batches: Iterable[Batch] | None = None,
    *,
    method: str = "enbg",
    precisions: Mapping[str, Precision],
    widths: Mapping[str, Sequence[int]],
    per_channel: bool = False,
    on_batch: Callable[[int], None] | None = None,
    seed: int = 0,
) -> Sensitivity:
    """How much each of ``layers`` needs its bits. ``network`` is left as it was found.

    ``batches`` yields (images, labels) and is read once; methods that need no data ignore it.
    ``precisions`` is what the network is quantized at while gradients are read: usually the widest
    candidates. ``widths`` are the weight widths each layer may take. ``on_batch`` is called after each
    batch with the number done. ``seed`` is for methods that draw random numbers.
    """
    chosen: SensitivityMethod = SENSITIVITIES.get(method)
    if batches is None and chosen.needs_data:
        free = ", ".join(name for name, other in methods().items() if not other.needs_data)
        raise HwbmpqError(
            f"the sensitivity {method!r} needs labelled images, and none are given",
            hint=f"give some, or use a method that needs none: {free}",
        )
    measurement = SensitivityInputs(
        network=network,
        layers=tuple(layers),
        batches=() if batches is None else batches,
        precisions=precisions,
        widths=widths,
        per_channel=per_channel,
        on_batch=on_batch,
        seed=seed,
    )
    with torch.inference_mode(False), torch.enable_grad():  # wherever the caller stands
        return chosen.measure(measurement)
