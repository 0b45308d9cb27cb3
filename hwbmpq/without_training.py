"""The path for people who cannot train: measure, allocate, round well, evaluate."""

from dataclasses import asdict

from torch import nn

from hwbmpq.allocator import BitAllocator
from hwbmpq.data.images import ImageData
from hwbmpq.quant import as_float
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.training.evaluation import evaluate
from hwbmpq.training.hooks import Progress
from hwbmpq.training.run_directory import RunDirectory
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import calibration_batches
from hwbmpq.values import Sensitivity

_EVALUATION_BATCH = 250
_ROUNDING_BATCH = 64


def calibrate_only(
    network: nn.Module,
    allocator: BitAllocator,
    data: ImageData,
    settings: RunSettings,
    run: RunDirectory | None = None,
) -> Progress:
    """Change ``network`` in place, which ``allocator`` has prepared: give it widths and round its weights."""
    progress = Progress()
    with as_float(network):
        progress.float_accuracy = evaluate(network, data.test.batches(_EVALUATION_BATCH)).accuracy
    if allocator.method.decides != "never":
        allocator.decide(_sensitivity(network, allocator, data, settings))
    if not allocator.method.in_float:
        from hwbmpq.training.post_training import post_training

        batches = calibration_batches(
            data.train, settings.calibration_images, batch_size=_ROUNDING_BATCH, seed=settings.seed
        )
        post_training(network, [images for images, _ in batches])
    found = evaluate(network, data.test.batches(_EVALUATION_BATCH))
    progress.records.append(_record(allocator, found.accuracy, found.loss))
    if run is not None:
        run.save_checkpoint(
            {
                "model": network.state_dict(),
                "allocator": allocator.state_dict(),
                "progress": asdict(progress),
            }
        )
        run.save_history(progress.records)
    return progress


def _sensitivity(
    network: nn.Module, allocator: BitAllocator, data: ImageData, settings: RunSettings
) -> Sensitivity:
    question = allocator.question
    return measure_sensitivity(
        network,
        question.graph,
        calibration_batches(data.train, settings.calibration_images, seed=settings.seed),
        method="activation_density" if settings.method == "ad" else settings.sensitivity,
        precisions=question.as_trained(question.widest),
        widths={name: [p.weight_bits for p in options] for name, options in question.choices.items()},
        seed=settings.seed,
    )


def _record(allocator: BitAllocator, accuracy: float, loss: float) -> dict[str, object]:
    """The one line of history: epoch 0."""
    return {
        "epoch": 0,
        "test_accuracy": accuracy,
        "test_loss": loss,
        "bits": {name: str(precision) for name, precision in allocator.bits.items()},
        "decision": allocator.history[-1].to_dict() if allocator.history else None,
    }
