"""``hwbmpq targets new``: a template for one's own device, by hand or by answers."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.prompt import Prompt

import hwbmpq
from hwbmpq.cli.options.common import add_command
from hwbmpq.cli.render.tables import OutputConsole
from hwbmpq.errors import HwbmpqError

if TYPE_CHECKING:
    from hwbmpq.hardware import HardwareProfile


def add_new(actions: Any) -> None:
    parser = add_command(actions, "new", run_new, "write a commented template for your own device")
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
    name = args.name.removesuffix(".yaml")
    if not hwbmpq.hardware.is_name(name):
        raise HwbmpqError(f"{args.name!r} is not a name for a profile: use letters, digits, _, - and .")
    if args.base and args.interactive:
        raise HwbmpqError("--interactive fills in an empty template; with --from, edit the file instead")
    path = Path(args.output) / f"{name}.yaml"
    if path.exists() and not args.force:
        raise HwbmpqError(f"{path} exists", hint="give another name, or --force to overwrite it")
    if args.base:
        text = hwbmpq.hardware.profile_based_on(name, _base(args.base, Path(args.output)))
    else:
        text = hwbmpq.hardware.new_profile(name, _ask() if args.interactive else None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HwbmpqError(f"cannot write {path}: {error.strerror or error}") from None
    _say_next(path, is_complete=args.interactive)


def _base(target: str, output: Path) -> "HardwareProfile":
    """The profile to extend, if one that is written to ``output`` could find it."""
    base = hwbmpq.load_profile(target)
    home = Path(base.files[-1]).parent
    findable = [output, *hwbmpq.hardware.search_folders()]
    if home.resolve() not in [folder.resolve() for folder in findable]:
        raise HwbmpqError(
            f"{base.name} is neither in {output} nor in the search path: the new profile could not find it",
            hint=f"write it beside its base: --output {home}",
        )
    if base.mode:
        raise HwbmpqError(
            f"a profile extends another one, not its mode {base.mode!r}",
            hint=f"--from {base.name}: the modes are inherited",
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
                console.print(f"[red]{escape(str(error))}[/]")
            else:
                answers[question.key] = answer
    return answers


def _say_next(path: Path, *, is_complete: bool) -> None:
    console = OutputConsole(soft_wrap=True)
    todo = "Look it over" if is_complete else "Replace every FILL_IN"
    console.print(
        f"wrote [bold]{escape(str(path))}[/]. {todo}, then: hwbmpq targets check {escape(str(path))}"
    )
