"""The flags of ``compress``: each is a setting of the run, and may stand in a ``--config`` file instead."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.options.model import add_model_options
from hwbmpq.cli.options.names import add_data_options, add_name_option
from hwbmpq.cli.options.numbers import several
from hwbmpq.cli.options.target import TARGET_HELP, add_allocation_options, add_budget_option, read_budgets
from hwbmpq.errors import HwbmpqError
from hwbmpq.registry import METHODS, OBJECTIVES, QUANTIZERS, SENSITIVITIES

if TYPE_CHECKING:
    from hwbmpq.training.settings import RunSettings

_MAY_CHANGE = {"baseline", "device", "data_root", "checkpoint_minutes", "workers"}
"""Settings that a resumed run may get anew: they change nothing in the result."""
_FOLLOW_EPOCHS = ("warmup_epochs", "interval_epochs", "decide_after")
_FOLLOW_DATA = ("input", "num_classes")


def add_training_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help="a run of the BMPQ paper's tables: network, data, method, budget, schedule; other flags win (names: below)",
    )
    add_model_options(parser, required=False)
    device = parser.add_argument_group("device")
    device.add_argument("--target", help=TARGET_HELP)
    add_budget_option(device)
    add_allocation_options(parser)
    _add_method(parser.add_argument_group("method"))
    _add_data(parser.add_argument_group("data"))
    _add_schedule(parser.add_argument_group("schedule"))
    _add_optimization(parser.add_argument_group("optimization"))
    _forget_defaults(parser)


def _add_method(group: argparse._ArgumentGroup) -> None:
    text = (
        "how widths are decided: %(choices)s. bmpq: bit gradients and an integer program, again after every interval; fp32: no "
        "quantization; hpq: one width for all (--bits k); ad: activation density, no budget; hawq: Hessian traces; random, "
        "greedy (smallest first), reversed (least sensitive first): baselines that fill the budget (default: bmpq)"
    )
    add_name_option(group, "--method", METHODS, text)
    text = "what the integer program maximises: %(choices)s (default: linear, the paper's; error without training)"
    add_name_option(group, "--objective", OBJECTIVES, text)
    text = "what --epochs 0 allocates by: %(choices)s (default: enbg; training always learns enbg)"
    add_name_option(group, "--sensitivity", SENSITIVITIES, text)
    text = "how weights are rounded: %(choices)s (default: paper, symmetric with ternary weights at 2 bits)"
    add_name_option(group, "--quantizer", QUANTIZERS, text)
    group.add_argument(
        "--per-channel",
        action=argparse.BooleanOptionalAction,
        help="one weight scale for every output channel (default: one per layer as in the paper; per channel "
        "with --epochs 0)",
    )


def _add_data(group: argparse._ArgumentGroup) -> None:
    text = (
        "images with labels, such as folder:PATH (train/ and val/ or test/ with a folder per class), npz:PATH (x_train, y_train, "
        "x_test, y_test) or the embedded digits (default: digits)"
    )
    add_data_options(group, text)
    group.add_argument("--train-images", type=int, metavar="N", help="train on a random N of the images")
    group.add_argument("--test-images", type=int, metavar="N", help="evaluate on a random N of the images")
    group.add_argument(
        "--calibration-images", type=int, metavar="N", help="images for --epochs 0 (default: 512)"
    )
    group.add_argument(
        "--augment",
        choices=("none", "crop", "flip-crop", "random-resized-crop", "rand-augment"),
        help="the last two are for photographs (default: what suits the data)",
    )
    group.add_argument(
        "--workers", type=int, metavar="N", help="processes that read files (default: up to 4)"
    )


def _add_schedule(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="epochs in all; 0: no training, only calibration (default: 200 for CIFAR, 100 for Tiny-ImageNet, 20 for "
        "digits, 30 elsewhere)",
    )
    group.add_argument(
        "--warmup-epochs",
        type=int,
        metavar="N",
        help="epochs at the widest candidates before the first decision (default: a tenth of all)",
    )
    group.add_argument(
        "--interval-epochs", type=int, metavar="N", help="epochs between decisions (default: a tenth of all)"
    )
    group.add_argument(
        "--decide-after",
        type=several(int, "epochs like 20,40,100"),
        metavar="20,40,100",
        help="decide after these epochs instead",
    )
    group.add_argument(
        "--max-steps",
        type=int,
        metavar="N",
        help="try a run out: the whole schedule, decisions included, in at most N steps (fewer and shorter epochs)",
    )


def _add_optimization(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--optimizer", choices=("sgd", "adam", "adamw"), help="default: sgd")
    add("--lr", type=float, metavar="RATE", help="learning rate (default: by data; 0.1 for CIFAR)")
    add(
        "--lr-schedule",
        choices=("step", "cosine", "onecycle", "constant"),
        help="default: step for CIFAR and Tiny-ImageNet, else cosine",
    )
    add(
        "--lr-decay-at",
        type=several(float, "shares like 0.4,0.7"),
        metavar="0.4,0.7",
        help="where step decays, as shares of the run (default: 0.4,0.7)",
    )
    add("--lr-decay", type=float, metavar="FACTOR", help="what step multiplies by there (default: 0.1)")
    add("--momentum", type=float, metavar="M", help="default: 0.9")
    add("--nesterov", action=argparse.BooleanOptionalAction, help="Nesterov momentum")
    add("--weight-decay", type=float, metavar="D", help="default: 0.0005")
    add("--alpha-weight-decay", type=float, metavar="D", help="of the clipping points (default: 0.0005)")
    add(
        "--batch-size", type=int, metavar="N", help="images in a batch, all ranks together (default: by data)"
    )
    add("--accumulate", type=int, metavar="N", help="batches to one optimizer step (default: 1)")
    add("--clip-norm", type=float, metavar="NORM", help="clip gradients at this norm (default: never)")
    add("--label-smoothing", type=float, metavar="E", help="default: 0")
    add("--amp", action=argparse.BooleanOptionalAction, help="mixed float precision while training")
    add("--seed", type=int, metavar="N", help="of weights, data order and augmentation (default: 0)")
    add("--device", metavar="auto|cpu|cuda|mps", help="where to train (default: auto)")
    add(
        "--checkpoint-minutes",
        type=float,
        metavar="M",
        help="time between checkpoints inside an epoch; there is one after each anyway (default: 10)",
    )


def _forget_defaults(parser: argparse.ArgumentParser) -> None:
    """Make a flag that was not given None, so that the config file and the recipe can speak."""
    for action in parser._actions:
        if action.help and "%(default)s" in action.help:
            action.help = action.help.replace("%(default)s", str(action.default))
    parser.set_defaults(
        **{action.dest: None for action in parser._actions if action.default not in (argparse.SUPPRESS, [])}
    )


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as flags."""
    # The files of torch-free commands stay importable without pydantic's model of the settings.
    names = set(hwbmpq.training.RunSettings.model_fields)
    given = {name: value for name, value in vars(args).items() if name in names and value is not None}
    if args.budget:
        given["budgets"] = read_budgets(args.budget)
    return given


def settings_from(args: argparse.Namespace) -> "RunSettings":
    """Flags over the ``--config`` file over the recipe."""
    training = hwbmpq.training
    said = {} if args.recipe is None else dict(training.get_paper_recipe(args.recipe).settings)
    said |= {} if args.config is None else training.read_settings(Path(args.config))
    given = given_settings(args)
    if given.keys() & {"epochs", "data", "decide_after", "max_steps"}:
        # the file's warm-up belongs to other epochs
        said = {name: value for name, value in said.items() if name not in _FOLLOW_EPOCHS}
    if given.keys() & {"model", "data"}:
        said = {name: value for name, value in said.items() if name not in _FOLLOW_DATA}
    said |= given
    for name, flag in (("model", "--model"), ("target", "--target")):
        if said.get(name) is None:
            raise HwbmpqError(
                f"{flag} is missing",
                hint="for example: hwbmpq compress --model timm:resnet18 --target jetson_nano.yaml",
            )
    return training.resolve_settings(_with_absolute_paths(said), recipe=args.recipe)


def _with_absolute_paths(said: dict[str, Any]) -> dict[str, Any]:
    """Files by their full paths, so that the run can be resumed from another folder."""
    found = dict(said)
    for name in ("weights", "data_root"):
        if found.get(name):
            found[name] = str(Path(found[name]).expanduser().absolute())
    for name, kinds in (("data", ("npz", "folder")), ("model", ("file",))):
        kind, _, path = str(found.get(name, "")).partition(":")
        if kind in kinds:
            found[name] = f"{kind}:{Path(path).expanduser().absolute()}"
    target = Path(str(found["target"])).expanduser()
    if target.is_file():
        found["target"] = str(target.absolute())
    return found


def resumed_settings(args: argparse.Namespace, settings: "RunSettings") -> "RunSettings":
    """The settings of a run that goes on: its own, but for where it runs."""
    given = given_settings(args)
    others = [name for name in ("config", "recipe") if getattr(args, name) is not None]
    fixed = sorted(set(given) - _MAY_CHANGE) + others
    if fixed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in fixed)
        raise HwbmpqError(
            f"a resumed run keeps its settings: leave out {flags}",
            hint="to change them, start a new run; the old one's config.yaml can be given as --config",
        )
    return settings.model_copy(update=given)
