"""The path for people who cannot train: measure, allocate, round well, evaluate."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from torch import nn

from hwbmpq import distributed
from hwbmpq.data.images import ImageData
from hwbmpq.quant import as_float
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.training.evaluation import EVALUATION_BATCH, evaluate
from hwbmpq.training.hooks import Progress, TrainingHook
from hwbmpq.training.ptq.post_training import post_training
from hwbmpq.training.run_directory import RunDirectory
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import CALIBRATION_BATCH, calibration_batches
from hwbmpq.values import Sensitivity

_ROUNDING_BATCH = 64


def calibrate_only(
    network: nn.Module,
    allocator: BitAllocator,
    data: ImageData,
    settings: RunSettings,
    *,
    run: RunDirectory | None = None,
    hooks: Sequence[TrainingHook] = (),
) -> Progress:
    """Change ``network`` in place, which ``allocator`` has prepared: give it widths and round its weights."""
    progress = Progress()
    with as_float(network):
        progress.float_accuracy = evaluate(network, data.test.batches(EVALUATION_BATCH)).accuracy
    if allocator.method.decides != "never":
        allocator.decide(_sensitivity(network, allocator, data, settings, hooks))
    if not allocator.method.in_float:
        batches = calibration_batches(
            data.train, settings.calibration_images, batch_size=_ROUNDING_BATCH, seed=settings.seed
        )
        post_training(network, [images for images, _ in batches], on_layer=_teller(hooks, "rounding weights"))
    found = evaluate(network, data.test.batches(EVALUATION_BATCH))
    progress.records.append(_record(allocator, found.accuracy, found.loss))
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


def _teller(hooks: Sequence[TrainingHook], what: str) -> Callable[[int, int], None]:
    def tell(done: int, total: int) -> None:
        for hook in hooks:
            hook.during_calibration(what, done, total)

    return tell


def _sensitivity(
    network: nn.Module,
    allocator: BitAllocator,
    data: ImageData,
    settings: RunSettings,
    hooks: Sequence[TrainingHook],
) -> Sensitivity:
    space, tell = allocator.space, _teller(hooks, "measuring sensitivity")
    total = max(1, settings.calibration_images // CALIBRATION_BATCH)
    return measure_sensitivity(
        network,
        space.graph,
        calibration_batches(data.train, settings.calibration_images, seed=settings.seed),
        method="activation_density" if settings.method == "ad" else settings.sensitivity,
        precisions=space.as_trained(space.widest),
        widths={name: [p.weight_bits for p in options] for name, options in space.choices.items()},
        on_batch=lambda done: tell(done, total),
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
