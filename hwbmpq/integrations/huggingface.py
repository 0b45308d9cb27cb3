"""Bit allocation during training with the ``Trainer`` of Hugging Face transformers."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from hwbmpq.data.torchvision_import import import_torchvision
from hwbmpq.errors import HwbmpqError
from hwbmpq.integrations.trainers import (
    check_epochs,
    check_network,
    keep_calibration,
    save_without_sharing,
)
from hwbmpq.io import atomic_write, open_regular
from hwbmpq.models.archives import check_archive
from hwbmpq.search.allocator import BitAllocator

try:
    import_torchvision()  # before transformers imports it directly
    from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise HwbmpqError(
        f"transformers is not installed: {error}", hint="pip install 'hwbmpq[huggingface]'"
    ) from error

STATE_FILE = "hwbmpq_allocator.pt"
_MOST_BYTES = 1 << 32


class BitAllocationCallback(TrainerCallback):
    """Drives a ``BitAllocator`` from a Hugging Face ``Trainer``.

        allocator = BitAllocator(model, pixels[:1], target="mpic", budgets={"memory": "12x"}, epochs=20)
        trainer = Trainer(model, TrainingArguments(num_train_epochs=20), train_dataset=data)
        BitAllocationCallback(allocator).attach(trainer)
        trainer.train()

    The network is prepared where the allocator is made; the Trainer creates its optimizer later, in ``train``.

    No event of the Trainer lies between the backward pass and clipping: ``on_pre_optimizer_step`` comes after it,
    and ``max_grad_norm`` is 1 by default. So ``attach`` reads the gradients after the trainer's ``training_step``,
    for the last batch of each optimizer step: complete, averaged over ranks, not yet clipped.
    Float16's loss scaling is undone.

    An epoch is closed, and widths are decided, when the next one begins. So evaluation, checkpoints and early
    stopping at the end of an epoch see the widths used in that epoch, and no decision is made after the last one.

    Checkpoint folders hold the allocator's state; ``train(resume_from_checkpoint=...)`` continues from it. With
    ``load_best_model_at_end`` the allocator goes back to the best checkpoint too.
    """

    def __init__(self, allocator: BitAllocator) -> None:
        self.allocator = allocator
        self._is_attached = False
        self._has_epoch_ended = False
        self._forget_evaluation: Callable[[], None] | None = None

    def attach(self, trainer: Trainer) -> None:
        """Changes ``trainer`` in place: adds this callback, and has it see gradients and resumed checkpoints."""
        assert trainer.model is not None
        check_network(self.allocator, trainer.model, "the model that this Trainer trains")
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        trainer.training_step = self._followed_by_reading(trainer)  # type: ignore[method-assign]
        trainer.train = self._preceded_by_loading(trainer)  # type: ignore[method-assign]
        save_without_sharing(self.allocator.model)
        self._is_attached = True

    def _followed_by_reading(self, trainer: Trainer) -> Callable[..., Any]:
        training_step = trainer.training_step

        @wraps(training_step)
        def step(*args: Any, **kwargs: Any) -> Any:
            loss = training_step(*args, **kwargs)
            if trainer.accelerator.sync_gradients:  # the last batch before an optimizer step
                self.allocator.step(trainer.accelerator.scaler)
            return loss

        return step

    def _preceded_by_loading(self, trainer: Trainer) -> Callable[..., Any]:
        train = trainer.train

        @wraps(train)
        def resume(resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
            folder = resume_from_checkpoint
            if folder is True:
                folder = get_last_checkpoint(trainer.args.output_dir)  # type: ignore[no-untyped-call]
            if folder:
                self._load(Path(folder))
            return train(resume_from_checkpoint, *args, **kwargs)

        return resume

    def _load(self, folder: Path) -> None:
        if not (folder / STATE_FILE).is_file():
            raise HwbmpqError(f"{folder} was saved without a BitAllocationCallback: it has no {STATE_FILE}")
        with open_regular(folder / STATE_FILE, _MOST_BYTES) as file:
            check_archive(file)
            self.allocator.load_state_dict(torch.load(file, weights_only=True))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if not self._is_attached:
            raise HwbmpqError(
                "a Trainer clips gradients before its callbacks see them",
                hint="callback.attach(trainer) before trainer.train(); it adds the callback itself",
            )
        check_epochs(self.allocator, state.num_train_epochs)
        # Training may resume from a checkpoint of the end of an epoch.
        self._has_epoch_ended = state.epoch >= self.allocator.epoch + 1
        if args.eval_on_start:
            self._forget_evaluation = keep_calibration(self.allocator.model)

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        if self._forget_evaluation is not None:
            self._forget_evaluation()
            self._forget_evaluation = None
        if self._has_epoch_ended:
            self.allocator.epoch_end()
        self._has_epoch_ended = False

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self._has_epoch_ended = True

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if args.should_save:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            with atomic_write(folder / STATE_FILE) as file:
                torch.save(self.allocator.state_dict(), file)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._load(Path(state.best_model_checkpoint))
