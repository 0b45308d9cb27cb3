"""``measure_sensitivity``: from a network and some images to one score per layer.

Methods that need images run batch after batch through a quantized copy of the network (``run_steps``), up to the loss
and its gradients. They look at the weights that enter the quantizers, not at the parameters: some layers (timm's
``StdConv2d``) compute their weight in the forward pass.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.data.inputs import ModelInputs, first_tensor, map_tensors
from hwbmpq.errors import HwbmpqError, NonFiniteError
from hwbmpq.quant import CALIBRATION_BATCHES, InputQuantizer, as_precision, assign, prepare, quantized_layers
from hwbmpq.quant.layers import QuantizedLayer
from hwbmpq.quant.quantizers import keep_weights
from hwbmpq.quant.weights import QuantizedWeight
from hwbmpq.registry import SENSITIVITIES
from hwbmpq.sensitivity.registry import SensitivityMethod, checked_result, methods
from hwbmpq.values import FLOAT_BITS, Layer, Precision, Sensitivity, is_width

Batch = tuple[Any, Any]
"""Inputs (a tensor, a tuple of arguments or a dict of keyword arguments) and targets."""
LossFunction = Callable[[Any, Any], Tensor]
"""From a network's outputs and the targets to the mean loss of a batch."""


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
    loss: LossFunction | None = None
    """None: cross entropy of the scores and labels of a classifier."""
    activation_widths: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The activation widths of layers that have several; what they cost is measured too, where the method can."""

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
        """A copy in evaluation mode whose layers quantize at ``precisions``; no parameter requires a gradient."""
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
        """A copy that computes in float; its layers are quantized layers at 32 bits."""
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
    loss: LossFunction | None = None,
    activation_widths: Mapping[str, Sequence[int]] | None = None,
) -> Sensitivity:
    """How much each of ``layers`` needs its bits. ``network`` is not changed.

    ``batches`` yields (inputs, targets) and is read once; methods that need no data ignore it. Inputs are a tensor, a
    tuple of arguments or a dict of keyword arguments. ``loss`` is that of (outputs, targets), by default cross entropy.
    ``precisions`` is what the network is quantized at while gradients are read: usually the widest
    candidates. ``widths`` are the weight widths each layer may take. ``on_batch`` is called after each
    batch with the number done. ``seed`` is for methods that draw random numbers. ``activation_widths`` are those that
    layers choose from: ``enbg`` measures in the same pass what each of them costs.
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
        loss=loss,
        activation_widths=activation_widths or {},
    )
    with torch.inference_mode(False), torch.enable_grad():  # whatever mode the caller is in
        return checked_result(method, chosen.measure(measurement), measurement.layers)


def classification_loss(output: object, labels: Tensor, where: str) -> Tensor:
    """Mean cross entropy over a batch; ``where`` is what errors call the batch."""
    logits = first_tensor(output)
    if logits is None or logits.dim() != 2 or len(logits) != len(labels):
        shape = "no tensor" if logits is None else f"shape {tuple(logits.shape)}"
        raise HwbmpqError(
            f"{where}: the network returns {shape} for {len(labels)} labels, not one score per image and class",
            hint="sensitivity from data needs a classifier; the method weight_error needs no data",
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= logits.shape[1]:
        bad = lowest if lowest < 0 else highest
        raise HwbmpqError(
            f"{where} has the label {bad}, but the network has {logits.shape[1]} outputs, 0 to {logits.shape[1] - 1}",
            hint="use a network with as many outputs as the data has classes",
        )
    return F.cross_entropy(logits, labels)


def _loss(measurement: SensitivityInputs, output: object, targets: Any, where: str) -> Tensor:
    if measurement.loss is None:
        loss = classification_loss(output, targets, where)
    else:
        loss = measurement.loss(output, targets)
    if not bool(torch.isfinite(loss)):
        raise NonFiniteError(
            f"{where}: the loss is {loss.item()}",
            hint="check the inputs for infinite values, and the loaded weights",
        )
    return loss


@dataclass(frozen=True, kw_only=True)
class Step:
    """One batch after its forward pass."""

    name: str
    """``batch 3``, for errors."""
    inputs: ModelInputs
    loss: Tensor
    leaves: dict[str, list[Tensor]]
    """By layer: the weights that entered its quantizer, one for each run of the layer."""

    @property
    def images(self) -> int:
        return len(self.inputs)

    def gradients(self, also: Sequence[Tensor] = ()) -> dict[str, Tensor]:
        """The loss's gradient by each layer's weight, added up over its runs; ``also`` these leaves' hooks run."""
        flat = [leaf for leaves in self.leaves.values() for leaf in leaves]
        # The loss may not depend on it (a head whose output is not the first): then the gradient is zero.
        found = iter(torch.autograd.grad(self.loss, [*flat, *also], materialize_grads=True))
        gradients = {name: torch.stack([next(found) for _ in ls]).sum(0) for name, ls in self.leaves.items()}
        for name, gradient in gradients.items():
            self.check_finite(name, gradient)
        return gradients

    def check_finite(self, layer: str, gradient: Tensor) -> None:
        if not bool(torch.isfinite(gradient).all()):
            raise NonFiniteError(
                f"{self.name}: the gradient of layer {layer!r} holds infinite or NaN values",
                hint="check the loaded weights; in half precision, convert the network to float32 first",
            )


def run_steps(measurement: SensitivityInputs, network: nn.Module) -> Iterator[Step]:
    """Calibrate the input quantizers on the first batches, then take all batches one by one.

    ``network`` is one of the measurement's copies. The batches are read once: a generator will do.
    """
    batches = (
        _checked(batch, f"batch {number}", network, has_labels=measurement.loss is None)
        for number, batch in enumerate(measurement.batches)
    )
    first = list(islice(batches, CALIBRATION_BATCHES))
    if not first:
        raise HwbmpqError("there are no images to measure sensitivity with", hint="give at least one batch")
    if any(precision.activation_bits != FLOAT_BITS for precision in measurement.precisions.values()):
        _calibrate(network, first)
    captured = capture_weights(network, measurement.layers)
    for number, (inputs, targets) in enumerate(chain(first, batches)):
        name = f"batch {number}"
        for found in captured.values():
            found.clear()
        output = _forward(network, inputs, name)
        leaves = {layer: _all_runs(layer, found) for layer, found in captured.items()}
        loss = _loss(measurement, output, targets, name)
        yield Step(name=name, inputs=inputs, loss=loss, leaves=leaves)
        if measurement.on_batch is not None:
            measurement.on_batch(number + 1)


def _calibrate(network: nn.Module, batches: Iterable[tuple[ModelInputs, Any]]) -> None:
    """Only the quantizers learn, as in training; norms keep their statistics."""
    quantizers = [module for module in network.modules() if isinstance(module, InputQuantizer)]
    for quantizer in quantizers:
        quantizer.train()
    with torch.no_grad():
        for number, (inputs, _) in enumerate(batches):
            _forward(network, inputs, f"batch {number}")
    for quantizer in quantizers:
        quantizer.eval()


def _all_runs(layer: str, leaves: list[Tensor]) -> list[Tensor]:
    if not leaves:
        raise HwbmpqError(
            f"layer {layer!r} does not run on this data",
            hint="describe the network with an input that takes the same path as the data",
        )
    return list(leaves)


def _forward(network: nn.Module, inputs: ModelInputs, name: str) -> object:
    try:
        return inputs.call(network)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in inputs.tensors)
        raise HwbmpqError(
            f"{name}: the network cannot take images of shape {shapes}: {error}",
            hint="give images of the size that the network was described with",
        ) from error


def _checked(batch: object, name: str, network: nn.Module, *, has_labels: bool) -> tuple[ModelInputs, Any]:
    """A batch as the network takes it: on its device, in its number format, labels as integers."""
    is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    given, targets = cast(tuple[Any, Any], batch if is_pair else (None, None))
    if first_tensor(given) is None or (has_labels and not isinstance(targets, Tensor)):
        raise HwbmpqError(f"{name} is not a pair of tensors (images, labels)")
    inputs = ModelInputs.of(given).for_model(network)
    device = inputs.tensors[0].device
    if not has_labels:
        return inputs, map_tensors(targets, lambda tensor: tensor.to(device))
    if targets.is_floating_point() or targets.dim() != 1 or len(targets) != len(inputs) or not len(targets):
        raise HwbmpqError(
            f"{name}: {len(inputs)} images need as many whole numbers as labels, "
            f"not {targets.dtype} of shape {tuple(targets.shape)}"
        )
    return inputs, targets.to(device, torch.int64)


def capture_weights(network: nn.Module, layers: Iterable[Layer]) -> dict[str, list[Tensor]]:
    """Change ``network`` in place: weights that enter a quantizer become leaves of autograd's graph.

    Returns, by layer, the list that each forward pass adds them to. A leaf has a gradient even if the user froze the
    parameter. A layer that runs twice adds a leaf for each run; two layers that hold one parameter add one each.
    """
    quantized = dict(quantized_layers(network))
    leaves: dict[str, list[Tensor]] = {layer.name: [] for layer in layers}
    for name, found in leaves.items():

        def keep(_: nn.Module, args: tuple[Tensor], found: list[Tensor] = found) -> tuple[Tensor]:
            found.append(args[0].detach().requires_grad_())
            return (found[-1],)

        quantized[name].weight_quantizer.register_forward_pre_hook(keep)
    return leaves


@torch.no_grad()
def weight_without_data(layer: QuantizedLayer | QuantizedWeight, input_shape: tuple[int, ...]) -> Tensor:
    """The weight that enters the quantizer when the layer runs by itself, without hooks that expect images."""
    if isinstance(layer, QuantizedWeight):
        return layer.weight.detach()
    seen: list[Tensor] = []
    like = cast(Tensor, layer.weight)
    with keep_weights(layer.weight_quantizer, seen):
        layer.forward(torch.zeros(input_shape, dtype=like.dtype, device=like.device))
    return seen[0].detach()
