"""Post-training quantization: measure, allocate, calibrate, round, evaluate."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from torch import nn

from hwbmpq import distributed
from hwbmpq.data.images import ImageData
from hwbmpq.data.inputs import ModelInputs
from hwbmpq.quant import as_float, quantized_layers
from hwbmpq.quant.layers import float_weights
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.sensitivity.measure import LossFunction
from hwbmpq.tasks import Task
from hwbmpq.training.evaluation import evaluate, evaluation_batches, figures
from hwbmpq.training.hooks import Progress, TrainingHook, tell
from hwbmpq.training.ptq.calibration import Batches, calibrate_inputs, inputs_of
from hwbmpq.training.ptq.reconstruction import reconstruct, split_inputs
from hwbmpq.training.ptq.rounding import float_copy, round_weights
from hwbmpq.training.run_directory import RunDirectory
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import CALIBRATION_BATCH, calibration_batches, float_remark
from hwbmpq.training.start import float_weights_of, restore_fractions
from hwbmpq.values import Sensitivity

ROUNDING_IMAGES = 256
"""More images hardly change how a ResNet-20 is rounded, and each layer takes a pass over them."""
_ROUNDING_BATCH = 64
_MOST_MEASURED = 512
"""Clipping points and sensitivities need no more; the many images of ``--calibrate best`` are for ``reconstruct``."""


def post_training(
    model: nn.Module,
    batches: Batches,
    *,
    rounding_images: int = ROUNDING_IMAGES,
    on_layer: Callable[[int, int], None] | None = None,
) -> nn.Module:
    """Change ``model`` in place: round the weights of a prepared model whose widths are assigned, using images.

    Clipping points come first, on float weights, so that rounding can account for the clipping. It then imitates the
    float network layer by layer (``round_weights``, on the first ``rounding_images``). Statistics of norms stay: on a
    trained ResNet-20 the rounded weights already compensate for what re-estimating them would gain. Returns ``model``.
    """
    images = inputs_of(model, batches)
    with float_weights(layer for _, layer in quantized_layers(model)):
        calibrate_inputs(model, images)
    round_weights(model, _first(images, rounding_images), on_layer=on_layer)
    return model


def _first(batches: Iterable[ModelInputs], images: int) -> list[ModelInputs]:
    found: list[ModelInputs] = []
    for batch in batches:
        left = images - sum(map(len, found))
        if left > 0:
            found.append(batch.part(slice(left)))
    return found


def calibrate_only(
    network: nn.Module,
    allocator: BitAllocator,
    data: ImageData,
    settings: RunSettings,
    task: Task,
    *,
    run: RunDirectory | None = None,
    hooks: Sequence[TrainingHook] = (),
) -> Progress:
    """Change ``network`` in place, which ``allocator`` has prepared: give it widths and round its weights."""
    progress = Progress()
    with as_float(network):
        progress.float_accuracy = evaluate(network, evaluation_batches(data.test), task).value
    tell(hooks, float_remark(progress.float_accuracy, data, settings, task))
    decide_and_round(network, allocator, data, settings, task, hooks)
    found = evaluate(network, evaluation_batches(data.test), task)
    progress.records.append(_record(allocator, figures(task.described, "test", found)))
    if run is not None and distributed.rank() == 0:
        run.save_checkpoint(
            {
                "model": network.state_dict(),
                "allocator": allocator.state_dict(),
                "progress": asdict(progress),
            }
        )
        run.save_history(progress.records)
    return progress


def decide_and_round(
    network: nn.Module,
    allocator: BitAllocator,
    data: ImageData,
    settings: RunSettings,
    task: Task,
    hooks: Sequence[TrainingHook] = (),
) -> None:
    """Change ``network`` in place: widths by sensitivities that are measured now, then rounded weights."""
    if allocator.method.decides != "never":
        allocator.decide(calibrated_sensitivity(network, allocator, data, settings, task, hooks))
    if not allocator.method.in_float:
        round_as_set(network, data, settings, hooks)


def round_as_set(
    network: nn.Module, data: ImageData, settings: RunSettings, hooks: Sequence[TrainingHook] = ()
) -> None:
    """Change ``network`` in place, whose widths are assigned: ``post_training``, and what ``--calibrate`` asks for.

    With learned steps, weights are left as near to what they were as their codes allow: the network computes the same, and
    what is trained next starts beside the boundaries between codes.
    """
    before = float_weights_of(network)
    report = _reporter(hooks, "rounding weights")
    if settings.calibrate == "fast":
        post_training(network, rounding_inputs(data, settings), on_layer=report)
        restore_fractions(network, before)
        return
    reference = float_copy(network)
    images = split_inputs(data, settings, _MOST_MEASURED, _ROUNDING_BATCH)
    post_training(network, images.rounding, on_layer=report)
    restore_fractions(network, before)
    if not reconstruct(network, reference, images, on_step=_reporter(hooks, "imitating the float network")):
        tell(
            hooks,
            ["learning to repeat the float network's answers did not help: --calibrate fast is as good"],
        )


def _reporter(hooks: Sequence[TrainingHook], what: str) -> Callable[[int, int], None]:
    def report(done: int, total: int) -> None:
        for hook in hooks:
            hook.during_calibration(what, done, total)

    return report


def _measured_images(settings: RunSettings) -> int:
    count = settings.calibration_images
    return min(count, _MOST_MEASURED) if settings.calibrate == "best" else count


def rounding_inputs(data: ImageData, settings: RunSettings) -> list[ModelInputs]:
    """What ``post_training`` looks at in a run: training images, always the same for one seed."""
    batches = calibration_batches(
        data.train, _measured_images(settings), batch_size=_ROUNDING_BATCH, seed=settings.seed
    )
    return [ModelInputs.of(inputs) for inputs, _ in batches]


def calibrated_sensitivity(
    network: nn.Module,
    allocator: BitAllocator,
    data: ImageData,
    settings: RunSettings,
    task: Task,
    hooks: Sequence[TrainingHook] = (),
) -> Sensitivity:
    """What a run without training allocates by."""
    space, report = allocator.space, _reporter(hooks, "measuring sensitivity")
    count = _measured_images(settings)
    total = max(1, count // CALIBRATION_BATCH)
    return measure_sensitivity(
        network,
        space.graph,
        calibration_batches(data.train, count, seed=settings.seed),
        method="activation_density" if settings.method == "ad" else settings.sensitivity,
        precisions=space.as_trained(space.widest),
        widths={name: [p.weight_bits for p in options] for name, options in space.choices.items()},
        on_batch=lambda done: report(done, total),
        seed=settings.seed,
        loss=loss_of(task),
        activation_widths=space.activation_widths if settings.objective == "error" else {},
    )


def loss_of(task: Task) -> LossFunction | None:
    """A task's loss for sensitivities; None for classification, which they know themselves, with its errors."""
    return None if task.has_classes else task.loss


def _record(allocator: BitAllocator, found: dict[str, Any]) -> dict[str, Any]:
    """The one line of history: epoch 0."""
    return {
        "epoch": 0,
        **found,
        "bits": {name: str(precision) for name, precision in allocator.bits.items()},
        "decision": allocator.history[-1].to_dict() if allocator.history else None,
    }
