"""Measure the accuracy of a run's network.

Rebuild the network of a run at its widths and measure its accuracy, or what else the run's task
is measured by, on the run's test images or on others: in torch, from the packed file, or from the ONNX file in ONNX Runtime.

examples:
  hwbmpq evaluate runs/resnet18-jetson_nano
  hwbmpq evaluate runs/resnet18-jetson_nano --best --json
  hwbmpq evaluate runs/resnet20-mpic --data npz:other.npz
  hwbmpq export runs/resnet20-mpic && hwbmpq evaluate runs/resnet20-mpic --runtime onnxruntime
"""

import argparse
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import hwbmpq
from hwbmpq.cli.console import escape
from hwbmpq.cli.options.network import OpenedRun, add_run_options, build, open_run
from hwbmpq.cli.options.settings import add_settings
from hwbmpq.cli.render.tables import OutputConsole, print_json, print_remarks
from hwbmpq.errors import HwbmpqError
from hwbmpq.units import counted

if TYPE_CHECKING:
    from hwbmpq.training import Evaluation

RUNTIMES = ("torch", "packed", "onnxruntime")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    add_settings(parser, "device", default=None, help="where to run (default: as in the run)")
    parser.add_argument(
        "--runtime",
        choices=RUNTIMES,
        default="torch",
        help="what runs: the checkpoint in torch, the packed model.safetensors in torch, or an ONNX file in ONNX Runtime "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--file", metavar="FILE", help="the packed or ONNX file (default: the one that the run has)"
    )


def run(args: argparse.Namespace) -> None:
    file = _file(args)
    opened = open_run(args)
    found, remarks = _evaluate(opened, args.runtime, file, trust=args.trust)
    warnings, metric = _chance_warnings(opened, found), opened.task.described
    if args.json:
        content = {
            "run": args.folder,
            "runtime": args.runtime,
            "file": None if file is None else str(file),
            "epoch": opened.epoch if file is None else None,  # a file does not say
            "data": opened.settings.data,
            "normalise": opened.data.normalise,
            **hwbmpq.training.figures(metric, "test", found),
            "test_images": found.images,
            "remarks": remarks,
            "warnings": warnings,
        }
        print_json(content)
        return
    console = OutputConsole()
    console.print(escape(opened.data.inputs))
    print_remarks(console, [*opened.remarks, *remarks, *warnings])
    where = "" if file is None else f", {escape(file.name)} in {args.runtime.replace('packed', 'torch')}"
    console.print(
        f"[bold]test {escape(metric.name)} {metric.text(found.value)}[/], loss {found.loss:.4f} on "
        f"{counted(found.images, opened.data.samples.removesuffix('s'))} of "
        f"{escape(opened.settings.data)}{where}"
    )


def _file(args: argparse.Namespace) -> Path | None:
    """The file to run, which must be there; None for the checkpoint."""
    if args.runtime == "torch":
        if args.file:
            raise HwbmpqError(
                "--file needs a runtime for it", hint="add --runtime packed or --runtime onnxruntime"
            )
        return None
    folder = hwbmpq.training.RunDirectory(args.folder).open()
    if args.file:
        if not Path(args.file).is_file():
            raise HwbmpqError(f"--file {args.file} is not there")
        return Path(args.file)
    path = folder.packed_file if args.runtime == "packed" else folder.onnx_file("qdq")
    if args.best:
        path = path.with_name(hwbmpq.training.of_best(path.name))
    if not path.is_file():
        form = "packed" if args.runtime == "packed" else "onnx"
        best = " --best" if args.best else ""
        raise HwbmpqError(
            f"{path} is not there", hint=f"write it: hwbmpq export {quote(args.folder)} --format {form}{best}"
        )
    return path


def _evaluate(
    opened: OpenedRun, runtime: str, file: Path | None, *, trust: bool
) -> "tuple[Evaluation, list[str]]":
    """What was found, and what to say about the file."""
    if runtime == "onnxruntime" and file is not None:
        graph = hwbmpq.export.OnnxNetwork(file, trust=trust)
        remarks = (
            []
            if graph.has_checksum
            else [f"{file} has no checksum: it was not written by hwbmpq, or is damaged"]
        )
        found = hwbmpq.export.deployment.evaluate_onnx(
            graph, opened.data, task=opened.task, original=opened.network
        )
        return found, remarks
    # The packed weights go into the run's own network, so that ``file:`` specifications work too.
    network = opened.network
    if file is not None:
        own, _ = build(opened.settings, is_from_0_1_0=opened.is_from_0_1_0)
        network = hwbmpq.load(file, model=own.network)
    return hwbmpq.training.evaluate(
        network, hwbmpq.training.evaluation_batches(opened.data.test), opened.task
    ), []


def _chance_warnings(opened: OpenedRun, found: "Evaluation") -> list[str]:
    """A warning if a classifier is hardly better than guessing."""
    doubt = hwbmpq.data.chance_remark(
        found.value,
        found.images,
        opened.data.classes if opened.task.has_classes else None,
        inputs=opened.data.inputs,
        what="the network",
        name=opened.settings.data,
    )
    return [] if doubt is None else [doubt]
