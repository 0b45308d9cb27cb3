"""List and explain the cost models.

A cost model says what a layer costs at each width on a device: memory, latency, energy, or a
quantity of your own. Budgets are set on them by name.

examples:
  hwbmpq costs list
  hwbmpq costs show roofline
"""

import argparse
import inspect
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.console import Text, escape
from hwbmpq.cli.options.common import add_command, add_output_options
from hwbmpq.cli.render.tables import OutputConsole, print_json, print_table
from hwbmpq.registry import COST_MODELS

if TYPE_CHECKING:
    from hwbmpq.costs import Registration


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_output_options(add_command(actions, "list", run_list))
    show = add_command(actions, "show", run_show)
    show.add_argument("name", metavar="NAME")
    add_output_options(show)


def run_list(args: argparse.Namespace) -> None:
    """All cost models, plug-ins included."""
    models = hwbmpq.costs.cost_models()
    if args.json:
        print_json([_facts(entry) for entry in models.values()])
        return
    rows = []
    for entry in models.values():
        facts = _facts(entry)
        error = Text(f"cannot be loaded: {entry.error}", style="red")
        what = error if entry.error else Text(facts["summary"])
        rows.append((entry.name, facts["unit"], what, Text(entry.provider)))
    console = OutputConsole()
    print_table(console, "Cost models", ("name", "unit", "~what", "~from"), rows)
    for entry in hwbmpq.costs.refused_plugins():
        text = f"{entry.name} of {entry.provider} is not used: {entry.error}"
        console.print(text, style="red", markup=False)
    console.print("[dim]latency, energy and memory go to the model that the profile names in cost_models[/]")


def run_show(args: argparse.Namespace) -> None:
    """One model: formula, unit, needs, options."""
    facts = _facts(COST_MODELS.registration(args.name))
    if args.json:
        print_json(facts)
        return
    console = OutputConsole()
    console.print(
        f"[bold]{escape(args.name)}[/] ({facts['unit'] or 'no unit'}), from {escape(facts['provider'])}"
    )
    if facts["error"]:
        console.print(f"[red]cannot be loaded: {escape(facts['error'])}[/]")
    console.print(f"\n{escape(facts['description'])}\n")
    console.print(f"[bold]formula[/]  {escape(facts['formula'] or 'not stated')}")
    console.print(f"[bold]needs[/]    {escape('; '.join(facts['needs']) or 'nothing of the profile')}")
    for name, option in facts["options"].items():
        console.print(
            f"[bold]option[/]   {escape(name)} = {escape(str(option['default']))}  {escape(option['text'])}"
        )


def _facts(entry: "Registration[type]") -> dict[str, Any]:
    model: Any = entry.entry
    description = _plain(inspect.cleandoc(model.__doc__ or "")) if model is not None else ""
    return {
        "name": entry.name,
        "unit": getattr(model, "unit", ""),
        "summary": description.partition("\n")[0],
        "description": description,
        "formula": getattr(model, "formula", ""),
        "needs": list(getattr(model, "needs", ())),
        "options": {
            name: {"default": info.default, "text": _plain(info.description or "")}
            for name, info in getattr(model, "model_fields", {}).items()
        },
        "provider": entry.provider,
        "error": entry.error,
    }


def _plain(docstring: str) -> str:
    """Paragraphs on one line each, without markup."""
    paragraphs = docstring.replace("``", "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
