"""``--sensitivity`` of ``plan`` and ``frontier``: scores that are read from a file, or measured."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import hwbmpq
from hwbmpq.cli.options.common import RegistryNames, add_count, check_output
from hwbmpq.cli.options.network import describe_model
from hwbmpq.cli.options.settings import add_data_options, add_settings
from hwbmpq.cli.progress import progress
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.registry import SENSITIVITIES

if TYPE_CHECKING:
    from hwbmpq.graph import LayerGraph
    from hwbmpq.models import LoadedModel
    from hwbmpq.search.space import SearchSpace
    from hwbmpq.values import Sensitivity

_NAMES = RegistryNames(SENSITIVITIES)


def add_sensitivity_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sensitivity")
    group.add_argument(
        "--sensitivity",
        default="enbg",
        choices=_NAMES,
        metavar="FILE|METHOD",
        help="how much each layer needs its bits: %(choices)s, or a JSON file of scores. enbg: bit gradients, by a short "
        "calibration pass; divergence: the answers with one layer narrowed at a time, slower; weight-error: no images needed; "
        "hessian-trace: slow; activation-density: share of activations that are not zero (default: %(default)s)",
    )
    add_data_options(group)
    add_count(group, "--images", 32, "how many of them")
    group.add_argument("--save-sensitivity", metavar="FILE", help="keep the scores for --sensitivity FILE")
    add_settings(group, "objective")


def check_sensitivity(args: argparse.Namespace) -> None:
    """What the options ask for, before anything slow."""
    if _name(args.sensitivity) is None and args.save_sensitivity is not None:
        raise HwbmpqError("--save-sensitivity: nothing is measured if --sensitivity names a file")
    check_output("--save-sensitivity", args.save_sensitivity)


def load_network(args: argparse.Namespace) -> "tuple[LoadedModel, LayerGraph]":
    """The network and its graph, with real weights if the sensitivity looks at them."""
    return describe_model(args, needs_values=_needs_weights(args))


def get_sensitivity(
    args: argparse.Namespace, model: "LoadedModel", graph: "LayerGraph", spaces: "Sequence[SearchSpace]"
) -> "Sensitivity":
    """Read or measure what the options ask for, once for all devices."""
    name = _name(args.sensitivity)
    if name is None:
        return hwbmpq.sensitivity.load_sensitivity(Path(args.sensitivity))
    images = None
    if SENSITIVITIES.get(name).needs_data:
        images = hwbmpq.data.load_images(
            args.data,
            input_size=model.input_size,
            count=args.images,
            root=args.data_root,
            download=args.download,
        )
    total = 0 if images is None else -(-len(images) // hwbmpq.pipeline.MEASURING_BATCH)
    with progress(f"measuring {name}", total) as advance, redirect_stdout(sys.stderr):
        found = hwbmpq.pipeline.measure(
            model.network,
            graph,
            [space.choices for space in spaces],
            images,
            method=name,
            on_batch=advance,
        )
    if args.save_sensitivity:
        hwbmpq.sensitivity.save_sensitivity(found, Path(args.save_sensitivity), model=model.spec)
    return found


def untrained_remark(args: argparse.Namespace) -> list[str]:
    """A warning if the weights that were measured are random ones."""
    if not _needs_weights(args) or args.pretrained or args.weights or args.model.startswith("file:"):
        return []
    return [
        "the network's weights are random: give --weights or --pretrained for sensitivities that mean something"
    ]


def _needs_weights(args: argparse.Namespace) -> bool:
    name = _name(args.sensitivity)
    return name is not None and bool(SENSITIVITIES.get(name).needs_weights)


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
