"""``reconstruct``: a calibrated network learns to repeat the float network's answers, from inputs without labels."""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from hwbmpq.data.augment import generator_for
from hwbmpq.data.batches import LoaderImages
from hwbmpq.data.images import ImageData
from hwbmpq.data.inputs import ModelInputs, first_tensor
from hwbmpq.data.validation import subset
from hwbmpq.errors import HwbmpqError, NonFiniteError
from hwbmpq.quant.layers import eval_mode
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import training_batches

_BATCH = 128
_PASSES = 5
"""How often each image is looked at, augmented anew; more often if there are few images."""
_STEPS = 160
"""At least so many."""
_COMPARED = 256
_RATE = 5e-4


def reconstruct(
    model: nn.Module,
    reference: nn.Module,
    batches: Iterable[ModelInputs],
    *,
    steps: int,
    compared_on: Sequence[ModelInputs],
    on_step: Callable[[int, int], None] | None = None,
) -> bool:
    """Change ``model`` in place: weights, step sizes, clipping points and biases imitate ``reference``, its float network.

    Whatever the two answer to the same inputs is brought together in the mean square. ``model`` stays in evaluation mode,
    so that its norms keep their statistics. ``steps`` is how many of the ``batches`` are used. Returns whether the answers
    to ``compared_on`` came closer; if they did not, ``model`` is as it was.
    """
    before, was_apart = copy.deepcopy(model.state_dict()), _mean_difference(model, reference, compared_on)
    _imitate(model, reference, batches, steps, on_step)
    if _mean_difference(model, reference, compared_on) <= was_apart:
        return True
    model.load_state_dict(before)
    return False


def _imitate(
    model: nn.Module,
    reference: nn.Module,
    batches: Iterable[ModelInputs],
    steps: int,
    on_step: Callable[[int, int], None] | None,
) -> None:
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    with eval_mode(model), eval_mode(reference), torch.enable_grad():
        for step, inputs in zip(range(steps), batches, strict=False):
            loss = _difference(model, reference, inputs.for_model(model))
            if not torch.isfinite(loss):
                raise NonFiniteError(
                    f"calibration step {step + 1}: the difference from the float network is {loss.item()}",
                    hint="use --calibrate fast, and check the data",
                )
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            if on_step is not None:
                on_step(step + 1, steps)


@torch.no_grad()
def _mean_difference(model: nn.Module, reference: nn.Module, batches: Sequence[ModelInputs]) -> float:
    with eval_mode(model), eval_mode(reference):
        found = [float(_difference(model, reference, inputs.for_model(model))) for inputs in batches]
    return sum(found) / len(found)


def _difference(model: nn.Module, reference: nn.Module, inputs: ModelInputs) -> torch.Tensor:
    with torch.no_grad():
        wanted = first_tensor(inputs.call(reference))
    found = first_tensor(inputs.call(model))
    if found is None or wanted is None or (torch.is_grad_enabled() and not found.requires_grad):
        raise HwbmpqError(
            "the network's outputs do not depend on its weights, so there is nothing to imitate",
            hint="use --calibrate fast",
        )
    return nn.functional.mse_loss(found.float(), wanted.float())


def split_images(data: ImageData, settings: RunSettings) -> tuple[ImageData, ImageData]:
    """The ``calibration_images`` of the training part, and others to compare networks on; the same if there are no others.

    Compensated rounding fits the images it sees closely: on these alone, nothing that learned from more would look better.
    """
    images = data.train
    if isinstance(images, LoaderImages) or settings.calibration_images + _COMPARED > len(images):
        return data, data
    order = torch.randperm(len(images), generator=generator_for("reconstruction", settings.seed))
    chosen, others = order[: settings.calibration_images], order[settings.calibration_images :][:_COMPARED]
    return (
        replace(data, train=subset(images, chosen.sort().values)),
        replace(data, train=subset(images, others.sort().values)),
    )


def reconstruction_batches(data: ImageData, settings: RunSettings) -> tuple[Iterator[ModelInputs], int]:
    """The training images again and again, augmented as in training, and how many batches to take."""
    count = min(settings.calibration_images, len(data.train))
    size = min(_BATCH, count)
    return _endless(data, settings, size), max(_STEPS, _PASSES * count // size)


def _endless(data: ImageData, settings: RunSettings, size: int) -> Iterator[ModelInputs]:
    if isinstance(data.train, LoaderImages):
        while True:
            yield from (
                ModelInputs.of(inputs) for inputs, _ in data.train.first(settings.calibration_images, size)
            )
    augment = settings.augment or data.augment
    batches = training_batches(data.train, batch_size=size, augment=augment, seed=settings.seed)
    for epoch in itertools.count():
        yield from (ModelInputs.of(inputs) for inputs, _ in batches.epoch(epoch))
