"""``measure_sensitivity``: one call from a network and some images to one score per layer."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.registry import SENSITIVITIES
from hwbmpq.sensitivity.measurement import Batch, SensitivityInputs
from hwbmpq.sensitivity.registry import SensitivityMethod, methods
from hwbmpq.values import Layer, Precision, Sensitivity


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
