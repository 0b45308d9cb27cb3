"""Batch after batch through a quantized copy of the network, up to the loss and its gradients."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.errors import HwbmpqError, NonFiniteError
from hwbmpq.graph.operations import first_tensor
from hwbmpq.quant import CALIBRATION_BATCHES, InputQuantizer
from hwbmpq.sensitivity.measure import Batch, SensitivityInputs
from hwbmpq.sensitivity.weight_capture import capture_weights
from hwbmpq.values import FLOAT_BITS


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
    loss = F.cross_entropy(logits, labels)
    if not bool(torch.isfinite(loss)):
        raise NonFiniteError(
            f"{where}: the loss is {loss.item()}",
            hint="check the images for infinite values, and the loaded weights",
        )
    return loss


@dataclass(frozen=True, kw_only=True)
class Step:
    """One batch that has gone forward."""

    name: str
    """``batch 3``, for errors."""
    inputs: Tensor
    loss: Tensor
    leaves: dict[str, list[Tensor]]
    """By layer: the weights that entered its quantizer, one for each run of the layer."""

    @property
    def images(self) -> int:
        return len(self.inputs)

    def gradients(self) -> dict[str, Tensor]:
        """The loss's gradient by each layer's weight, added up over its runs."""
        flat = [leaf for leaves in self.leaves.values() for leaf in leaves]
        # None: the loss does not depend on it (a head whose answer is not the first).
        found = iter(torch.autograd.grad(self.loss, flat, materialize_grads=True))
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

    ``network`` is one of the measurement's copies. The batches are read once, so a generator will do.
    """
    batches = (
        _checked(batch, f"batch {number}", network) for number, batch in enumerate(measurement.batches)
    )
    first = list(islice(batches, CALIBRATION_BATCHES))
    if not first:
        raise HwbmpqError("there are no images to measure sensitivity with", hint="give at least one batch")
    if any(precision.activation_bits != FLOAT_BITS for precision in measurement.precisions.values()):
        _calibrate(network, first)
    captured = capture_weights(network, measurement.layers)
    for number, (images, labels) in enumerate(chain(first, batches)):
        name = f"batch {number}"
        for found in captured.values():
            found.clear()
        output = _forward(network, images, name)
        leaves = {layer: _all_runs(layer, found) for layer, found in captured.items()}
        loss = classification_loss(output, labels, name)
        yield Step(name=name, inputs=images, loss=loss, leaves=leaves)
        if measurement.on_batch is not None:
            measurement.on_batch(number + 1)


def _calibrate(network: nn.Module, batches: Iterable[Batch]) -> None:
    """Only the quantizers learn, as in training; norms keep their statistics."""
    quantizers = [module for module in network.modules() if isinstance(module, InputQuantizer)]
    for quantizer in quantizers:
        quantizer.train()
    with torch.no_grad():
        for number, (images, _) in enumerate(batches):
            _forward(network, images, f"batch {number}")
    for quantizer in quantizers:
        quantizer.eval()


def _all_runs(layer: str, leaves: list[Tensor]) -> list[Tensor]:
    if not leaves:
        raise HwbmpqError(
            f"layer {layer!r} does not run on this data",
            hint="describe the network with an input that takes the same path as the data",
        )
    return list(leaves)


def _forward(network: nn.Module, images: Tensor, name: str) -> object:
    try:
        return network(images)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise HwbmpqError(
            f"{name}: the network cannot take images of shape {tuple(images.shape)}: {error}",
            hint="give images of the size that the network was described with",
        ) from error


def _checked(batch: object, name: str, network: nn.Module) -> Batch:
    """A batch as the network takes it: on its device, in its number format, labels as integers."""
    images, labels = batch if isinstance(batch, (tuple, list)) and len(batch) == 2 else (None, None)
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
        raise HwbmpqError(f"{name} is not a pair of tensors (images, labels)")
    if labels.is_floating_point() or labels.dim() != 1 or len(labels) != len(images) or not len(labels):
        raise HwbmpqError(
            f"{name}: {len(images)} images need as many whole numbers as labels, "
            f"not {labels.dtype} of shape {tuple(labels.shape)}"
        )
    like = next((p for p in network.parameters() if p.is_floating_point()), images)
    dtype = like.dtype if images.is_floating_point() else images.dtype
    return images.to(like.device, dtype), labels.to(like.device, torch.int64)
