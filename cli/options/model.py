"""``--model`` and its companions, shared by every command that takes a network."""

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import hwbmpq
from hwbmpq.cli.progress import status
from hwbmpq.errors import ModelLoadError, TraceError
from hwbmpq.values import DEFAULT_TIE, TIE_POLICIES

if TYPE_CHECKING:
    from hwbmpq.graph import LayerGraph
    from hwbmpq.models import LoadedModel


def add_model_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    group = parser.add_argument_group("network")
    group.add_argument(
        "--model",
        required=required,
        metavar="SPEC",
        help="timm:NAME, torchvision:NAME, hwbmpq:NAME (resnet8, resnet20, resnet56, each also as NAME_b with "
        "1x1 shortcuts; resnet18, vgg16), file:PATH.py:FACTORY (your code: a function that returns a "
        "torch.nn.Module) or file:PATH.pt2 (saved by torch.export)",
    )
    group.add_argument(
        "--input", metavar="CxHxW", help="input size without the batch (default: the network's own)"
    )
    group.add_argument("--num-classes", type=int, metavar="N", help="classes (default: the network's own)")
    weights = group.add_mutually_exclusive_group()
    weights.add_argument("--pretrained", action="store_true", help="fetch timm's or torchvision's weights")
    weights.add_argument(
        "--weights",
        metavar="FILE",
        help="local weights: safetensors, or a torch checkpoint of tensors (read without unpickling code)",
    )
    group.add_argument(
        "--tie",
        choices=TIE_POLICIES,
        default=DEFAULT_TIE,
        help="; ".join(f"{name}: {rule}" for name, rule in TIE_POLICIES.items()) + " (default: %(default)s)",
    )


def load_from(args: argparse.Namespace, device: str = "cpu") -> "LoadedModel":
    """The network that the options name."""
    return hwbmpq.models.load_model(
        args.model,
        num_classes=args.num_classes,
        input_size=None if args.input is None else hwbmpq.models.parse_input_size(args.input),
        pretrained=args.pretrained,
        weights=args.weights,
        device=device,
        seed=0,
    )


def describe_model(
    args: argparse.Namespace, *, needs_values: bool = False
) -> "tuple[LoadedModel, LayerGraph]":
    """The network that the options name, and its graph.

    A zoo's network is built on the meta device, without memory for its weights, if nothing needs them.
    """
    needs_values = needs_values or args.pretrained or args.weights or args.model.startswith("file:")
    # Zoos and factories print; stdout is for the result.
    with status(f"reading {args.model}"), redirect_stdout(sys.stderr):
        if not needs_values:
            try:
                return _describe(args, "meta")
            except (ModelLoadError, TraceError):
                pass  # the network looks at values while it is built or runs: it needs real ones
        return _describe(args, "cpu")


def _describe(args: argparse.Namespace, device: str) -> "tuple[LoadedModel, LayerGraph]":
    model = load_from(args, device)
    return model, hwbmpq.describe(model.network, model.example_input(), tie=args.tie)
