"""Show what each amount of a cost buys, as a table and a plot.

Show the trade-off between a cost and the objective: every allocation that no other beats in
both. One sensitivity pass serves all budgets and all devices. With --accuracy the network is
calibrated at a few budgets, without training, and measured on validation images each time.

examples:
  hwbmpq frontier --model hwbmpq:resnet20 --target mpic --cost memory
  hwbmpq frontier --model hwbmpq:resnet8 --target mpic --target gap9_ne16 --cost latency --plot latency.png
  hwbmpq frontier --model hwbmpq:resnet8 --target mpic --cost memory --cost latency --json
  hwbmpq frontier --model hwbmpq:resnet8 --weights resnet8.pt --target mpic --cost latency --accuracy
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.commands.frontier_accuracy import show_accuracy
from hwbmpq.cli.console import escape
from hwbmpq.cli.options.common import add_output_options, check_output
from hwbmpq.cli.options.sensitivity import Prepared, add_sensitivity_options, prepare
from hwbmpq.cli.options.settings import add_allocation_options, add_model_options, add_settings, setting_text
from hwbmpq.cli.progress import progress
from hwbmpq.cli.render.frontier import plot_frontiers, print_frontier, thinned
from hwbmpq.cli.render.tables import OutputConsole, print_json, print_remarks
from hwbmpq.errors import HwbmpqError

if TYPE_CHECKING:
    from hwbmpq.allocate import Frontier

_PLOTS = (".png", ".svg", ".pdf")
_SAMPLES, _MEASURED = 12, 8


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    device = parser.add_argument_group("device")
    text = f"{setting_text('target')}; may be repeated"
    add_settings(device, "target", action="append", required=True, help=text)
    device.add_argument(
        "--cost",
        action="append",
        metavar="NAME",
        help="the cost to trade: memory, latency … (default: memory); with several costs a sample of the trade-off is shown",
    )
    add_allocation_options(parser)
    parser.set_defaults(per_channel=None)  # with --accuracy, what was not typed has another default
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help=f"with several costs, how many budgets to try along each (default: {_SAMPLES}); with --accuracy, how many "
        f"points to measure (default: {_MEASURED})",
    )
    parser.add_argument(
        "--accuracy",
        action="store_true",
        help="measure accuracy on validation images of --data at points along one cost, calibrated without training",
    )
    add_settings(parser, "calibration_images validation seed", default=None)
    add_sensitivity_options(parser)
    plot = parser.add_mutually_exclusive_group()
    plot.add_argument(
        "--plot",
        metavar="FILE",
        help="draw it: .png, .svg or .pdf (default: frontier.svg, or nothing with --json)",
    )
    plot.add_argument("--no-plot", action="store_true", help="draw nothing")
    add_output_options(parser, rows="point of the frontier")


def run(args: argparse.Namespace) -> None:
    costs = list(dict.fromkeys(args.cost or ["memory"]))
    plot = _plot_path(args)
    samples = (_MEASURED if args.accuracy else _SAMPLES) if args.samples is None else args.samples
    if samples < 2:
        raise HwbmpqError(f"--samples {samples}: at least 2 are needed, the smallest and the largest budget")
    if args.accuracy:
        show_accuracy(args, costs, samples, plot)
        return
    prepared = prepare(args, args.target, dict.fromkeys(costs, "100%"))
    frontiers = {}
    for space in prepared.spaces:
        target = space.costs.profile.target
        with progress(f"solving for {target}") as advance:
            frontiers[target] = hwbmpq.pipeline.trade_off(
                space,
                prepared.sensitivity,
                costs,
                objective=args.objective,
                samples=samples,
                solver=args.solver,
                on_step=advance,
            )
    tables = prepared.spaces[0].costs.tables
    units = {name: table.unit for name, table in tables.items()}
    console, title = OutputConsole(), prepared.model.title
    if args.json:
        print_json(_content(args, prepared, frontiers, units))
    else:
        for name, frontier in frontiers.items():
            print_frontier(console, frontier, units, title=f"{title} on {name}", all_rows=args.all)
        print_remarks(console, [*prepared.remarks, *prepared.sensitivity.remarks])
        for line in _lower_bounds(prepared, costs):
            console.print(f"[red]{escape(line)}[/]")
        if prepared.inputs:
            console.print(prepared.inputs, markup=False)
    if plot is not None:
        plot_frontiers(frontiers, costs, units, plot, title=title, objective=args.objective)
        if not args.json:
            console.print(f"drawn in {plot}", markup=False)


def _lower_bounds(prepared: Prepared, costs: list[str]) -> list[str]:
    """Costs that a device has no figure for in some part of the network."""
    return [
        f"{space.costs.profile.target}: {name} is a lower bound: {space.costs.table(name).no_figure}"
        for space in prepared.spaces
        for name in costs
        if space.costs.table(name).is_lower_bound
    ]


def _plot_path(args: argparse.Namespace) -> Path | None:
    if args.no_plot or (args.json and not args.plot):
        return None
    path = Path(args.plot or "frontier.svg")
    check_output("--plot", path, _PLOTS)
    return path


def _content(
    args: argparse.Namespace, prepared: Prepared, frontiers: "dict[str, Frontier]", units: dict[str, str]
) -> dict[str, Any]:
    return {
        "model": prepared.model.spec,
        "objective": args.objective,
        "inputs": prepared.inputs,
        "remarks": [*prepared.remarks, *(r for space in prepared.spaces for r in space.remarks)],
        "lower_bounds": _lower_bounds(prepared, list(args.cost or ["memory"])),
        "units": {cost: units[cost] for frontier in frontiers.values() for cost in frontier.costs},
        "frontiers": {
            target: {
                "is_exact": frontier.is_exact,
                "count": len(frontier),
                "points": [
                    {
                        "costs": dict(point.costs),
                        "objective": point.objective,
                        "bits": {layer: str(choice) for layer, choice in point.bits.items()},
                    }
                    for point in thinned(frontier, None if args.all else 200)
                ],
            }
            for target, frontier in frontiers.items()
        },
    }
