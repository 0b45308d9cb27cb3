"""What the training loop works with, and whom it tells."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hwbmpq import distributed

if TYPE_CHECKING:
    from hwbmpq.report import AccuracyProbe, AccuracySearch
    from hwbmpq.training.trainer import Trainer


class Allocator(Protocol):
    """What the loop asks of a ``BitAllocator``."""

    bits: dict[str, Any]

    @property
    def is_settled(self) -> bool: ...
    def step(self, scaler: Any = None) -> None: ...
    def epoch_end(self) -> Any: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass
class Progress:
    """Where a run stands."""

    epoch: int = 0
    """Epochs that have ended."""
    batch: int = 0
    """Batches of the running epoch that are done."""
    learning_rate: float = 0.0
    """Of the last step."""
    loss_sum: float = 0.0
    images: int = 0
    correct: int = 0
    best_accuracy: float = -1.0
    """The metric of the best epoch, whatever the task: checkpoints have it by this name."""
    best_epoch: int = 0
    """0 before there is one."""
    float_accuracy: float | None = None
    """The metric of the weights that the run began with, before quantization, if they were given; on test images."""
    calibrated: float | None = None
    """The metric of the calibrated network that training began with, on the images that epochs are compared on."""
    keeps_calibrated: bool = False
    """Whether the run ended with the calibrated network, since training did not improve it."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """One for each epoch that has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What a hook is told after an optimizer step."""

    epoch: int
    """Counted from 1."""
    step: int
    steps: int
    """In an epoch."""
    loss: float
    """Mean over the epoch so far."""
    accuracy: float | None
    """On the training images of the epoch so far, augmented; None if the task has no right and wrong."""
    learning_rate: float


class TrainingHook:
    """Told what happens; on rank 0 only."""

    def on_start(self, trainer: "Trainer") -> None: ...
    def on_remark(self, remark: str) -> None: ...
    def after_step(self, report: StepReport) -> None: ...
    def during_calibration(self, what: str, done: int, total: int) -> None: ...
    def after_epoch(self, record: Mapping[str, Any], decision: Any) -> None: ...
    def after_probe(self, probe: "AccuracyProbe", search: "AccuracySearch") -> None: ...


def tell(hooks: Sequence[TrainingHook], remarks: Iterable[str]) -> None:
    """Say something at once, on rank 0."""
    for remark in remarks if distributed.rank() == 0 else ():
        for hook in hooks:
            hook.on_remark(remark)
