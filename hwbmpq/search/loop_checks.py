"""What somebody's own training loop can get wrong without any error of torch's: noticed here, and said."""

import sys
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from hwbmpq.errors import HwbmpqError, HwbmpqWarning, NonFiniteError
from hwbmpq.quant import InputQuantizer, WeightQuantizer, quantized_layers
from hwbmpq.sensitivity.enbg import ORDER_OF_CALLS, BitGradientCollector

_ENOUGH_STEPS = 10
"""By then each of several optimizers has made a step."""


def mark_undecided(model: nn.Module, why: str) -> None:
    """Note that ``model`` is still at the widths of the warm-up; with an empty text, that it no longer is."""
    for _, layer in quantized_layers(model):
        layer.undecided = (layer.precision, why) if why else None


def warn_if_undecided(model: nn.Module) -> None:
    """Before a network is written to a file: are its widths those that the budget allows?"""
    layers = [layer for _, layer in quantized_layers(model)]
    marks = [layer.undecided for layer in layers if layer.undecided is not None]
    # Widths may have been set by hand since then, or loaded.
    if marks and [layer.precision for layer in layers] == [precision for precision, _ in marks]:
        warn(f"this network is written at the widths of the warm-up: {marks[0][1]}")


def undecided(epoch: int, epochs: int, asked: Mapping[str, str]) -> str:
    """What to know about a network whose widths are not decided after ``epoch`` epochs."""
    budgets = " and ".join(f"{name}={text}" for name, text in asked.items()) or "none"
    return (
        f"BitAllocator.epoch_end was called {epoch} times, for {epochs} epochs, and has not decided any widths; the budget "
        f"({budgets}) does not hold yet"
    )


def check_scores(scores: Mapping[str, float], epoch: int, left_out: str) -> None:
    """Raise unless an interval that ends with ``epoch`` tells layers apart; ``left_out``: steps that were not finite."""
    if any(scores.values()):
        return
    if left_out and not scores:
        raise NonFiniteError(
            f"epoch {epoch}: {left_out}: there is nothing to decide by",
            hint="lower the learning rate, clip gradients, or check the data",
        )
    what = "every sensitivity is zero" if scores else "no bit gradients were collected"
    raise HwbmpqError(
        f"{what} up to epoch {epoch}, so there is nothing to decide by",
        hint="call allocator.step() after loss.backward(), before the gradients are cleared",
    )


def warn_of_extra_epoch(epoch: int, epochs: int) -> None:
    """Say it at the first epoch that the schedule does not have."""
    if epochs and epoch == epochs + 1:
        warn(
            f"epoch {epoch} of {epochs}: the allocator was made for fewer epochs, and the widths stay as they are"
        )


def warn(message: str) -> None:
    """Warn at the line of the user's own code that called into hwbmpq."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("hwbmpq"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, HwbmpqWarning, stacklevel=level)


class LoopWatch:
    """Looks at the first step's gradients, and at whether the optimizers hold what quantizers have added."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._held: set[int] = set()
        self._steps = 0
        this = weakref.ref(self)  # torch's list of hooks must not keep the network alive

        def see(optimizer: Optimizer, *_: Any) -> None:
            if (watch := this()) is not None:
                watch._held |= {id(p) for group in optimizer.param_groups for p in group["params"]}

        self._stop = weakref.finalize(self, register_optimizer_step_post_hook(see).remove)

    def after_step(self, collector: BitGradientCollector | None) -> None:
        self._steps += 1
        # Not at every step: a look waits for the device.
        if self._steps == 1 and collector is not None and set(collector.running().values()) == {0.0}:
            warn(
                f"every gradient of this step is zero, so it says nothing about the layers; {ORDER_OF_CALLS}"
            )
        if self._steps >= _ENOUGH_STEPS:
            self.check_optimizers()

    def check_optimizers(self) -> None:
        """Once, when an optimizer of this network is known."""
        if not self._stop.alive or not any(id(p) in self._held for p in self._model.parameters()):
            return
        self._stop()
        ours = {
            name: parameter
            for prefix, module in self._model.named_modules()
            if isinstance(module, (InputQuantizer, WeightQuantizer))
            for name, parameter in module.named_parameters(prefix)
            if parameter.requires_grad
        }
        missing = [name for name, parameter in ours.items() if id(parameter) not in self._held]
        if missing:
            shown = ", ".join(missing[:2]) + (" …" if len(missing) > 2 else "")
            warn(
                f"the optimizer does not hold {len(missing)} of the {len(ours)} parameters that quantization has added "
                f"({shown}), so they never train. Create the optimizer after BitAllocator"
            )
