"""Bit allocation during training with the ``Trainer`` of PyTorch Lightning."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from hwbmpq.data.torchvision_import import import_torchvision
from hwbmpq.errors import HwbmpqError
from hwbmpq.integrations.trainers import check_epochs, check_network, keep_calibration
from hwbmpq.search.allocator import BitAllocator


def _callback_class() -> Any:
    """Lightning's ``Callback``; the package has two names, and importing both would take seconds more."""
    names = [name for name in ("lightning", "pytorch_lightning") if find_spec(name) is not None]
    if not names:
        raise HwbmpqError("PyTorch Lightning is not installed", hint="pip install 'hwbmpq[lightning]'")
    import_torchvision()  # before Lightning's metrics import it directly
    in_use = min(names, key=lambda name: name not in sys.modules)
    return import_module("lightning.pytorch" if in_use == "lightning" else in_use).Callback


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = _callback_class()


class BitAllocationCallback(Callback):
    """Drives a ``BitAllocator`` from a Lightning ``Trainer``.

        allocator = BitAllocator(module.network, images[:1], target="mpic", budgets={"memory": "12x"}, epochs=20)
        trainer = Trainer(max_epochs=20, callbacks=[BitAllocationCallback(allocator)])
        trainer.fit(module, loader)

    The network is prepared where the allocator is made; Lightning creates the optimizers later, in ``fit``.

    Gradients are read in ``on_before_optimizer_step``: once per optimizer step however many batches it
    accumulates, after the strategy has averaged and the precision plugin unscaled them, before Lightning clips
    them. Of several optimizers, only the steps of those that hold parameters of the network count.

    An epoch is closed, and widths are decided, when the next one starts. So validation, checkpoints and early
    stopping at the end of an epoch see the widths used in that epoch, and no decision is made after the last one.

    The allocator's state is part of Lightning's checkpoints; ``fit(ckpt_path=...)`` continues from it.
    """

    def __init__(self, allocator: BitAllocator) -> None:
        self.allocator = allocator
        self._parameters = {id(parameter) for parameter in allocator.model.parameters()}

    def on_fit_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        check_network(self.allocator, pl_module, type(pl_module).__name__)
        if trainer.max_epochs not in (None, -1):
            check_epochs(self.allocator, trainer.max_epochs)

    def on_sanity_check_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self._forget_sanity_check = keep_calibration(self.allocator.model)

    def on_sanity_check_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self._forget_sanity_check()

    def on_train_epoch_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if self.allocator.epoch < trainer.current_epoch:
            self.allocator.epoch_end()

    # A run saved at the end of an epoch may resume within the next one, which then does not start again.
    on_train_start = on_train_epoch_start

    def on_before_optimizer_step(
        self, trainer: "Trainer", pl_module: "LightningModule", optimizer: Optimizer
    ) -> None:
        held = (parameter for group in optimizer.param_groups for parameter in group["params"])
        if any(id(parameter) in self._parameters for parameter in held):
            self.allocator.step(_scaler_still_to_undo(trainer, optimizer))

    def state_dict(self) -> dict[str, Any]:
        return self.allocator.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.allocator.load_state_dict(state_dict)


def _scaler_still_to_undo(trainer: "Trainer", optimizer: Optimizer) -> Any:
    """A fused optimizer unscales within its step; for any other, Lightning has done it."""
    is_fused = getattr(optimizer, "_step_supports_amp_scaling", False)
    return getattr(trainer.precision_plugin, "scaler", None) if is_fused else None
