"""Write a run's network as ONNX or packed weights.

Write the network of a run as a file.

  onnx    standard quantized ONNX: weights stored as integers of 2, 4, 8 or 16 bits. It is loaded and run in ONNX
          Runtime and compared with the network before it is written. With --runtime-compat int8, the form that ONNX
          Runtime fuses into its integer kernels: larger, and faster.
  packed  model.safetensors, every weight at exactly its bits, for hwbmpq.load; compress writes it by itself
  qonnx   ONNX with Quant nodes of any width, for FINN, hls4ml and QONNX's own tools

examples:
  hwbmpq export runs/resnet18-jetson_nano
  hwbmpq export runs/resnet18-jetson_nano --runtime-compat int8 -o fast.onnx
  hwbmpq export runs/resnet20-mpic --format packed --best -o best.safetensors
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import hwbmpq
from hwbmpq.cli.console import escape
from hwbmpq.cli.options.common import RegistryNames, add_count, check_output
from hwbmpq.cli.options.network import OpenedRun, add_run_options, open_run
from hwbmpq.cli.progress import progress
from hwbmpq.cli.render.export import print_agreement, print_size
from hwbmpq.cli.render.tables import OutputConsole, print_json, print_remarks
from hwbmpq.errors import HwbmpqError
from hwbmpq.registry import EXPORT_FORMATS

if TYPE_CHECKING:
    from hwbmpq.export import SizeAccount
    from hwbmpq.export.deployment import ExportFormat, ExportResult


def add_options(parser: argparse.ArgumentParser) -> None:
    names = RegistryNames(EXPORT_FORMATS)
    text = "%(choices)s (default: %(default)s)"
    parser.add_argument("--format", type=names, choices=names, default="onnx", metavar="NAME", help=text)
    parser.add_argument("-o", "--output", metavar="FILE", help="output file (default: in the run's folder)")
    parser.add_argument(
        "--runtime-compat",
        choices=("none", "older", "int8", "int8-vnni"),
        default="none",
        help="older: integers of 8 and 16 bits only, for ONNX Runtime before 1.24 (2-bit integers) or 1.19 (4-bit "
        "integers); int8: the form that ONNX Runtime fuses into 8-bit integer kernels, right on any processor; "
        "int8-vnni: the same for Arm and for x86 with VNNI only, where 8-bit weights are faster (default: %(default)s, "
        "the exact graph)",
    )
    add_count(parser, "--compare", 256, "how many test images the file is compared with the network on")
    add_run_options(parser)


def run(args: argparse.Namespace) -> None:
    form: ExportFormat = EXPORT_FORMATS.get(args.format)
    if args.runtime_compat != "none" and "runtime_compat" not in form.options:
        raise HwbmpqError(
            f"--runtime-compat is about ONNX files, not the format {args.format}",
            hint="leave it out, or use --format onnx",
        )
    if args.output is not None and not Path(args.output).is_dir():
        check_output("-o", args.output, [form.suffix] if form.suffix else [])
    args.device = "cpu"  # what the files run on
    opened = open_run(args)
    if args.json:
        print_json(_export(args, form, opened).to_dict())
        return
    console = OutputConsole()
    console.print(escape(opened.data.inputs))
    print_remarks(console, opened.remarks)
    result = _export(args, form, opened)
    size = result.size if form.name == "packed" else None
    wider, remarks = (0, []) if size is None else _wider_on_device(opened, size)
    _show(console, result, wider=wider)
    print_remarks(console, remarks)


def _export(args: argparse.Namespace, form: "ExportFormat", opened: OpenedRun) -> "ExportResult":
    given = {"runtime_compat": args.runtime_compat, "images": args.compare}
    options = {name: value for name, value in given.items() if name in form.options}
    with progress("comparing with the network", args.compare) as advance:
        return form.export(
            opened.network,
            opened.data,
            opened.settings,
            _place(args, opened.folder.path / form.file),
            on_image=advance,
            **options,
        )


def _place(args: argparse.Namespace, own: Path) -> Path:
    """Where to write: as -o says, a file or a folder for it; else beside the run's other files."""
    if args.runtime_compat != "none":
        own = own.with_suffix(f".{args.runtime_compat}{own.suffix}")
    if args.best:
        own = own.with_name(hwbmpq.training.of_best(own.name))
    if args.output is None:
        return own
    return Path(args.output) / own.name if Path(args.output).is_dir() else Path(args.output)


def _wider_on_device(opened: OpenedRun, size: "SizeAccount") -> tuple[int, list[str]]:
    """Bytes that the run's device stores beyond those of the file, 0 for runs that do not say; remarks."""
    if not opened.folder.has_facts:
        return 0, []
    try:
        facts = hwbmpq.report.read_facts(opened.folder.path)
    except HwbmpqError as error:  # the file itself is written, and right
        return 0, [f"what the device stores is not known: {error}"]
    widths = {name: layer.weight_bits for name, layer in hwbmpq.quant.quantized_layers(opened.network)}
    stored = hwbmpq.report.storage.bytes_on_device(facts, widths)
    return (0 if stored is None else stored - size.on_device.predicted_bytes), []


def _show(console: OutputConsole, result: "ExportResult", *, wider: int) -> None:
    if result.size is not None:
        print_size(console, result.size, wider=wider)
    print_remarks(console, result.remarks)
    if result.agreement is not None:
        print_agreement(console, result.agreement)
    detail = f": {escape(result.detail)}" if result.detail else ""
    console.print(f"[bold]{escape(str(result.path))}[/]{detail}")
