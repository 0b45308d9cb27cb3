"""``DensityMeter``: how many activations are not zero, counted while a prepared model runs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hwbmpq.data.inputs import first_tensor
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import InputQuantizer, as_precision, quantized_layers
from hwbmpq.quant.prepare import input_quantizers
from hwbmpq.quant.weights import QuantizedWeight
from hwbmpq.sensitivity.measure import SensitivityInputs, run_steps
from hwbmpq.sensitivity.registry import register
from hwbmpq.values import FLOAT_BITS, Layer, Sensitivity


@register("activation_density", needs_data=True)
def measure_activation_density(measurement: SensitivityInputs) -> Sensitivity:
    """Score: the layer's activation density on the float network (Vasquez et al. 2021). No errors."""
    # Nothing is rounded, so nothing is calibrated: every batch runs, and counts, once.
    measurement = replace(
        measurement, precisions=dict.fromkeys(measurement.precisions, as_precision(FLOAT_BITS))
    )
    network = measurement.float_copy()
    with DensityMeter(network, measurement.layers) as meter:
        for _ in run_steps(measurement, network):
            pass
    return Sensitivity(method="activation_density", scores=meter.densities())


class DensityMeter:
    """A context manager, or ``start`` and ``stop``; in between, use the model as usual, training included.

    A layer's activations are what follows it: the tensor that the next layers read, after the non-linearity
    and before they round it. Its density is the mean share of non-zero values in the inputs of its readers
    (``find_readers``). A layer that no other reads, the last one, counts its own output; a weight-only layer
    that of the module that holds its weight, or 1 if that module does not run by itself.

    ``in_training_only`` ignores what runs in evaluation mode: test images must not influence decisions.
    Counts are accumulated on the model's device; only ``densities`` waits for it. Each process counts its own.
    """

    def __init__(self, model: nn.Module, layers: Iterable[Layer], *, in_training_only: bool = False) -> None:
        layers = tuple(layers)
        self._in_training_only = in_training_only
        modules = dict(quantized_layers(model))
        missing = [layer.name for layer in layers if layer.name not in modules]
        if missing:
            raise HwbmpqError(
                f"the model has no quantized layer named {missing[0]!r}", hint="prepare() the model first"
            )
        self._sources: dict[str, list[nn.Module]] = {}
        """By layer: the input quantizers of its readers, each once; the layer itself if no other reads it."""
        for layer in layers:
            readers = input_quantizers(modules[reader.name] for reader in find_readers(layer, layers))
            self._sources[layer.name] = [*readers] or [modules[layer.name]]
        self._counts: dict[nn.Module, _Count] = {}
        self._handles: list[RemovableHandle] = []

    def start(self) -> "DensityMeter":
        """Count from zero."""
        self.stop()
        self._counts = {}
        sources = dict.fromkeys(module for modules in self._sources.values() for module in modules)
        for module in sorted(sources, key=lambda module: not isinstance(module, InputQuantizer)):
            count = self._counts[module] = _Count(self._in_training_only)
            if isinstance(module, InputQuantizer):
                self._handles.append(module.register_forward_pre_hook(count.see_input))
            else:
                runs = module.owner if isinstance(module, QuantizedWeight) else module
                self._handles.append(runs.register_forward_hook(count.see_output))
        return self

    def stop(self) -> None:
        """Take the hooks off; the counts stay."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> "DensityMeter":
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def state_dict(self) -> dict[str, Any]:
        return {"counts": [[count.values, int(count.nonzero)] for count in self._counts.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the counts of another meter of the same network."""
        self.start()
        for count, saved in zip(self._counts.values(), state["counts"], strict=False):
            count.values, count.nonzero = saved[0], torch.tensor(saved[1])

    def densities(self) -> dict[str, float]:
        """By layer, over everything that has run since ``start``."""
        return {name: self._density(name) for name in self._sources}

    def _density(self, name: str) -> float:
        seen = [self._counts[module] for module in self._sources[name] if module in self._counts]
        shares = [int(count.nonzero) / count.values for count in seen if count.values]
        if not shares and isinstance(self._sources[name][0], QuantizedWeight):
            return 1.0  # a product inside another module's forward: nothing shows its result, which is dense
        if not shares:
            raise HwbmpqError(
                f"no activations of layer {name!r} were seen", hint="run the model between start and stop"
            )
        return sum(shares) / len(shares)


def find_readers(layer: Layer, layers: Sequence[Layer]) -> list[Layer]:
    """The layers whose inputs show the density of ``layer``: the nearest ones that see its whole output.

    Nearest are those that it feeds directly, then those behind one addition or concatenation. Layers behind
    pooling, where zeros are rare, count only if there are no others.
    """
    names = {other.name for other in layers}
    joins = set(layer.feeds) - names
    direct = [other for other in layers if other.name in layer.feeds]
    behind_joins = [other for other in layers if joins.intersection(other.fed_by)]
    size = prod(layer.output_shape)
    ranked = [
        [other for other in found if prod(other.input_shape) >= size] for found in (direct, behind_joins)
    ]
    return next((found for found in (*ranked, direct, behind_joins) if found), [])


class _Count:
    """The values that went through one module."""

    def __init__(self, in_training_only: bool) -> None:
        self._in_training_only = in_training_only
        self.values = 0
        self.nonzero = torch.tensor(0)

    def see_input(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._add(module, inputs[0])

    def see_output(self, module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        values = first_tensor(output)
        if values is not None:
            self._add(module, values)

    def _add(self, module: nn.Module, values: Tensor) -> None:
        if self._in_training_only and not module.training:
            return
        nonzero = values.detach().count_nonzero()
        self.nonzero = nonzero + self.nonzero.to(nonzero.device)
        self.values += values.numel()
