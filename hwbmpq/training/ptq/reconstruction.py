"""``reconstruct``: a calibrated network learns to repeat the float network's answers, from inputs without labels."""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hwbmpq.data.augment import generator_for
from hwbmpq.data.batches import LoaderImages
from hwbmpq.data.images import ImageData, LabelledImages
from hwbmpq.data.inputs import ModelInputs, first_tensor
from hwbmpq.data.validation import subset
from hwbmpq.errors import HwbmpqError, NonFiniteError
from hwbmpq.quant.layers import eval_mode
from hwbmpq.training.optimizers import half_cosine, make_optimizer, set_rate
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import calibration_batches, training_batches

_BATCH = 64
_PASSES = 16
"""How often each image is looked at, augmented anew; more often if there are few images."""
_STEPS = 320
"""At least so many."""
_MOST_COMPARED = 256
_RATE = 5e-4
_LARGEST_NORM = 1.0
"""Of gradients: a few batches have very large ones."""


@dataclass(frozen=True, kw_only=True)
class SplitInputs:
    """Calibration images: all to round by, most to learn from, the others to tell whether that helped."""

    rounding: Sequence[ModelInputs]
    """Of few images some are among the others too, which then speak for the rounded network: it fits them closely."""
    learning: Iterator[ModelInputs]
    """Batches without end, augmented as in training."""
    steps: int
    """How many of them to take."""
    others: Sequence[ModelInputs]


def reconstruct(
    model: nn.Module,
    reference: nn.Module,
    images: SplitInputs,
    *,
    on_step: Callable[[int, int], None] | None = None,
) -> bool:
    """Change ``model`` in place: weights, step sizes, clipping points and biases imitate ``reference``, its float network.

    Whatever the two answer to the same inputs is brought together in the mean square. ``model`` stays in evaluation mode,
    so that its norms keep their statistics. Returns whether the answers to ``images.others`` came closer; if they did not,
    ``model`` is as it was.
    """
    before, was_apart = copy.deepcopy(model.state_dict()), _mean_difference(model, reference, images.others)
    _imitate(model, reference, images, on_step)
    if _mean_difference(model, reference, images.others) < was_apart:
        return True
    model.load_state_dict(before)
    return False


def _imitate(
    model: nn.Module,
    reference: nn.Module,
    images: SplitInputs,
    on_step: Callable[[int, int], None] | None,
) -> None:
    optimizer = make_optimizer(model, kind="adam", rate=_RATE, relative_steps=True)
    with eval_mode(model), eval_mode(reference), torch.enable_grad():
        for step, inputs in zip(range(images.steps), images.learning, strict=False):
            loss = _difference(model, reference, inputs.for_model(model))
            if not torch.isfinite(loss):
                raise NonFiniteError(
                    f"calibration step {step + 1}: the difference from the float network is {loss.item()}",
                    hint="use --calibrate fast, and check the data",
                )
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), _LARGEST_NORM)
            set_rate(optimizer, _RATE * half_cosine(step / images.steps))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if on_step is not None:
                on_step(step + 1, images.steps)


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


def split_inputs(
    data: ImageData, settings: RunSettings, rounding_images: int, batch_size: int
) -> SplitInputs:
    """Up to ``calibration_images`` of the training part, a quarter of them, at most 256, to compare networks on."""
    images = data.train
    count = min(settings.calibration_images, len(images))
    if isinstance(images, LoaderImages):
        size = min(_BATCH, max(1, count // 4))
        shown = [ModelInputs.of(inputs) for inputs, _ in images.first(count, size)]
        kept = max(1, len(shown) - len(shown) // 4)
        return SplitInputs(
            rounding=shown,
            learning=itertools.cycle(shown[:kept]),
            steps=_steps(count, size),
            others=shown[kept:] or shown,
        )
    order = torch.randperm(len(images), generator=generator_for("reconstruction", settings.seed))[:count]
    compared = min(_MOST_COMPARED, count // 4)
    chosen, seen = (subset(images, order[start:].sort().values) for start in (0, compared))
    others = subset(images, order[:compared].sort().values) if compared else seen
    size = min(_BATCH, len(seen))
    return SplitInputs(
        rounding=_inputs_of(
            calibration_batches(chosen, rounding_images, batch_size=batch_size, seed=settings.seed)
        ),
        learning=_endless(seen, size, settings.augment or data.augment, settings.seed),
        steps=_steps(count, size),
        others=_inputs_of(others.batches(batch_size)),
    )


def _steps(count: int, size: int) -> int:
    return max(_STEPS, _PASSES * count // size)


def _inputs_of(batches: Iterable[tuple[Any, Any]]) -> list[ModelInputs]:
    return [ModelInputs.of(inputs) for inputs, _ in batches]


def _endless(images: LabelledImages, size: int, augment: str, seed: int) -> Iterator[ModelInputs]:
    batches = training_batches(images, batch_size=size, augment=augment, seed=seed)
    for epoch in itertools.count():
        yield from (ModelInputs.of(inputs) for inputs, _ in batches.epoch(epoch))
