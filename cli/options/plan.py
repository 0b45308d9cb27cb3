"""What to allocate under, shared by ``plan`` and ``frontier``: sensitivity, objective, budgets."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import hwbmpq
from hwbmpq.cli.options.model import describe_model
from hwbmpq.cli.options.target import parse_activation_bits, parse_bits
from hwbmpq.errors import HwbmpqError, UnknownNameError

if TYPE_CHECKING:
    from hwbmpq.graph import LayerGraph
    from hwbmpq.models import LoadedModel
    from hwbmpq.search.space import SearchSpace
    from hwbmpq.values import Sensitivity

METHODS = ("enbg", "divergence", "weight-error", "hessian-trace", "activation-density", "uniform")
OBJECTIVES = ("linear", "error", "hawq")
SOLVERS = ("auto", "highs", "glpk")
_WITHOUT_WEIGHTS = ("uniform",)
_WITH_IMAGES = ("enbg", "divergence", "hessian-trace", "activation-density")


def add_sensitivity_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sensitivity")
    group.add_argument(
        "--sensitivity",
        default="enbg",
        metavar="FILE|METHOD",
        help="how much each layer needs its bits: enbg (bit gradients, by a short calibration pass), "
        "divergence (the answers with one layer narrowed at a time; slower), weight-error (no images needed), hessian-trace (slow), activation-density (share of activations that are not zero), uniform, or "
        "a JSON file of scores (default: %(default)s)",
    )
    group.add_argument(
        "--data",
        default="digits",
        metavar="SPEC",
        help="labelled images to calibrate on: digits (embedded), npz:FILE (arrays x_train, y_train), folder:PATH, "
        "cifar10, cifar100, tinyimagenet, fashion-mnist, fake (default: %(default)s)",
    )
    group.add_argument("--data-root", metavar="DIR", help="where data sets are (default: data)")
    group.add_argument("--download", action="store_true", help="fetch the data set if it is not there")
    group.add_argument(
        "--images", type=positive, default=32, metavar="N", help="how many of them (default: %(default)s)"
    )
    group.add_argument("--save-sensitivity", metavar="FILE", help="keep the scores for --sensitivity FILE")
    group.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="linear",
        help="linear: the paper's, score times position of the width; error: expected error saved, better with more "
        "than two widths; hawq: Hessian trace times squared error (default: %(default)s)",
    )


def add_budget_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--budget",
        nargs="+",
        action="extend",
        default=[],
        metavar="COST=AMOUNT",
        help="an upper bound on a cost, such as memory=350KiB, memory=12x (a twelfth of float), latency=8ms, energy=40uJ or "
        "bops=30%%; several hold together (default: the profile's own)",
    )


def add_allocation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("widths")
    group.add_argument(
        "--bits",
        type=parse_bits,
        metavar="2,4,8",
        help="weight widths (default: 2,4 if the device has both, else all)",
    )
    group.add_argument(
        "--activation-bits",
        type=_activation_bits,
        default="auto",
        metavar="auto|same|widest|float|N",
        help="activation width: auto (the widest up to 8, or the same as the weights if a budget depends on it), same, "
        "widest, float, or a number (default: %(default)s)",
    )
    group.add_argument(
        "--solver",
        choices=SOLVERS,
        default="auto",
        help="who solves the integer program (default: %(default)s)",
    )


def _activation_bits(text: str) -> str | int:
    try:
        return text if text == "auto" else parse_activation_bits(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(str(error).replace("use same", "use auto, same")) from None


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number above zero")
    return number


def read_budgets(texts: Sequence[str]) -> dict[str, str]:
    """``["memory=350KiB", "latency=8ms"]`` by cost."""
    budgets: dict[str, str] = {}
    for text in texts:
        name, equals, amount = (part.strip() for part in text.partition("="))
        if not equals or not name or not amount:
            raise HwbmpqError(
                f"budget {text!r}: write COST=AMOUNT",
                hint="for example memory=350KiB, memory=12x, latency=8ms, energy=40uJ, bops=30%",
            )
        if name in budgets:
            raise HwbmpqError(f"two budgets on {name}: {budgets[name]} and {amount}")
        budgets[name] = amount
    return budgets


def check_output(args: argparse.Namespace) -> None:
    """Files that are to be written, before anything slow."""
    if args.save_sensitivity is None:
        return
    if _method(args.sensitivity) is None:
        raise HwbmpqError("--save-sensitivity: nothing is measured if --sensitivity names a file")
    folder = Path(args.save_sensitivity).absolute().parent
    if not folder.is_dir():
        raise HwbmpqError(f"--save-sensitivity {args.save_sensitivity}: there is no folder {folder}")


def load_network(args: argparse.Namespace) -> "tuple[LoadedModel, LayerGraph]":
    """The network and its graph, with real weights if the sensitivity looks at them."""
    method = _method(args.sensitivity)
    return describe_model(args, needs_values=method is not None and method not in _WITHOUT_WEIGHTS)


def get_sensitivity(
    args: argparse.Namespace, model: "LoadedModel", graph: "LayerGraph", spaces: "Sequence[SearchSpace]"
) -> "Sensitivity":
    """Read or measure what the options ask for, once for all devices."""
    method = _method(args.sensitivity)
    if method is None:
        return hwbmpq.sensitivity.load_sensitivity(Path(args.sensitivity))
    images = None
    if method in _WITH_IMAGES:
        images = hwbmpq.data.load_images(
            args.data,
            input_size=model.input_size,
            count=args.images,
            root=args.data_root,
            download=args.download,
        )
    total = 0 if images is None else -(-len(images) // hwbmpq.pipeline.MEASURING_BATCH)
    with progress(f"measuring {method}", total) as advance, redirect_stdout(sys.stderr):
        found = hwbmpq.pipeline.measure(
            model.network,
            graph,
            [space.choices for space in spaces],
            images,
            method=method.replace("-", "_"),
            on_batch=advance,
        )
    if args.save_sensitivity:
        hwbmpq.sensitivity.save_sensitivity(found, Path(args.save_sensitivity), model=model.spec)
    return found


def untrained_remark(args: argparse.Namespace) -> list[str]:
    """A warning if the weights that were measured are random ones."""
    method = _method(args.sensitivity)
    is_measured = method is not None and method not in _WITHOUT_WEIGHTS
    if not is_measured or args.pretrained or args.weights or args.model.startswith("file:"):
        return []
    return [
        "the network's weights are random: give --weights or --pretrained for sensitivities that mean something"
    ]


def _method(spec: str) -> str | None:
    """The method that ``--sensitivity`` names; None if it is a file."""
    name = spec.replace("_", "-")
    if name in METHODS:
        return name
    if Path(spec).suffix or Path(spec).exists():
        return None
    raise UnknownNameError("sensitivity", spec, METHODS, hint="or give the path of a JSON file of scores")


@contextmanager
def progress(text: str, total: int) -> Iterator[Any]:
    """A bar on stderr while a person is watching; yields what to call with the number done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=total or None)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)


def check_page(path: Path | None) -> None:
    """Before anything slow: whether --html names a page, and not a file of the run by mistake."""
    if path is None:
        return
    if path.suffix not in (".html", ".htm"):
        raise HwbmpqError(f"--html {path}: give a name that ends with .html")
    if not path.absolute().parent.is_dir():
        raise HwbmpqError(f"--html {path} cannot be written: there is no folder {path.parent}")
