"""``hwbmpq export``: a run's network as a file that others execute."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

import hwbmpq
from hwbmpq.cli.options.plan import progress
from hwbmpq.cli.options.run import OpenedRun, add_run_options, open_run
from hwbmpq.cli.render.export import print_agreement, print_size
from hwbmpq.cli.render.tables import OutputConsole, counted
from hwbmpq.errors import HwbmpqError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwbmpq.export import Form
    from hwbmpq.export.deployment import OnnxExport

FORMATS = ("onnx", "packed", "qonnx")
_ACCUMULATES_INT32 = "int8-vnni"
_FORMS: "Mapping[str, Form]" = {"none": "qdq", "int8": "int8", _ACCUMULATES_INT32: "int8"}
"""What --runtime-compat asks for."""

_DESCRIPTION = """\
Write the network of a run as a file.

  onnx    standard quantized ONNX: weights stored as integers of 2, 4, 8 or 16 bits. It is loaded and run in ONNX
          Runtime and compared with the network before it is written. With --runtime-compat int8, the form that ONNX
          Runtime fuses into its integer kernels: larger, and faster.
  packed  model.safetensors, every weight at exactly its bits, for hwbmpq.load; compress writes it by itself
  qonnx   ONNX with Quant nodes of any width, for FINN, hls4ml and QONNX's own tools"""

_EPILOG = """\
examples:
  hwbmpq export runs/resnet18-jetson_nano
  hwbmpq export runs/resnet18-jetson_nano --runtime-compat int8 -o fast.onnx
  hwbmpq export runs/resnet20-mpic --format packed --best -o best.safetensors"""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "export",
        parents=[common],
        help="write a run's network as ONNX or packed weights",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--format", choices=FORMATS, default="onnx", help="(default: %(default)s)")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to (default: in the run's folder)")
    parser.add_argument(
        "--runtime-compat",
        choices=tuple(_FORMS),
        default="none",
        help="int8: the form that ONNX Runtime fuses into 8-bit integer kernels, right on any processor; int8-vnni: the same for Arm "
        "and for x86 with VNNI only, where 8-bit weights are faster (default: %(default)s, the exact graph)",
    )
    parser.add_argument(
        "--compare",
        type=int,
        default=256,
        metavar="N",
        help="how many test images the file is compared with the network on (default: %(default)s)",
    )
    add_run_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    if args.compare < 1:
        raise HwbmpqError(f"--compare {args.compare}: give at least one image")
    if args.runtime_compat != "none" and args.format != "onnx":
        raise HwbmpqError("--runtime-compat is about ONNX files", hint="leave it out, or use --format onnx")
    _check_place(args)
    args.device = "cpu"  # what the files run on
    opened = open_run(args)
    console = OutputConsole()
    if not args.json:
        opened.print_remarks(console)
    (_export_packed if args.format == "packed" else _export_onnx)(args, opened, console)


def _check_place(args: argparse.Namespace) -> None:
    """Before anything slow: whether -o names a file that can be."""
    if args.output is None:
        return
    path = Path(args.output)
    wanted = ".safetensors" if args.format == "packed" else ".onnx"
    if not path.is_dir() and path.suffix != wanted:
        raise HwbmpqError(f"-o {args.output}: files of this format end with {wanted}")
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir():
        raise HwbmpqError(
            f"-o {args.output} cannot be written: {folder} is no folder", hint=f"mkdir -p {folder}"
        )


def _place(args: argparse.Namespace, own: Path) -> Path:
    """Where to write: as -o says, a file or a folder for it; else beside the run's other files."""
    if args.best:
        own = own.with_name(hwbmpq.training.of_best(own.name))
    if args.output is None:
        return own
    return Path(args.output) / own.name if Path(args.output).is_dir() else Path(args.output)


def _export_packed(args: argparse.Namespace, opened: OpenedRun, console: Console) -> None:
    path = _place(args, opened.folder.packed_file)
    account = hwbmpq.export.deployment.save_model(opened.network, opened.data, opened.settings, path)
    if args.json:
        print(json.dumps({"file": str(path), "size": account.to_dict()}, indent=2))
        return
    print_size(console, account)
    console.print(f"[bold]{escape(str(path))}[/]")


def _export_onnx(args: argparse.Namespace, opened: OpenedRun, console: Console) -> None:
    form: Form = "qonnx" if args.format == "qonnx" else _FORMS[args.runtime_compat]
    kind = args.runtime_compat if form == "int8" else form
    path = _place(args, opened.folder.onnx_file(kind))
    with progress("comparing with the network", args.compare) as advance:
        export = hwbmpq.export.deployment.export_onnx(
            opened.network,
            opened.data,
            path,
            settings=opened.settings,
            form=form,
            accumulates_int32=args.runtime_compat == _ACCUMULATES_INT32,
            images=args.compare,
            on_image=advance,
        )
    if args.json:
        print(json.dumps(_to_dict(export), indent=2))
        return
    graph = export.graph
    print_size(console, graph.account)
    for remark in graph.remarks:
        console.print(f"[yellow]![/] {escape(remark)}")
    print_agreement(console, export.agreement)
    console.print(
        f"[bold]{escape(str(path))}[/]: opset {graph.opset}, {counted(graph.folded_norms, 'norm')} folded into scales"
    )


def _to_dict(export: "OnnxExport") -> dict[str, Any]:
    graph = export.graph
    return {
        "file": str(export.path),
        "form": graph.form,
        "bytes": len(graph.content),
        "opset": graph.opset,
        "folded_norms": graph.folded_norms,
        "integer_layers": list(graph.integer_layers),
        "added_roundings": graph.added_roundings,
        "size": graph.account.to_dict(),
        "remarks": list(graph.remarks),
        "agreement": asdict(export.agreement),
    }
