"""Curves for TensorBoard, where it is installed."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwbmpq.errors import HwbmpqError
from hwbmpq.training.hooks import StepReport, TrainingHook
from hwbmpq.training.run_directory import RunDirectory

if TYPE_CHECKING:
    from hwbmpq.training.trainer import Trainer

_CURVES = ("loss", "train_accuracy", "learning_rate")


class TensorBoardHook(TrainingHook):
    """Writes losses, accuracies, ENBG and widths into the folder ``tensorboard`` of a run."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils import tensorboard  # an optional extra
        except ImportError as error:
            raise HwbmpqError("TensorBoard is not installed", hint="pip install tensorboard") from error
        self._make_writer: Any = lambda: tensorboard.SummaryWriter(
            str(RunDirectory(folder).subfolder("tensorboard"))
        )
        self._writer: Any = None

    def __enter__(self) -> "TensorBoardHook":
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def on_start(self, trainer: "Trainer") -> None:
        self._writer = self._make_writer()  # now that the run's folder is there

    def after_step(self, report: StepReport) -> None:
        done = (report.epoch - 1) * report.steps + report.step
        self._writer.add_scalar("step/loss", report.loss, done)

    def after_epoch(self, record: Mapping[str, Any], decision: Any) -> None:
        compared = [name for name in record if name.startswith(("test_", "validation_"))]
        for name in [name for name in (*_CURVES, *compared) if name in record]:
            self._writer.add_scalar(f"epoch/{name}", record[name], record["epoch"])
        for layer, text in record["bits"].items():
            width = int(text.removeprefix("W").partition("A")[0])
            self._writer.add_scalar(f"weight_bits/{layer}", width, record["epoch"])
        for layer, score in ({} if decision is None else decision.sensitivities).items():
            self._writer.add_scalar(f"enbg/{layer}", score, record["epoch"])
