r"""Choose every layer's width under a budget, without training.

Choose every layer's bit width so that the network fits the budget and loses as little as
possible. No training: sensitivities come from a short calibration pass or from a file. The
answer is a proven optimum, and the report says what the budget is worth and how firm each
choice is.

examples:
  hwbmpq plan --model hwbmpq:resnet20 --target mpic --budget memory=12x
  hwbmpq plan --model timm:resnet18 --pretrained --target jetson_nano --budget memory=3.5MiB
  hwbmpq plan --model hwbmpq:resnet8 --target gap9_ne16 --bits 2,4,8 --objective error \
              --budget memory=20KiB latency=0.3ms
  hwbmpq plan --model timm:mobilenetv2_100 --target mpic --sensitivity scores.json --json

budgets: memory=350KiB, memory=12x (a twelfth of float), memory=4b/weight (bits per weight on
average), latency=8ms, energy=40uJ, bops=30% (of every layer at its widest); `hwbmpq costs list` shows all costs. Without any,
the profile's own budgets hold, or memory at a quarter of its range.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hwbmpq
from hwbmpq.cli.console import escape
from hwbmpq.cli.options.common import HTML, add_output_options, check_output, seconds
from hwbmpq.cli.options.sensitivity import add_sensitivity_options, prepare
from hwbmpq.cli.options.settings import (
    add_allocation_options,
    add_budget_option,
    add_model_options,
    add_settings,
    check_budgets,
    read_budgets,
)
from hwbmpq.cli.progress import progress
from hwbmpq.cli.render.plan import explained_infeasible, print_plan
from hwbmpq.cli.render.plan_costs import scales_remark
from hwbmpq.cli.render.tables import OutputConsole, print_json

if TYPE_CHECKING:
    from hwbmpq.report import Plan
    from hwbmpq.search.space import SearchSpace


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    device = parser.add_argument_group("device")
    add_settings(device, "target", required=True)
    add_budget_option(device)
    add_allocation_options(parser)
    parser.add_argument(
        "--time-limit",
        type=seconds,
        metavar="S",
        help="seconds for the solver; then the best so far (default: 60)",
    )
    add_sensitivity_options(parser)
    parser.add_argument(
        "--brief",
        action="store_true",
        help="leave out what budgets are worth and the runner-up of each layer: one solve only",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with plots")
    add_output_options(parser, rows="layer of a large network")


def _write_page(path: Path, space: "SearchSpace", plan: "Plan", *, title: str) -> None:
    facts = hwbmpq.pipeline.facts_of(space, title=title, command=("hwbmpq", *sys.argv[1:]))
    with progress("trading off") as advance:
        trade_off = hwbmpq.report.find_trade_off(facts, plan, on_step=advance)
    hwbmpq.report.html.write_page([hwbmpq.report.build_report(title, facts, plan, trade_off=trade_off)], path)


def run(args: argparse.Namespace) -> None:
    check_output("--html", args.html, HTML)
    budgets = read_budgets(args.budget)
    check_budgets(budgets)
    prepared = prepare(args, [args.target], budgets)
    model, (space,) = prepared.model, prepared.spaces
    try:
        with progress("explaining") as advance:
            plan = hwbmpq.pipeline.plan(
                space,
                prepared.sensitivity,
                objective=args.objective,
                solver=args.solver,
                time_limit=args.time_limit,
                with_explanation=not args.brief,
                on_step=advance,
            )
    except hwbmpq.InfeasibleBudget as error:
        raise explained_infeasible(error, space, as_json=args.json) from error
    if args.html is not None:
        _write_page(args.html, space, plan, title=model.title)
    if args.json:
        content = {
            "model": model.spec,
            "input_size": list(model.input_size),
            "inputs": prepared.inputs,
            **plan.to_dict(),
        }
        print_json({**content, "remarks": [*content["remarks"], *prepared.remarks]})
        return
    remarks = [*prepared.remarks, *scales_remark(plan, per_channel=bool(args.per_channel))]
    console = OutputConsole()
    print_plan(console, plan, title=model.title, all_rows=args.all, remarks=remarks)
    if prepared.inputs:
        console.print(escape(prepared.inputs))
