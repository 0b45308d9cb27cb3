"""``hwbmpq frontier --accuracy``: accuracy on validation images, measured, against a cost."""

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.console import Console
from hwbmpq.cli.options.network import build
from hwbmpq.cli.options.sensitivity import read_sensitivity
from hwbmpq.cli.options.settings import check_budgets, given_on_command_line
from hwbmpq.cli.progress import TrainingProgress
from hwbmpq.cli.render.accuracy import plot_accuracy, print_accuracy
from hwbmpq.cli.render.tables import OutputConsole, print_json, print_remarks
from hwbmpq.errors import HwbmpqError

if TYPE_CHECKING:
    from hwbmpq.report import AccuracySearch
    from hwbmpq.training import RunSettings


def show_accuracy(args: argparse.Namespace, costs: list[str], points: int, plot: Path | None) -> None:
    """Measure for each device, and show the curves as the options say."""
    if len(costs) > 1:
        raise HwbmpqError(f"--accuracy is measured along one cost, not {len(costs)}", hint="give one --cost")
    if args.save_sensitivity is not None:
        raise HwbmpqError(
            "--save-sensitivity keeps what is measured without --accuracy: leave one of them out"
        )
    check_budgets({costs[0]: "100%"})
    targets = list(dict.fromkeys(args.target))
    settings = {target: _settings(args, target, costs[0]) for target in targets}
    given, scores = read_sensitivity(args)
    if given is not None:
        settings = {t: one.model_copy(update={"sensitivity": given}) for t, one in settings.items()}
    model, data = build(settings[targets[0]], download=args.download)
    curves: dict[str, AccuracySearch] = {}
    for target in targets:
        with TrainingProgress(Console(stderr=True, highlight=False)) as hook, redirect_stdout(sys.stderr):
            hooks: list[Any] = [hook]
            curves[target] = hwbmpq.pipeline.accuracy_curve(
                model.network, data, settings[target], points=points, sensitivity=scores, hooks=hooks
            )
    remarks = [*data.remarks, *_doubts(args)]
    console = OutputConsole()
    if args.json:
        print_json(_content(model.spec, data.inputs, remarks, curves))
    else:
        for target, curve in curves.items():
            print_accuracy(console, curve, title=f"{model.title} on {target}")
        print_remarks(console, remarks)
        console.print(data.inputs, markup=False)
    if plot is not None:
        plot_accuracy(curves, plot, title=model.title)
        if not args.json:
            console.print(f"drawn in {plot}", markup=False)


def _settings(args: argparse.Namespace, target: str, cost: str) -> "RunSettings":
    """Those of a run without training; what the flags leave open is its default."""
    given = given_on_command_line(args)
    given |= {"target": target, "epochs": 0, "budgets": {cost: "100%"}}
    for name in ("sensitivity", "activation_bits", "solver"):
        if given.get(name) == hwbmpq.training.RunSettings.model_fields[name].default:
            del given[name]  # a flag that was not typed: a run without training has defaults of its own
    given.pop("sensitivity", None)
    found = hwbmpq.training.resolve_settings(given)
    return found.model_copy(update={"minimise": cost})


def _doubts(args: argparse.Namespace) -> list[str]:
    if args.pretrained or args.weights or args.model.startswith("file:"):
        return []
    return ["the network's weights are random: these accuracies mean nothing; give --weights or --pretrained"]


def _content(
    model: str, inputs: str, remarks: list[str], curves: "dict[str, AccuracySearch]"
) -> dict[str, Any]:
    return {
        "model": model,
        "inputs": inputs,
        "remarks": remarks,
        "accuracy": {target: {**curve.to_dict(), "drops": _drops(curve)} for target, curve in curves.items()},
    }


def _drops(curve: "AccuracySearch") -> list[float]:
    """How far each probe is below float."""
    return [curve.in_float - probe.value for probe in curve.probes]
