"""``hwbmpq targets measure``, ``import`` and ``validate``: profiles from measurements."""

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.console import Console
from hwbmpq.cli.options.common import add_command, add_count, add_output_options, between
from hwbmpq.cli.options.network import describe_model, load_model
from hwbmpq.cli.options.settings import add_settings, setting_text
from hwbmpq.cli.progress import progress
from hwbmpq.cli.render.tables import OutputConsole, line_console, print_json, print_remarks
from hwbmpq.cli.render.targets import kernel_counts, print_kit, print_measured, print_validation
from hwbmpq.errors import HwbmpqError, RunStoppedError
from hwbmpq.values import DEFAULT_TIE

if TYPE_CHECKING:
    from hwbmpq.graph import LayerGraph
    from hwbmpq.hardware import HardwareProfile
    from hwbmpq.measure import Candidate, Measurement, Results
    from hwbmpq.models import LoadedModel
    from hwbmpq.values import Precision

_COMPARED = ("W32A32", "W8A8", "W4A8")
DEFAULT_MODELS = ("timm:resnet18", "timm:mobilenetv2_100", "hwbmpq:vgg16")
ROUNDS, QUICK_ROUNDS = 20, 5
FEWEST_ROUNDS, MOST_ROUNDS = 3, 10_000


def add_measuring_actions(actions: Any) -> None:
    _add_measure(actions)
    _add_import(actions)
    _add_validate(actions)


def _add_measure(actions: Any) -> None:
    parser = add_command(actions, "measure", run_measure)
    parser.add_argument("name", metavar="NAME", help="name of the profile to write")
    _add_networks(parser, required=False)
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--widths",
        type=_listed,
        metavar="W8A8,…",
        help="pairs of weight and activation bits, 32 is float (default: W2A8,W4A8,W8A8,W16A16,W32A32, and for linear layers "
        "W2A32,W4A32,W8A32)",
    )
    _add_rounds(group)
    add_count(group, "--threads", 1, "cores to use")
    text = f"{QUICK_ROUNDS} rounds: a first look"
    group.add_argument("--quick", action="store_const", dest="rounds", const=QUICK_ROUNDS, help=text)
    group.add_argument("--kit", type=Path, metavar="FILE.zip", help="write a kit for another device instead")
    _add_place(parser)


def _add_import(actions: Any) -> None:
    parser = add_command(actions, "import", run_import)
    parser.add_argument("name", metavar="NAME", help="name of the profile to write")
    parser.add_argument("results", metavar="RESULTS", help="the JSON file that the kit's run.py wrote")
    parser.add_argument("--partial", action="store_true", help="use results of a run that was interrupted")
    _add_place(parser)


def _add_validate(actions: Any) -> None:
    parser = add_command(actions, "validate", run_validate)
    parser.add_argument("target", metavar="TARGET", help=setting_text("target"))
    _add_networks(parser, required=True)
    parser.add_argument(
        "--bits",
        type=_listed,
        metavar="W8A8,…",
        help=f"widths to compare at (default: of {', '.join(_COMPARED)}, what there is)",
    )
    _add_rounds(parser)
    add_output_options(parser)


def _add_networks(parser: argparse.ArgumentParser, *, required: bool) -> None:
    group = parser.add_argument_group("networks")
    text = f"{setting_text('model')}; several are welcome"
    text += "" if required else f" (default: {' '.join(DEFAULT_MODELS)})"
    add_settings(group, "model", nargs="+", action="extend", required=required, help=text)
    add_settings(group, "input")


def _add_place(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where to write the profile (default: your profile folder)",
    )
    group.add_argument("--overwrite", action="store_true", help="replace files of the same name")
    add_output_options(group)


def _add_rounds(parser: argparse._ActionsContainer) -> None:
    text = "how often everything takes its turn; more are steadier"
    add_count(parser, "--rounds", ROUNDS, text, type=between(FEWEST_ROUNDS, MOST_ROUNDS, "rounds"))


def _options(spec: str, args: argparse.Namespace) -> argparse.Namespace:
    """One of the networks, as commands with a single one have it."""
    return argparse.Namespace(
        model=spec, input=args.input, num_classes=None, pretrained=False, weights=None, tie=DEFAULT_TIE
    )


def _described(args: argparse.Namespace) -> "list[tuple[LoadedModel, LayerGraph]]":
    """Every network and its graph, without weights where that is possible."""
    return [describe_model(_options(spec, args)) for spec in args.model or DEFAULT_MODELS]


def _loaded(spec: str, args: argparse.Namespace) -> "tuple[LoadedModel, LayerGraph]":
    """One network with real, if random, weights."""
    model = load_model(_options(spec, args))
    return model, hwbmpq.describe(model.network, model.example_input())


def _listed(text: str) -> list[str]:
    return [part for part in text.replace(",", " ").split() if part]


def run_measure(args: argparse.Namespace) -> None:
    """Time layers on this machine, write a profile.

    Time the layers of some networks in ONNX Runtime, on this machine, and write what was found as a profile:
    a table of layers, and the YAML that uses it. Layers that repeat are timed once; pairs of widths that one
    kernel runs are timed once. Layers of other networks are interpolated. Leave the machine alone meanwhile.

    For another device, --kit writes a zip with everything in it: unpack it there, run it (it needs
    onnxruntime and numpy only), and bring its results back to `hwbmpq targets import`.

    examples:
      hwbmpq targets measure my_pc
      hwbmpq targets measure my_pc --model timm:resnet18 timm:resnet50 --threads 4 --rounds 40
      hwbmpq targets measure my_pc --model file:net.py:make_net --input 3x96x96 --widths W4A8,W8A8,W32A32 --quick
      hwbmpq targets measure my_board --model timm:mobilenetv2_100 --kit kit.zip
    """
    if args.kit is not None:
        hwbmpq.measure.check_kit(args.kit, overwrite=args.overwrite)
    else:
        hwbmpq.measure.check_new(args.name, args.output, overwrite=args.overwrite)
        hwbmpq.measure.check_settings(rounds=args.rounds, threads=args.threads)
    widths = hwbmpq.measure.parse_widths(args.widths) if args.widths else hwbmpq.measure.DEFAULT_WIDTHS
    networks = _described(args)
    accumulates_int32 = None if args.kit is not None else hwbmpq.measure.accumulates_int32_here()
    kernels = hwbmpq.measure.layer_kernels(
        [graph for _, graph in networks], widths, accumulates_int32=accumulates_int32
    )
    models = [model.title for model, _ in networks]
    if args.kit is not None:
        with progress("writing kernels", len(kernels)) as advance:
            hwbmpq.measure.write_kit(
                args.kit, kernels, widths=widths, models=models, overwrite=args.overwrite, on_written=advance
            )
        print_kit(line_console(), args.kit, args.name)
        return
    results = _measured_here(args, kernels, widths, models)
    if not results.is_complete:
        raise RunStoppedError(
            "not all kernels have all their rounds; nothing was written",
            hint="--quick takes fewer rounds",
        )
    _write(hwbmpq.measure.Measurement.of(results), args)


def _measured_here(
    args: argparse.Namespace, kernels: Any, widths: "tuple[Precision, ...]", models: list[str]
) -> "Results":
    console = Console(stderr=True, highlight=False)

    def say_estimate(seconds: float) -> None:
        timed = kernel_counts(len(kernels), hwbmpq.measure.count_between_layers())
        duration = hwbmpq.measure.format_duration(seconds)
        console.print(f"{timed}, {args.rounds} rounds: {duration}; Ctrl-C stops")

    with progress("measuring") as advance:
        return hwbmpq.measure.measure_here(
            kernels,
            widths=widths,
            models=models,
            rounds=args.rounds,
            threads=args.threads,
            on_estimate=say_estimate,
            on_visit=advance,
        )


def run_import(args: argparse.Namespace) -> None:
    """Turn the results of a kit into a profile.

    examples:
      hwbmpq targets import my_board results.json
      hwbmpq targets import my_board results.json --output profiles --overwrite
    """
    hwbmpq.measure.check_new(args.name, args.output, overwrite=args.overwrite)
    results = hwbmpq.measure.read_results(args.results)
    if not results.is_complete and not args.partial:
        raise HwbmpqError(
            f"{args.results}: the run was interrupted: {len(results.times)} of {len(results.manifest.kernels)} kernels "
            f"were timed, the last in {len(results.rounds[-1]) if results.rounds else 0} of {results.settings.rounds} rounds",
            hint="run the kit again to its end, or --partial to use what there is",
        )
    _write(hwbmpq.measure.Measurement.of(results), args)


def _write(measurement: "Measurement", args: argparse.Namespace) -> None:
    profile = hwbmpq.measure.write_profile(
        measurement, args.name, folder=args.output, overwrite=args.overwrite
    )
    if args.json:
        record = profile.tables["layers"].measurement
        content = {"profile": profile.files[-1], "findings": list(profile.caveats), "measurement": record}
        print_json(content)
        return
    example = measurement.results.manifest.models[0].partition(" ")[0] or DEFAULT_MODELS[0]
    print_measured(line_console(), profile, target=_target(profile, args.output), model=example)


def _target(profile: "HardwareProfile", folder: Path | None) -> str:
    """What ``--target`` takes from now on: the name if it is in the search path, else the file."""
    if folder is None or folder.resolve() in [place.resolve() for place in hwbmpq.hardware.search_folders()]:
        return profile.name
    return profile.files[-1]


def run_validate(args: argparse.Namespace) -> None:
    """Compare a measured profile's predictions with whole networks.

    Compare what a measured profile predicts for whole networks with what they really take, on this machine:
    each network is exported for ONNX Runtime's integer kernels (its weights may be random) and timed from end
    to end, in turns with a reference kernel that tells how fast the clock is.

    examples:
      hwbmpq targets validate my_pc --model timm:resnet26 timm:mobilenetv2_140
      hwbmpq targets validate my_pc --model hwbmpq:resnet20 --bits W4A8,W8A8,W32A32 --json
    """
    profile = hwbmpq.load_profile(args.target)
    hwbmpq.measure.measurement_record(profile)  # before anything slow
    print_remarks(Console(stderr=True, highlight=False), hwbmpq.hardware.remarks_on(profile))
    asked = args.bits or [
        text for text in _COMPARED if text in {str(pair.precision) for pair in profile.pairs}
    ]
    precisions = hwbmpq.measure.parse_widths(asked)
    with progress("exporting", len(args.model) * len(precisions)) as advance, redirect_stdout(sys.stderr):
        candidates: list[Candidate] = []
        for spec in args.model:
            model, graph = _loaded(spec, args)
            for precision in precisions:
                candidates.append(hwbmpq.measure.exported_candidate(model, graph, profile, precision))
                advance(len(candidates))
    with progress("timing") as advance:
        validation = hwbmpq.measure.validate(candidates, profile, rounds=args.rounds, on_visit=advance)
    if args.json:
        print_json({"target": profile.target, **validation.to_dict()})
    else:
        print_validation(OutputConsole(), validation, target=profile.target)
