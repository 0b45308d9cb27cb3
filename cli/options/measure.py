"""Networks and settings, shared by the commands that measure a device."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import hwbmpq
from hwbmpq.cli.options.model import describe_model, load_from
from hwbmpq.cli.options.numbers import between
from hwbmpq.cli.options.parser import add_count, add_output_options
from hwbmpq.values import DEFAULT_TIE

if TYPE_CHECKING:
    from hwbmpq.graph import LayerGraph
    from hwbmpq.models import LoadedModel

DEFAULT_MODELS = ("timm:resnet18", "timm:mobilenetv2_100", "hwbmpq:vgg16")
ROUNDS, QUICK_ROUNDS = 20, 5
FEWEST_ROUNDS, MOST_ROUNDS = 3, 10_000


def add_networks(parser: argparse.ArgumentParser, *, required: bool) -> None:
    group = parser.add_argument_group("networks")
    group.add_argument(
        "--model",
        nargs="+",
        action="extend",
        required=required,
        metavar="SPEC",
        help="as for other commands: timm:NAME, torchvision:NAME, hwbmpq:NAME, file:PATH.py:FACTORY; several are welcome"
        + ("" if required else f" (default: {' '.join(DEFAULT_MODELS)})"),
    )
    group.add_argument(
        "--input",
        metavar="CxHxW",
        help="input size without the batch, of all of them (default: each one's own)",
    )


def add_place(parser: argparse.ArgumentParser) -> None:
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


def add_rounds(parser: argparse._ActionsContainer, default: int) -> None:
    text = "how often everything takes its turn; more are steadier"
    add_count(parser, "--rounds", default, text, type=between(FEWEST_ROUNDS, MOST_ROUNDS, "rounds"))


def network_options(spec: str, args: argparse.Namespace) -> argparse.Namespace:
    """One of the networks, as commands with a single one have it."""
    return argparse.Namespace(
        model=spec, input=args.input, num_classes=None, pretrained=False, weights=None, tie=DEFAULT_TIE
    )


def described(args: argparse.Namespace) -> "list[tuple[LoadedModel, LayerGraph]]":
    """Every network and its graph, without weights where that is possible."""
    return [describe_model(network_options(spec, args)) for spec in args.model or DEFAULT_MODELS]


def loaded(spec: str, args: argparse.Namespace) -> "tuple[LoadedModel, LayerGraph]":
    """One network with real, if random, weights."""
    model = load_from(network_options(spec, args))
    return model, hwbmpq.describe(model.network, model.example_input())
