"""What ``plan`` and ``frontier`` start from: a network, devices, and a sensitivity that is read from a file or measured."""

import argparse
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import hwbmpq
from hwbmpq.cli.options.common import RegistryNames, add_count, check_output
from hwbmpq.cli.options.network import describe_model, own_normalisation
from hwbmpq.cli.options.settings import add_data_options, add_settings, given_on_command_line
from hwbmpq.cli.progress import progress
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.registry import SENSITIVITIES

if TYPE_CHECKING:
    from hwbmpq.data import LabelledImages, OpenData
    from hwbmpq.data.batches import LoaderImages
    from hwbmpq.graph import LayerGraph
    from hwbmpq.hardware import HardwareProfile
    from hwbmpq.models import LoadedModel
    from hwbmpq.search.space import SearchSpace
    from hwbmpq.values import Sensitivity

_NAMES = RegistryNames(SENSITIVITIES)
_DEFAULT, _WITHOUT_DATA = "enbg", "weight_error"


def add_sensitivity_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sensitivity")
    group.add_argument(
        "--sensitivity",
        choices=_NAMES,
        metavar="FILE|METHOD",
        help="how much each layer needs its bits: %(choices)s, or a JSON file of scores. enbg: bit gradients, by a short "
        "calibration pass; divergence: the answers with one layer narrowed at a time, slower; weight-error: no images needed; "
        "hessian-trace: slow; activation-density: share of activations that are not zero (default: enbg, or weight-error for a "
        "network that the embedded images do not fit)",
    )
    add_data_options(group)
    add_count(group, "--images", 32, "how many of them")
    group.add_argument("--save-sensitivity", metavar="FILE", help="keep the scores for --sensitivity FILE")
    add_settings(group, "objective", default=None)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A network with its sensitivity, and what can be chosen for it on each device."""

    model: "LoadedModel"
    spaces: "list[SearchSpace]"
    sensitivity: "Sensitivity"
    remarks: list[str]
    inputs: str = ""
    """How the images that were measured on reached the network."""


def prepare(args: argparse.Namespace, targets: Iterable[str], budgets: Mapping[str, str]) -> Prepared:
    """All that the options name, with one sensitivity for all devices; what can be checked is checked first.

    Sets ``args.objective`` if it was not given.
    """
    if args.objective is None:
        args.objective = "error" if args.activation_bits == "apart" else "linear"
    name = _name(args.sensitivity or _DEFAULT)
    if name is None and args.save_sensitivity is not None:
        raise HwbmpqError("--save-sensitivity: nothing is measured if --sensitivity names a file")
    check_output("--save-sensitivity", args.save_sensitivity)
    needs_weights = name is not None and bool(SENSITIVITIES.get(name).needs_weights)
    profiles = [hwbmpq.load_profile(target) for target in dict.fromkeys(targets)]
    data = _open_data(args) if name is not None and SENSITIVITIES.get(name).needs_data else None
    model, graph = describe_model(args, needs_values=needs_weights, data=data)
    spaces, remarks = _search_spaces(args, graph, profiles, budgets)
    try:
        images = None if data is None else _images(args, data, model)
    except HwbmpqError as error:
        if (
            args.sensitivity is not None
            or args.data != hwbmpq.training.RunSettings.model_fields["data"].default
        ):
            raise
        name, images = _WITHOUT_DATA, None
        remarks.append(f"{error}: sensitivities are those of the weights alone; --data measures on your own")
    if name is None:
        sensitivity = hwbmpq.sensitivity.load_sensitivity(Path(args.sensitivity))
    else:
        sensitivity = _measure(args, name, model, graph, spaces, images)
    if needs_weights and not _has_weights(args):
        remarks.append(
            "the network's weights are random: give --weights or --pretrained for sensitivities that mean something"
        )
    inputs = "" if images is None else f"inputs: {images.inputs}"
    return Prepared(model=model, spaces=spaces, sensitivity=sensitivity, remarks=remarks, inputs=inputs)


def _has_weights(args: argparse.Namespace) -> bool:
    return bool(args.pretrained or args.weights or args.model.startswith("file:"))


def _search_spaces(
    args: argparse.Namespace,
    graph: "LayerGraph",
    profiles: "list[HardwareProfile]",
    budgets: Mapping[str, str],
) -> "tuple[list[SearchSpace], list[str]]":
    """For each device that has the costs, and why the others are left out."""
    spaces, refusals = [], []
    options = {
        "bits": args.bits,
        "activation_bits": args.activation_bits,
        "activation_widths": args.activation_widths,
        "pin": args.pin,
        "keep_float": args.keep_float or (),
        "ends": args.ends,
    }
    for profile in profiles:
        try:
            spaces.append(hwbmpq.pipeline.build_search_space(graph, profile, budgets, **options))
        except HwbmpqError as error:
            if len(profiles) == 1 or isinstance(error, UnknownNameError):
                raise
            refusals.append(f"{profile.target} is left out: {error}")
    if not spaces:
        raise HwbmpqError("; ".join(refusals))
    return spaces, refusals


def _open_data(args: argparse.Namespace) -> "OpenData":
    with redirect_stdout(sys.stderr):
        return hwbmpq.data.open_data(
            args.data,
            root=args.data_root,
            download=args.download,
            needs_test=False,
            layout=args.layout or "auto",
        )


def _images(
    args: argparse.Namespace, data: "OpenData", model: "LoadedModel"
) -> "LabelledImages | LoaderImages":
    normalise = given_on_command_line(args).get("normalise") or own_normalisation(args, model)
    with redirect_stdout(sys.stderr):
        return data.training_images(model.input_size, count=args.images, normalise=normalise)


def _measure(
    args: argparse.Namespace,
    name: str,
    model: "LoadedModel",
    graph: "LayerGraph",
    spaces: "list[SearchSpace]",
    images: "LabelledImages | LoaderImages | None",
) -> "Sensitivity":
    total = 0 if images is None else -(-len(images) // hwbmpq.pipeline.MEASURING_BATCH)
    choices = [space.choices for space in spaces]
    with progress(f"measuring {name}", total) as advance, redirect_stdout(sys.stderr):
        found = hwbmpq.pipeline.measure(
            model.network,
            graph,
            choices,
            images,
            method=name,
            on_batch=advance,
            is_trained=_has_weights(args),
            with_activations=args.objective == "error",
        )
    if args.save_sensitivity:
        hwbmpq.sensitivity.save_sensitivity(found, Path(args.save_sensitivity), model=model.spec)
    return found


def read_sensitivity(args: argparse.Namespace) -> "tuple[str | None, Sensitivity | None]":
    """What ``--sensitivity`` names, if it was given: a method, or the scores in a file."""
    if args.sensitivity is None:
        return None, None
    name = _name(args.sensitivity)
    if name is not None:
        return name, None
    return None, hwbmpq.sensitivity.load_sensitivity(Path(args.sensitivity))


def _name(spec: str) -> str | None:
    """The method that ``--sensitivity`` names; None if it is a file."""
    try:
        return SENSITIVITIES.resolve(spec)
    except UnknownNameError:
        if Path(spec).suffix or Path(spec).exists():
            return None
        raise UnknownNameError(
            "sensitivity", spec, _NAMES, hint="or give the path of a JSON file of scores"
        ) from None
