"""``hwbmpq evaluate``: the accuracy of a run's network."""

import argparse
import json
from typing import Any

from rich.markup import escape

import hwbmpq
from hwbmpq.cli.render import OutputConsole, counted
from hwbmpq.cli.run_building import build

_DESCRIPTION = """\
Rebuild the network of a run at its widths and measure its accuracy, on the run's test images
or on others."""

_EPILOG = """\
examples:
  hwbmpq evaluate runs/resnet18-jetson_nano
  hwbmpq evaluate runs/resnet18-jetson_nano --best --json
  hwbmpq evaluate runs/resnet20-mpic --data npz:other.npz"""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "evaluate",
        parents=[common],
        help="measure the accuracy of a run's network",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="RUN", help="the folder that hwbmpq compress wrote")
    parser.add_argument("--data", metavar="SPEC", help="other images (their test part); default: the run's")
    parser.add_argument("--data-root", metavar="DIR", help="where data sets are (default: as in the run)")
    parser.add_argument("--download", action="store_true", help="fetch the data set if it is not there")
    parser.add_argument("--test-images", type=int, metavar="N", help="a random N of the images")
    parser.add_argument("--best", action="store_true", help="the best epoch's network instead of the last's")
    parser.add_argument("--device", metavar="auto|cpu|cuda|mps", help="where to run (default: as in the run)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    folder = hwbmpq.training.RunDirectory(args.folder).open()
    asked = {name: getattr(args, name) for name in ("data", "data_root", "test_images", "device")}
    settings = folder.load_settings().model_copy(
        # The checkpoint has the weights: what the run began with is not looked for again.
        update={"weights": None, "pretrained": False, **{n: v for n, v in asked.items() if v is not None}}
    )
    state, problem = folder.load_checkpoint(best=args.best)
    model, data = build(settings, download=args.download)
    network = hwbmpq.pipeline.restore(model.network, data, settings, state)
    found = hwbmpq.training.evaluate(network, data.test.batches(hwbmpq.training.EVALUATION_BATCH))
    if args.json:
        content = {
            "run": args.folder,
            "epoch": _epoch(state),
            "data": settings.data,
            "test_accuracy": found.accuracy,
        }
        print(json.dumps({**content, "test_loss": found.loss, "test_images": found.images}, indent=2))
        return
    console = OutputConsole()
    for remark in data.remarks:
        console.print(f"[yellow]![/] {escape(remark)}")
    if problem:
        console.print(f"[yellow]![/] {escape(problem)}: the state before is used")
    if _epoch(state) < settings.epochs and not args.best:
        console.print(
            f"[yellow]![/] the run is not finished: this is epoch {_epoch(state)} of {settings.epochs}"
        )
    console.print(
        f"[bold]test accuracy {found.accuracy:.2%}[/], loss {found.loss:.4f} on {counted(found.images, 'image')} of "
        f"{escape(settings.data)}"
    )


def _epoch(state: dict[str, Any]) -> int:
    """How many epochs a checkpoint has seen; best.pt says so at its top."""
    return int(state.get("progress", state)["epoch"])
