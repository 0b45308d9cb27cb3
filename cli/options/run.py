"""Commands that work on a finished run: which one, which state of it, on which images."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

import hwbmpq
from hwbmpq.cli.options.run_building import build

if TYPE_CHECKING:
    from hwbmpq.data import ImageData
    from hwbmpq.training import RunDirectory, RunSettings


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the folder that hwbmpq compress wrote")
    parser.add_argument("--data", metavar="SPEC", help="other images (their test part); default: the run's")
    parser.add_argument("--data-root", metavar="DIR", help="where data sets are (default: as in the run)")
    parser.add_argument("--download", action="store_true", help="fetch the data set if it is not there")
    parser.add_argument("--test-images", type=int, metavar="N", help="a random N of the images")
    parser.add_argument("--best", action="store_true", help="the best epoch's network instead of the last's")
    parser.add_argument("--json", action="store_true", help="print JSON")


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A run's network at its widths, with the images to try it on."""

    folder: "RunDirectory"
    settings: "RunSettings"
    network: Any
    """A torch module."""
    data: "ImageData"
    epoch: int
    remarks: tuple[str, ...]

    def print_remarks(self, console: Console) -> None:
        for remark in self.remarks:
            console.print(f"[yellow]![/] {escape(remark)}")


def open_run(args: argparse.Namespace) -> OpenedRun:
    folder = hwbmpq.training.RunDirectory(args.folder).open()
    asked = {name: getattr(args, name, None) for name in ("data", "data_root", "test_images", "device")}
    settings = folder.load_settings().model_copy(
        # The checkpoint has the weights: what the run began with is not looked for again.
        update={"weights": None, "pretrained": False, **{n: v for n, v in asked.items() if v is not None}}
    )
    state, problem = folder.load_checkpoint(best=args.best)
    model, data = build(settings, download=args.download)
    network = hwbmpq.pipeline.restore(model.network, data, settings, state)
    epoch = _epoch(state)
    remarks = list(data.remarks)
    if problem:
        remarks.append(f"{problem}: the state before is used")
    if epoch < settings.epochs and not args.best:
        remarks.append(f"the run is not finished: this is epoch {epoch} of {settings.epochs}")
    return OpenedRun(
        folder=folder, settings=settings, network=network, data=data, epoch=epoch, remarks=tuple(remarks)
    )


def _epoch(state: dict[str, Any]) -> int:
    """How many epochs a checkpoint has seen; best.pt says so at its top."""
    return int(state.get("progress", state)["epoch"])
