"""``hwbmpq targets``: hardware profiles, shipped and your own."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

import hwbmpq
from hwbmpq.cli.commands.targets_measure import add_import, add_measure, add_validate
from hwbmpq.cli.commands.targets_new import add_new
from hwbmpq.cli.options.common import activation_bits, add_command, add_output_options
from hwbmpq.cli.options.network import describe_model
from hwbmpq.cli.options.settings import add_model_options, add_settings, setting_text
from hwbmpq.cli.render.costs import print_comparison, print_layer_costs
from hwbmpq.cli.render.tables import OutputConsole, print_json, print_remarks
from hwbmpq.cli.render.targets import (
    listing_dict,
    print_check,
    print_head,
    print_listings,
    print_profile,
    profile_dict,
)
from hwbmpq.errors import HwbmpqError, UnsupportedPrecisionError

if TYPE_CHECKING:
    from hwbmpq.costs import NetworkCosts
    from hwbmpq.graph import LayerGraph
    from hwbmpq.hardware import HardwareProfile, ProfileProblem

HELP = "list, show, check, compare and write hardware profiles"
DESCRIPTION = """\
A hardware profile is one YAML file about a device: the widths it runs, its clock, rates, memories and
power, each figure with its source. It is all that hwbmpq knows about your hardware."""

EPILOG = """\
examples:
  hwbmpq targets list
  hwbmpq targets show jetson_nano@5w
  hwbmpq targets show gap9_ne16 --model hwbmpq:resnet20
  hwbmpq targets compare mpic gap9_ne16 --model hwbmpq:resnet8
  hwbmpq targets new my_board && hwbmpq targets check my_board.yaml
  hwbmpq targets measure my_pc --model timm:resnet18 --quick
  hwbmpq targets validate my_pc --model timm:resnet26
  hwbmpq targets schema > hwbmpq-profile.schema.json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    own = (_add_list, _add_show, _add_check, _add_compare, add_new, _add_schema)
    for add in (*own, add_measure, add_import, add_validate):
        add(actions)


def _add_list(actions: Any) -> None:
    parser = add_command(actions, "list", run_list, "all profiles, yours before the shipped ones")
    add_output_options(parser)


def _add_show(actions: Any) -> None:
    parser = add_command(
        actions,
        "show",
        run_show,
        "one profile with the source of every figure; with --model, what layers cost",
    )
    parser.add_argument("target", metavar="TARGET", help=setting_text("target"))
    add_model_options(parser, required=False)
    _add_cost_options(parser)
    parser.add_argument("--brief", action="store_true", help="leave out the figures and sources")
    add_output_options(parser, rows="layer of a large network")


def _add_compare(actions: Any) -> None:
    parser = add_command(
        actions, "compare", run_compare, "what each width buys on each device, for one network"
    )
    parser.add_argument("targets", nargs="+", metavar="TARGET", help=setting_text("target"))
    add_model_options(parser)
    _add_cost_options(parser)
    add_output_options(parser)


def _add_cost_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("costs")
    group.add_argument(
        "--cost",
        action="append",
        metavar="NAME",
        help="a cost to tabulate, may be repeated (default: memory, and what the profile has models for); "
        "'hwbmpq costs list' shows them",
    )
    add_settings(group, "bits", help="weight widths (default: all integer widths of the device)")
    words = ("same", "widest", "float")
    group.add_argument(
        "--activation-bits",
        type=activation_bits(*words),
        default="same",
        metavar=f"{'|'.join(words)}|N",
        help="activation width that goes with each weight width: the same (or the next one that runs with it), "
        "the widest up to 8 for all, float, or a number (default: %(default)s)",
    )


def _add_check(actions: Any) -> None:
    parser = add_command(
        actions, "check", run_check, "find every problem in profile files (exit code 2 if any)"
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML files, or names of profiles")
    parser.add_argument(
        "--strict", action="store_true", help="count it as a problem if a cost model lacks a figure"
    )
    add_output_options(parser)


def _add_schema(actions: Any) -> None:
    add_command(actions, "schema", run_schema, "print the JSON Schema of profiles, for your editor")


def run_list(args: argparse.Namespace) -> None:
    listings = hwbmpq.hardware.list_profiles()
    missing = hwbmpq.hardware.missing_folders()
    remarks = (f"HWBMPQ_PROFILES names {folder}, which is not a folder" for folder in missing)
    print_remarks(Console(stderr=True, highlight=False), remarks)
    if args.json:
        print_json([listing_dict(listing) for listing in listings])
    else:
        print_listings(OutputConsole(), listings)


def run_show(args: argparse.Namespace) -> None:
    profile = hwbmpq.load_profile(args.target)
    content: dict[str, Any] = profile_dict(profile)
    console = OutputConsole()
    if not args.json:
        (print_head if args.brief else print_profile)(console, profile)
    if args.model:
        model, graph = describe_model(args)
        costs = _tabulate(graph, profile, args)
        content["costs"] = costs.to_dict()
        if not args.json:
            print_layer_costs(console, graph, costs, title=model.title, all_rows=args.all)
    elif args.cost or args.bits:
        raise HwbmpqError("--cost and --bits need a network", hint="add --model timm:resnet18, for example")
    if args.json:
        print_json(content)


def _tabulate(graph: "LayerGraph", profile: "HardwareProfile", args: argparse.Namespace) -> "NetworkCosts":
    return hwbmpq.costs.tabulate(
        graph, profile, costs=args.cost, bits=args.bits, activation_bits=args.activation_bits
    )


def run_compare(args: argparse.Namespace) -> None:
    profiles = [hwbmpq.load_profile(target) for target in args.targets]
    model, graph = describe_model(args)
    costs, refused = [], {}
    for profile in profiles:
        try:
            costs.append(_tabulate(graph, profile, args))
        except UnsupportedPrecisionError as error:
            refused[profile.target] = error
    if not costs:
        raise next(iter(refused.values()))
    if args.json:
        summaries = {item.profile.target: item.summary() for item in costs}
        errors = {target: {"error": str(reason)} for target, reason in refused.items()}
        print_json({**summaries, **errors})
        return
    console = OutputConsole()
    print_comparison(console, costs, title=model.title)
    for target, reason in refused.items():
        console.print(f"[bold]{escape(target)}:[/] [yellow]{escape(str(reason))}[/]")


def run_check(args: argparse.Namespace) -> None:
    problems: list[ProfileProblem] = []
    report: list[dict[str, Any]] = []
    console = OutputConsole(soft_wrap=True)
    for file in args.files:
        try:
            profile, remarks = _check(file, is_strict=args.strict)
        except hwbmpq.hardware.ProfileError as error:
            problems += error.problems
            report.append({"file": file, "problems": [str(problem) for problem in error.problems]})
        else:
            report.append({"file": file, "problems": [], "remarks": list(remarks)})
            if not args.json:
                print_check(console, file, profile, remarks)
    if args.json:
        print_json(report)
    if problems:
        raise hwbmpq.hardware.ProfileError(problems)


def _check(file: str, *, is_strict: bool) -> tuple["HardwareProfile", tuple[str, ...]]:
    """A profile with the cost models of all its modes, and remarks; everything wrong as one error."""
    profile = hwbmpq.hardware.check_profile(file)
    remarks = hwbmpq.costs.check_cost_models(profile)
    for mode in profile.modes:
        hwbmpq.costs.check_cost_models(hwbmpq.load_profile(f"{Path(profile.files[-1]).resolve()}@{mode}"))
    unanswered = hwbmpq.costs.unanswered_costs(profile) if is_strict else ()
    if unanswered:
        place = profile.place("cost_models")
        raise hwbmpq.hardware.ProfileError(
            [
                hwbmpq.hardware.ProfileProblem(place=place, field="cost_models", message=remark)
                for remark in unanswered
            ]
        )
    return profile, remarks


def run_schema(args: argparse.Namespace) -> None:
    json.dump(hwbmpq.hardware.profile_json_schema(), sys.stdout, indent=2)
    print()
