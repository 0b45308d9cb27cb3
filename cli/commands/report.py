"""Show a run, or several side by side: terminal, JSON, or a page with plots.

Show a run: widths, costs against budgets, how the widths moved and why, accuracy, what is not
quantized, and where the figures come from. Several runs are shown side by side. A run that is
still running, or was interrupted, is shown as far as it has come. Nothing is computed again
but the trade-off; neither the network nor the data are needed.

examples:
  hwbmpq report runs/resnet18-jetson_nano
  hwbmpq report runs/resnet18-jetson_nano --html report.html
  hwbmpq report runs/resnet20-mpic runs/resnet20-mpic-2 --html both.html
  hwbmpq report runs/resnet20-mpic --json
"""

import argparse
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.options.common import HTML, add_output_options, check_output
from hwbmpq.cli.progress import progress
from hwbmpq.cli.render.report import print_comparison, print_report
from hwbmpq.cli.render.tables import OutputConsole, line_console, print_json
from hwbmpq.errors import HwbmpqError

if TYPE_CHECKING:
    from hwbmpq.report import RunReport


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", metavar="RUN", help="folders that hwbmpq compress wrote")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write one self-contained page with plots; works together with --json",
    )
    add_output_options(parser, rows="layer of a large network")


def run(args: argparse.Namespace) -> None:
    check_output("--html", args.html, HTML)
    reports = [_report(folder) for folder in args.folders]
    if args.html is not None:
        path = hwbmpq.report.html.write_page(reports, args.html)
        if not args.json:
            line_console().print(f"wrote {path} ({path.stat().st_size / 2**10:.0f} KiB)", markup=False)
    if args.json:
        content: Any = [report.to_dict() for report in reports]
        print_json(content[0] if len(content) == 1 else content)
    elif args.html is None:
        console = OutputConsole()
        if len(reports) == 1:
            print_report(console, reports[0], all_rows=args.all)
        else:
            print_comparison(console, reports)


def _report(folder: str) -> "RunReport":
    with progress("trading off") as advance:
        found = hwbmpq.report.report_on_run(folder, on_step=advance)
    if not found.epochs and found.plan is None:
        raise HwbmpqError(
            f"{folder} has nothing to show yet: no epoch has ended",
            hint=f"hwbmpq compress --resume {quote(str(folder))} continues it",
        )
    return found
