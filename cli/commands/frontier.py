"""``hwbmpq frontier``: what each amount of a cost buys, on one device or several."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.options.common import add_output_options, check_output
from hwbmpq.cli.options.sensitivity import (
    add_sensitivity_options,
    check_sensitivity,
    get_sensitivity,
    load_network,
    untrained_remark,
)
from hwbmpq.cli.options.settings import add_allocation_options, add_model_options, add_settings, setting_text
from hwbmpq.cli.progress import progress
from hwbmpq.cli.render.frontier import print_frontier, thinned
from hwbmpq.cli.render.tables import OutputConsole, print_json, print_remarks
from hwbmpq.errors import HwbmpqError, UnknownNameError

if TYPE_CHECKING:
    from hwbmpq.allocate import Frontier
    from hwbmpq.graph import LayerGraph
    from hwbmpq.hardware import HardwareProfile
    from hwbmpq.search.space import SearchSpace

HELP = "show what each amount of a cost buys, as a table and a plot"
DESCRIPTION = """\
Show the trade-off between a cost and the objective: every allocation that no other beats in
both. One sensitivity pass serves all budgets and all devices."""

EPILOG = """\
examples:
  hwbmpq frontier --model hwbmpq:resnet20 --target mpic --cost memory
  hwbmpq frontier --model hwbmpq:resnet8 --target mpic --target gap9_ne16 --cost latency --plot latency.png
  hwbmpq frontier --model hwbmpq:resnet8 --target mpic --cost memory --cost latency --json"""

_PLOTS = (".png", ".svg", ".pdf")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    device = parser.add_argument_group("device")
    text = f"{setting_text('target')}; may be repeated"
    add_settings(device, "target", action="append", required=True, help=text)
    device.add_argument(
        "--cost",
        action="append",
        metavar="NAME",
        help="the cost to trade: memory, latency … (default: memory); several give a sample of points",
    )
    add_allocation_options(parser)
    parser.add_argument(
        "--samples",
        type=int,
        default=12,
        metavar="N",
        help="budgets along each of several costs (default: %(default)s)",
    )
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
    check_sensitivity(args)
    costs = list(dict.fromkeys(args.cost or ["memory"]))
    plot = _plot_path(args)
    if args.samples < 2:
        raise HwbmpqError(
            f"--samples {args.samples}: at least 2 are needed, the smallest and the largest budget"
        )
    profiles = [hwbmpq.load_profile(target) for target in dict.fromkeys(args.target)]
    model, graph = load_network(args)
    spaces, refusals = _ask(args, graph, profiles, costs)
    sensitivity = get_sensitivity(args, model, graph, spaces)
    frontiers = {}
    for space in spaces:
        with progress(f"solving for {space.costs.profile.target}") as advance:
            frontiers[space.costs.profile.target] = hwbmpq.pipeline.trade_off(
                space,
                sensitivity,
                costs,
                objective=args.objective,
                samples=args.samples,
                solver=args.solver,
                on_step=advance,
            )
    units = {name: table.unit for name, table in spaces[0].costs.tables.items()}
    if args.json:
        print_json(_content(model.spec, frontiers, spaces, units, args))
    else:
        _show(args, frontiers, units, model.title, [*refusals, *untrained_remark(args), *sensitivity.remarks])
    if plot is not None:
        from hwbmpq.cli.render.frontier_plot import plot_frontiers  # matplotlib takes a second to import

        plot_frontiers(frontiers, costs, units, plot, title=model.title, objective=args.objective)
        if not args.json:
            OutputConsole().print(f"drawn in {plot}", markup=False)


def _show(
    args: argparse.Namespace,
    frontiers: "dict[str, Frontier]",
    units: dict[str, str],
    title: str,
    remarks: list[str],
) -> None:
    console = OutputConsole()
    for name, frontier in frontiers.items():
        print_frontier(console, frontier, units, title=f"{title} on {name}", all_rows=args.all)
    print_remarks(console, remarks)


def _ask(
    args: argparse.Namespace, graph: "LayerGraph", profiles: "list[HardwareProfile]", costs: list[str]
) -> "tuple[list[SearchSpace], list[str]]":
    """A question for each device that has the costs, and why the others have not."""
    spaces, refusals = [], []
    for profile in profiles:
        try:
            spaces.append(
                hwbmpq.pipeline.build_search_space(
                    graph,
                    profile,
                    dict.fromkeys(costs, "100%"),
                    bits=args.bits,
                    activation_bits=args.activation_bits,
                )
            )
        except HwbmpqError as error:
            if len(profiles) == 1 or isinstance(error, UnknownNameError):
                raise
            refusals.append(f"{profile.target} is left out: {error}")
    if not spaces:
        raise HwbmpqError("; ".join(refusals))
    return spaces, refusals


def _plot_path(args: argparse.Namespace) -> Path | None:
    if args.no_plot or (args.json and not args.plot):
        return None
    path = Path(args.plot or "frontier.svg")
    check_output("--plot", path, _PLOTS)
    return path


def _content(
    model: str,
    frontiers: "dict[str, Frontier]",
    spaces: "list[SearchSpace]",
    units: dict[str, str],
    args: argparse.Namespace,
) -> dict[str, Any]:
    return {
        "model": model,
        "objective": args.objective,
        "remarks": [*untrained_remark(args), *(r for space in spaces for r in space.remarks)],
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
