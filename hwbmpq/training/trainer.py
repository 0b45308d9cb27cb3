"""The training loop: an ordinary one, with an allocator in it."""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from shlex import quote
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hwbmpq import distributed
from hwbmpq.data.augment import generator_for
from hwbmpq.data.batches import Batches
from hwbmpq.data.inputs import ModelInputs, map_tensors
from hwbmpq.errors import HwbmpqError, NonFiniteError, RunStoppedError
from hwbmpq.tasks import Task, get_task
from hwbmpq.training.distillation import Teacher
from hwbmpq.training.evaluation import Evaluation, figures
from hwbmpq.training.hooks import Allocator, Progress, StepReport, TrainingHook
from hwbmpq.training.optimizers import half_cosine, make_optimizer, set_rate
from hwbmpq.training.run_directory import RunDirectory
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.start import CalibratedStart

_ONE_CYCLE_RISE = 0.3  # share of the run in which the rate climbs
_ONE_CYCLE_START = 1 / 25


def learning_rate(settings: RunSettings, progress: float) -> float:
    """The rate at ``progress``, the share of all steps that are done (0 to 1)."""
    if settings.lr_schedule == "constant":
        return settings.lr
    if settings.lr_schedule == "step":
        # A hair of tolerance: 0.7 of 10 epochs is 7 of them, whatever floats say.
        passed = sum(progress >= share - 1e-9 for share in settings.lr_decay_at)
        return settings.lr * settings.lr_decay**passed
    if settings.lr_schedule == "cosine":
        return settings.lr * half_cosine(progress)
    if progress < _ONE_CYCLE_RISE:
        rise = 1 - half_cosine(progress / _ONE_CYCLE_RISE)
        return settings.lr * (_ONE_CYCLE_START + (1 - _ONE_CYCLE_START) * rise)
    return settings.lr * half_cosine((progress - _ONE_CYCLE_RISE) / (1 - _ONE_CYCLE_RISE))


_LOOK_EVERY = 50  # steps between looks at the loss on an accelerator, where each look waits for it


class Trainer:
    """Trains a prepared network under an allocator, and can continue after any interruption."""

    def __init__(
        self,
        model: nn.Module,
        allocator: Allocator,
        settings: RunSettings,
        batches: Batches,
        evaluate: Callable[[nn.Module], Evaluation],
        *,
        run: RunDirectory | None = None,
        hooks: Sequence[TrainingHook] = (),
        task: Task | None = None,
        compared_on: str = "test",
        teacher: Teacher | None = None,
    ) -> None:
        """``evaluate`` says how good the network is on the images that epochs are ``compared_on``."""
        if len(batches) < settings.accumulate:
            raise HwbmpqError(
                f"an epoch of {len(batches)} batches is shorter than one step, which accumulates {settings.accumulate}",
                hint="lower --accumulate or --batch-size",
            )
        self.model, self.allocator, self.settings = model, allocator, settings
        self.progress = Progress()
        self.task = get_task(task or settings.task, label_smoothing=settings.label_smoothing)
        self.compared_on = compared_on
        self.start: CalibratedStart | None = None
        """The calibrated network that training begins with, if it does."""
        self._teacher = teacher
        self._batches, self._evaluate = batches, evaluate
        self._run = run
        self._hooks = hooks if distributed.rank() == 0 else ()
        self._device = next(model.parameters()).device
        self._optimizer = make_optimizer(
            model,
            kind=settings.optimizer,
            rate=settings.lr,
            weight_decay=settings.weight_decay,
            alpha_weight_decay=settings.alpha_weight_decay,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
        )
        # bfloat16, the CPU's half precision, has float32's range and needs no scaling.
        self._scaler = torch.amp.GradScaler("cuda", enabled=settings.amp and self._device.type == "cuda")
        self._wrapped = self._wrap()
        self._saved_at = time.monotonic()
        self._stop_asked = False
        self._unread: Tensor | None = None
        """Loss and hits that are still on the device."""
        self._counts_hits = self.task.has_classes

    def _wrap(self) -> nn.Module:
        """Anew whenever widths change: DDP looks once which parameters train, and clipping points may begin to."""
        return DistributedDataParallel(self.model) if distributed.is_distributed() else self.model

    @property
    def steps_per_epoch(self) -> int:
        steps = len(self._batches) // self.settings.accumulate
        if self.settings.max_steps is None:
            return steps
        return min(steps, self.settings.max_steps // self.settings.epochs)

    def ask_to_stop(self) -> None:
        """End the run after the present step, saved; safe to call from a signal handler."""
        self._stop_asked = True

    def run(self) -> Progress:
        """Train from where the run stands to its end."""
        for hook in self._hooks:
            hook.on_start(self)
        while self.progress.epoch < self.settings.epochs:
            self._train_epoch()
            self._read_counts()
            evaluation = distributed.on_first_rank(self._checked_evaluation)
            is_best, bits = self._is_best(evaluation), self._written_bits()
            if is_best:
                self._save_best(bits)
            decision = self.allocator.epoch_end()
            self._close_epoch(evaluation, is_best, bits, decision)
        self._keep_the_better()
        return self.progress

    def start_from_calibration(self) -> None:
        """Remember the network as it is now, calibrated: the run will not end below it."""
        evaluation = distributed.on_first_rank(self._checked_evaluation)
        self.progress.calibrated = evaluation.value
        self.start = CalibratedStart(
            value=evaluation.value,
            model={name: _copied(value) for name, value in self.model.state_dict().items()},
            allocator=self.allocator.state_dict(),
        )
        self._wrapped = self._wrap()  # gives all ranks the first one's weights

    def _keep_the_better(self) -> None:
        """Go back to the calibrated network if training has ended below it."""
        if self.start is None or not self.progress.records:
            return
        last = self.progress.records[-1][f"{self.compared_on}_{self.task.described.key}"]
        self.progress.keeps_calibrated = self.task.is_better(self.start.value, last)
        if self.progress.keeps_calibrated:
            self.model.load_state_dict(self.start.model)
            self.allocator.load_state_dict(self.start.allocator)
            self.save()

    def _written_bits(self) -> dict[str, str]:
        return {name: str(precision) for name, precision in self.allocator.bits.items()}

    def _train_epoch(self) -> None:
        progress, size = self.progress, self.settings.accumulate
        self._train_mode()
        batches = self._batches.epoch(progress.epoch, start=progress.batch)
        while progress.batch + size <= self.steps_per_epoch * size:
            group = [batch for _, batch in zip(range(size), batches, strict=False)]
            if len(group) < size:
                break  # a loader that is shorter than it said
            self._step(group)
            progress.batch += size
            self._after_step()

    def _train_mode(self) -> None:
        self.model.train()
        if self.settings.norms == "frozen":
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()

    def _step(self, group: list[tuple[Any, Any]]) -> None:
        self._set_learning_rate()
        self._seed_step()
        for number, (inputs, targets) in enumerate(group):
            self._backward(ModelInputs.of(inputs), targets, is_last=number == len(group) - 1)
        self.allocator.step(self._scaler)
        if self.settings.clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        set_rate(self._optimizer, self.progress.learning_rate)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)

    def _seed_step(self) -> None:
        """On several ranks, what a step draws depends on nothing drawn before: a checkpoint has one rank's state only."""
        if distributed.is_distributed():
            place = (self.settings.seed, distributed.rank(), self.progress.epoch, self.progress.batch)
            number = generator_for("step", *place).initial_seed()
            torch.manual_seed(number)
            random.seed(number)

    def _backward(self, inputs: ModelInputs, targets: Any, *, is_last: bool) -> None:
        inputs = inputs.on(self._device)
        targets = map_tensors(targets, lambda tensor: tensor.to(self._device, non_blocking=True))
        if isinstance(self._wrapped, DistributedDataParallel):
            self._wrapped.require_backward_grad_sync = is_last
        try:
            # Only CUDA's gradients are scaled, which float16 needs.
            half = torch.float16 if self._device.type == "cuda" else torch.bfloat16
            with torch.autocast(self._device.type, half, enabled=self.settings.amp):
                outputs = inputs.call(self._wrapped)
            loss = self.task.loss(outputs, targets)
            if self._teacher is not None:
                loss = self._teacher.loss(outputs, inputs, loss)
            self._scaler.scale(loss / self.settings.accumulate).backward()  # type: ignore[no-untyped-call]
        except NonFiniteError as error:
            raise self._diverged(str(error)) from error
        with torch.no_grad():
            hits = self.task.hits(outputs, targets)
        self._count(loss.detach(), hits, len(inputs))

    def _count(self, loss: Tensor, hits: Tensor | None, samples: int) -> None:
        found = torch.stack([loss * samples, loss.new_zeros(()) if hits is None else hits.to(loss.dtype)])
        self._unread = found if self._unread is None else self._unread + found
        self._counts_hits = hits is not None
        self.progress.images += samples
        # On CPU a look costs nothing; elsewhere it waits for the device.
        step = self.progress.batch // self.settings.accumulate
        if self._device.type == "cpu" or step % _LOOK_EVERY == 0:
            self._read_counts()

    def _read_counts(self) -> None:
        """Bring loss and hits over from the device."""
        if self._unread is None:
            return
        loss, correct = self._unread.tolist()
        self._unread = None
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is {loss}")
        self.progress.loss_sum += loss
        self.progress.correct += int(correct)

    def _diverged(self, what: str, hint: str = "") -> NonFiniteError:
        step = min(self.progress.batch // self.settings.accumulate + 1, self.steps_per_epoch)
        kept = (
            f"; the state after epoch {self.progress.epoch} is kept"
            if self._run and self.progress.epoch
            else ""
        )
        return NonFiniteError(
            f"epoch {self.progress.epoch + 1}, step {step}: {what}{kept}",
            hint=hint or "lower the learning rate (--lr), clip gradients (--clip-norm 1), or check the data",
        )

    def _set_learning_rate(self) -> None:
        progress = self.progress
        done = progress.epoch * self.steps_per_epoch + progress.batch // self.settings.accumulate
        self.progress.learning_rate = learning_rate(
            self.settings, done / (self.settings.epochs * self.steps_per_epoch)
        )

    def _after_step(self) -> None:
        progress = self.progress
        report = StepReport(
            epoch=progress.epoch + 1,
            step=progress.batch // self.settings.accumulate,
            steps=self.steps_per_epoch,
            loss=progress.loss_sum / max(1, progress.images),
            accuracy=self._train_accuracy(),
            learning_rate=self.progress.learning_rate,
        )
        for hook in self._hooks:
            hook.after_step(report)
        is_last = report.step == report.steps
        if self._stop_asked or (self._is_save_due() and not is_last):
            self.save()
        if self._stop_asked:
            raise RunStoppedError(
                f"in epoch {report.epoch} after step {report.step} of {report.steps}",
                hint="" if self._run is None else f"hwbmpq compress --resume {quote(str(self._run.path))}",
            )

    def _is_save_due(self) -> bool:
        return time.monotonic() - self._saved_at > 60 * self.settings.checkpoint_minutes

    def _is_best(self, evaluation: Evaluation) -> bool:
        """Whether this epoch, at widths that the method chose, is the best so far; then it is remembered."""
        progress = self.progress
        if not self.allocator.is_settled:
            return False
        if progress.best_epoch and not self.task.is_better(evaluation.value, progress.best_accuracy):
            return False
        progress.best_accuracy, progress.best_epoch = evaluation.value, progress.epoch + 1
        return True

    def _train_accuracy(self) -> float | None:
        """Of the epoch so far; None if the task has no right and wrong."""
        progress = self.progress
        return progress.correct / max(1, progress.images) if self._counts_hits else None

    def _close_epoch(
        self, evaluation: Evaluation, is_best: bool, bits: dict[str, str], decision: Any | None
    ) -> None:
        """``bits`` are the widths that the epoch was trained at."""
        progress = self.progress
        if decision is not None:
            self._wrapped = self._wrap()
        record = {
            "epoch": progress.epoch + 1,
            "loss": progress.loss_sum / max(1, progress.images),
            **({} if self._train_accuracy() is None else {"train_accuracy": self._train_accuracy()}),
            **figures(self.task.described, self.compared_on, evaluation),
            "learning_rate": self.progress.learning_rate,
            "is_best": is_best,
            "bits": bits,
            "decision": None if decision is None else decision.to_dict(),
        }
        progress.records.append(record)
        progress.epoch += 1
        progress.batch = progress.images = progress.correct = 0
        progress.loss_sum = 0.0
        self.save()
        for hook in self._hooks:
            hook.after_epoch(record, decision)

    def _checked_evaluation(self) -> Evaluation:
        try:
            found = self._evaluate(self.model)
        except NonFiniteError as error:
            raise self._diverged(str(error), error.hint) from error
        if not math.isfinite(found.loss):
            raise self._diverged(f"the loss on the {self.compared_on} images is {found.loss}")
        return found

    # state

    def save(self) -> None:
        """Write a checkpoint of everything that the rest of the run depends on; not of a run that diverged."""
        self._read_counts()
        self._saved_at = time.monotonic()
        if self._run is None or distributed.rank() != 0:
            return
        self._run.save_checkpoint(self.state_dict())
        self._run.save_history(self.progress.records)

    def _save_best(self, bits: dict[str, str]) -> None:
        if self._run is not None and distributed.rank() == 0:
            self._run.save_best(
                {"model": self.model.state_dict(), "bits": bits, "epoch": self.progress.best_epoch}
            )

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "allocator": self.allocator.state_dict(),
            "progress": asdict(self.progress),
            "random": _random_state(),
            "start": None if self.start is None else self.start.to_dict(),
            "teacher": None if self._teacher is None else self._teacher.network.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where the run stood when ``state`` was saved, in every bit."""
        self.model.load_state_dict(state["model"])
        self.allocator.load_state_dict(state["allocator"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        self.progress = Progress(**state["progress"])
        start, teacher = state.get("start"), state.get("teacher")  # 0.1.0 had neither
        self.start = None if start is None else CalibratedStart.from_dict(start)
        if self._teacher is not None and teacher is not None:
            self._teacher.network.load_state_dict(teacher)
        self._wrapped = self._wrap()
        if distributed.rank() == 0:  # the state is the first rank's
            _set_random_state(state["random"])


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _random_state() -> dict[str, Any]:
    """Of torch and Python, for dropout and the like; batches and their augmentation need none."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(numbers), gauss]}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "cuda" in state and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
