"""List, show, check, compare and write hardware profiles.

A hardware profile is one YAML file about a device: the widths it runs, its clock, rates, memories and
power, each figure with its source. It is all that hwbmpq knows about your hardware.

examples:
  hwbmpq targets list
  hwbmpq targets show jetson_nano@5w
  hwbmpq targets show gap9_ne16 --model hwbmpq:resnet20
  hwbmpq targets compare mpic gap9_ne16 --model hwbmpq:resnet8
  hwbmpq targets new my_board && hwbmpq targets check my_board.yaml
  hwbmpq targets measure my_pc --model timm:resnet18 --quick
  hwbmpq targets validate my_pc --model timm:resnet26
  hwbmpq targets schema > hwbmpq-profile.schema.json
"""

import argparse
import json
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.prompt import Prompt

import hwbmpq
from hwbmpq.cli.commands.targets_measure import add_measuring_actions
from hwbmpq.cli.console import Console, escape, escape_lines
from hwbmpq.cli.options.common import activation_bits, add_command, add_output_options
from hwbmpq.cli.options.network import describe_model
from hwbmpq.cli.options.settings import add_model_options, add_settings, setting_text
from hwbmpq.cli.render.costs import print_comparison, print_layer_costs
from hwbmpq.cli.render.tables import OutputConsole, line_console, print_json, print_remarks
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


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_output_options(add_command(actions, "list", run_list))
    show = add_command(actions, "show", run_show)
    show.add_argument("target", metavar="TARGET", help=setting_text("target"))
    add_model_options(show, required=False)
    _add_cost_options(show)
    show.add_argument("--brief", action="store_true", help="leave out the figures and sources")
    add_output_options(show, rows="layer of a large network")
    check = add_command(actions, "check", run_check)
    check.add_argument("files", nargs="+", metavar="FILE", help="YAML files, or names of profiles")
    text = "also fail if a cost model lacks a figure"
    check.add_argument("--strict", action="store_true", help=text)
    add_output_options(check)
    compare = add_command(actions, "compare", run_compare)
    compare.add_argument("targets", nargs="+", metavar="TARGET", help=setting_text("target"))
    add_model_options(compare)
    _add_cost_options(compare)
    add_output_options(compare)
    _add_new(actions)
    add_command(actions, "schema", run_schema)
    add_measuring_actions(actions)


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
    words = ("auto", "same", "widest", "float")
    group.add_argument(
        "--activation-bits",
        type=activation_bits(*words),
        default="auto",
        metavar=f"{'|'.join(words)}|N",
        help="activation width that goes with each weight width: auto (what compress takes without other flags), the same "
        "(or the next one that runs with it), the widest up to 8 for all, float, or a number (default: %(default)s)",
    )


def run_list(args: argparse.Namespace) -> None:
    """All profiles, yours before the shipped ones."""
    listings = hwbmpq.hardware.list_profiles()
    missing = hwbmpq.hardware.missing_folders()
    remarks = (f"HWBMPQ_PROFILES names {folder}, which is not a folder" for folder in missing)
    print_remarks(Console(stderr=True, highlight=False), remarks)
    if args.json:
        print_json([listing_dict(listing) for listing in listings])
    else:
        print_listings(OutputConsole(), listings)


def run_show(args: argparse.Namespace) -> None:
    """One profile with the source of every figure; with --model, what layers cost."""
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
    options = {"bits": args.bits, "activation_bits": args.activation_bits}
    if args.activation_bits == "auto":
        bits = args.bits or hwbmpq.hardware.common_widths(graph, profile)
        options = {"choices": hwbmpq.search.default_choices(graph, profile, bits)}
    return hwbmpq.costs.tabulate(graph, profile, costs=args.cost, **options)


def run_compare(args: argparse.Namespace) -> None:
    """What each width buys on each device, for one network."""
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
    """Find every problem in profile files (exit code 2 if any)."""
    problems: list[ProfileProblem] = []
    report: list[dict[str, Any]] = []
    console = line_console()
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
    """Print the JSON Schema of profiles, for your editor."""
    json.dump(hwbmpq.hardware.profile_json_schema(), sys.stdout, indent=2)
    print()


def _add_new(actions: Any) -> None:
    parser = add_command(actions, "new", run_new)
    parser.add_argument("name", metavar="NAME", help="name of the profile and, with .yaml, of its file")
    parser.add_argument(
        "--from", dest="base", metavar="TARGET", help="extend this profile instead of starting empty"
    )
    parser.add_argument("--interactive", action="store_true", help="ask for the figures and fill them in")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", default=".", help="where to write it (default: here)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run_new(args: argparse.Namespace) -> None:
    """Write a commented template for your own device."""
    name = args.name.removesuffix(".yaml")
    if not hwbmpq.hardware.is_name(name):
        raise HwbmpqError(f"{args.name!r} is not a name for a profile: use letters, digits, _, - and .")
    if args.base and args.interactive:
        raise HwbmpqError("--interactive fills in an empty template; with --from, edit the file instead")
    path = Path(args.output) / f"{name}.yaml"
    if path.exists() and not args.force:
        raise HwbmpqError(f"{path} exists", hint="give another name, or --force to overwrite it")
    if name in {listing.name for listing in hwbmpq.hardware.list_profiles()}:
        told = f"there is a profile {name} already: --target {quote(name)} may find that one, --target {quote(str(path))} finds yours"
        print_remarks(Console(stderr=True, highlight=False), [told])
    if args.base:
        text = hwbmpq.hardware.profile_based_on(name, _base(args.base, Path(args.output)))
    else:
        text = hwbmpq.hardware.new_profile(name, _ask() if args.interactive else None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with hwbmpq.io.atomic_write(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise HwbmpqError(f"cannot write {path}: {error.strerror or error}") from None
    todo = "Look it over" if args.interactive else "Replace every FILL_IN"
    text = (
        f"wrote [bold]{escape(str(path))}[/]. {todo}, then: hwbmpq targets check {escape(quote(str(path)))}"
    )
    line_console().print(text)


def _base(target: str, output: Path) -> "HardwareProfile":
    """The profile to extend, if one that is written to ``output`` could find it."""
    base = hwbmpq.load_profile(target)
    home = Path(base.files[-1]).parent
    findable = [output, *hwbmpq.hardware.search_folders()]
    if home.resolve() not in [folder.resolve() for folder in findable]:
        raise HwbmpqError(
            f"{base.name} is neither in {output} nor in the search path: the new profile could not find it",
            hint=f"write it beside its base: --output {quote(str(home))}",
        )
    if base.mode:
        raise HwbmpqError(
            f"a profile extends another one, not its mode {base.mode!r}",
            hint=f"--from {quote(base.name)}: the modes are inherited",
        )
    return base


def _ask() -> dict[str, str]:
    """Answers from the terminal, each checked before the next question."""
    console = Console(stderr=True, highlight=False)
    answers = {}
    for question in hwbmpq.hardware.QUESTIONS:
        while question.key not in answers:
            try:
                answer = Prompt.ask(
                    f"{question.text} [dim](e.g. {question.example})[/]", console=console
                ).strip()
            except EOFError:
                raise HwbmpqError(
                    "no more answers",
                    hint="without --interactive, the template is written with marked blanks",
                ) from None
            try:
                question.check(answer)
            except ValueError as error:
                console.print(f"[red]{escape_lines(str(error))}[/]")
            else:
                answers[question.key] = answer
    return answers
