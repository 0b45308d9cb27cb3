"""Train a network, quantized, within a device's budget.

Train a network once, quantized. Bit gradients tell which layers matter; after the warm-up and
after every interval an integer program gives each layer the width that the device's budget
allows. With nothing but a model and a target it runs on embedded images in a few minutes.
With --epochs 0 nothing is trained: weights are rounded well and activations calibrated.

examples:
  hwbmpq compress --model timm:resnet18 --target jetson_nano.yaml
  hwbmpq compress --model hwbmpq:resnet20 --target mpic --budget memory=12x --data cifar10 --data-root ~/data
  hwbmpq compress --model timm:mobilenetv2_100 --pretrained --target raspberry_pi_4 --data folder:photos --epochs 15
  hwbmpq compress --model hwbmpq:resnet20 --weights resnet20.pt --target mpic --data npz:cifar10.npz --epochs 0
  hwbmpq compress --model hwbmpq:resnet20 --weights resnet20.pt --target mpic --epochs 0 --max-drop 1% --minimise flash
  hwbmpq compress --recipe bmpq-cifar10-vgg16 --data-root ~/data
  hwbmpq compress --resume runs/resnet18-jetson_nano
  torchrun --nproc-per-node 4 -m hwbmpq compress --model timm:resnet18 --target mpic --data cifar10

recipes, after the BMPQ paper's tables:
  bmpq-cifar10-vgg16          bmpq-cifar10-vgg16-small    bmpq-cifar10-resnet18
  bmpq-cifar100-vgg16         bmpq-cifar100-vgg16-small   bmpq-cifar100-resnet18
  bmpq-tinyimagenet-vgg16     bmpq-tinyimagenet-resnet18
  ad-cifar10-vgg16            ad-cifar100-resnet18        ad-tinyimagenet-resnet18
  bmpq-cifar10-vgg16-120      bmpq-cifar100-resnet18-120  bmpq-tinyimagenet-resnet18-60

A run leaves a folder with report.html (everything, with plots), model.safetensors (the network,
packed; hwbmpq export makes ONNX of it), config.yaml (all settings, for --config), allocation.json
(widths, costs, proof), history.jsonl (one line per epoch), facts.json (network, device, figures),
checkpoint.pt and best.pt. Ctrl-C saves and stops.
"""

import argparse
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain, count
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.console import Console, escape
from hwbmpq.cli.options.common import add_output_options
from hwbmpq.cli.options.network import build
from hwbmpq.cli.options.settings import (
    add_training_options,
    add_trust_option,
    check_budgets,
    resumed_settings,
    settings_from,
)
from hwbmpq.cli.progress import TrainingProgress
from hwbmpq.cli.render.plan import explained_infeasible
from hwbmpq.cli.render.report import accuracy_lines, baseline_line, print_run
from hwbmpq.cli.render.tables import OutputConsole, print_json, print_remarks, print_wrapped
from hwbmpq.errors import HwbmpqError, OtherRankError, RunStoppedError
from hwbmpq.units import counted

if TYPE_CHECKING:
    from hwbmpq.data import ImageData
    from hwbmpq.models import LoadedModel
    from hwbmpq.pipeline import Compression
    from hwbmpq.training import RunDirectory, RunSettings

_ANYWHERE = (
    "input",
    "num_classes",
    "data_root",
    "normalise",
    "seed",
    "baseline",
    "device",
    "amp",
    "checkpoint_minutes",
)
"""Settings that may differ from a recipe's without making it another run."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_training_options(parser)
    group = parser.add_argument_group("run")
    group.add_argument(
        "--run-dir",
        dest="run_folder",  # not --run: torchrun, before us in the line, takes that for its own --run-path
        metavar="DIR",
        help="folder for the run (default: runs/MODEL-TARGET, with a number if that exists)",
    )
    group.add_argument("--resume", metavar="RUN", help="continue a run from its last checkpoint")
    group.add_argument("--overwrite", action="store_true", help="replace the run that --run-dir names")
    group.add_argument(
        "--config", metavar="FILE", help="settings as YAML, such as a run's config.yaml; flags win"
    )
    add_trust_option(group)
    group.add_argument("--tensorboard", action="store_true", help="write curves for TensorBoard into the run")
    group.add_argument("-q", "--quiet", action="store_true", help="only the result")
    group.add_argument("-v", "--verbose", action="store_true", help="why each layer moved")
    add_output_options(group, rows="layer of a large network")


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """A run that has ended, with the settings that its data and network completed."""

    result: "Compression"
    settings: "RunSettings"
    title: str


def run(args: argparse.Namespace) -> None:
    settings = _settings(args)
    hwbmpq.load_profile(settings.target)  # before anything slow
    check_budgets({**settings.budgets, **({settings.minimise: "100%"} if settings.minimise else {})})
    hwbmpq.distributed.join(use_cuda=hwbmpq.training.find_device(settings.device).type == "cuda")
    with ExitStack() as stack:
        stack.callback(hwbmpq.distributed.leave)
        # The first rank looks and names: the others would find what it has just made.
        path = hwbmpq.distributed.on_first_rank(lambda: _folder(args, settings))
        stack.enter_context(
            hwbmpq.distributed.losses_told(f"start it again with --resume {quote(str(path))}")
        )
        is_first = hwbmpq.distributed.rank() == 0
        console = Console(stderr=True, highlight=False, quiet=not is_first or args.quiet)
        trained = _train(args, settings, hwbmpq.training.RunDirectory(path), console)
        baseline = _baseline(args, trained, path, console) if settings.baseline else None
        if is_first:
            _show(args, trained, baseline, path)


def _settings(args: argparse.Namespace) -> "RunSettings":
    if args.resume is None:
        return settings_from(args)
    if args.run_folder is not None or args.overwrite:
        raise HwbmpqError("--resume names the run: leave out --run-dir and --overwrite")
    return resumed_settings(args, hwbmpq.training.RunDirectory(args.resume).open())


def _folder(args: argparse.Namespace, settings: "RunSettings") -> Path:
    """As the options say; else ``runs/resnet18-jetson_nano``, or the first number behind it that is free."""
    if args.resume is not None:
        return Path(args.resume)
    path = args.run_folder
    if path is None and args.overwrite:
        raise HwbmpqError("--overwrite: which run?", hint="name its folder with --run-dir")
    if path is None:
        model = Path(settings.model.partition(":")[2]).name.replace(":", "-")
        target = Path(settings.target).name.removesuffix(".yaml").removesuffix(".yml")
        base = Path("runs") / f"{model}-{target}"
        numbered = (base.with_name(f"{base.name}-{number}") for number in count(2))
        path = next(path for path in chain([base], numbered) if not path.exists())
    return hwbmpq.training.RunDirectory(path).check_free(overwrite=args.overwrite).path


def _train(
    args: argparse.Namespace,
    settings: "RunSettings",
    folder: "RunDirectory",
    console: Console,
    *,
    is_baseline: bool = False,
) -> _Trained:
    """Build the network and its data, and train it in ``folder``."""
    state = _saved_state(args, folder, settings, console)
    # A checkpoint has the weights: what the run began with is not looked for again.
    source = settings if state is None else settings.model_copy(update={"weights": None, "pretrained": False})
    is_old = args.resume is not None and settings.normalise is None
    model, data = build(source, download=args.download, is_from_0_1_0=is_old, state=state)
    data = hwbmpq.pipeline.with_validation(data, settings)
    # What the data and the network's own defaults made of it: other images must not change it afterwards.
    size = "x".join(map(str, model.input_size))
    compares = settings.epochs or settings.asks_for_accuracy
    held_out = None if not compares else 0.0 if data.validation is None else float(len(data.validation))
    settings = settings.model_copy(
        update={
            "input": size,
            "num_classes": data.classes,
            "validation": held_out,
            "normalise": data.normalise,
        }
    )
    if not is_baseline:
        _announce(args, console, settings, model, data)
    is_new = state is None and (args.resume is None or is_baseline)
    make = partial(_make_folder, settings, folder, console, overwrite=args.overwrite or is_baseline)
    try:
        with _hooks(args, folder, console) as hooks, _graceful_stop(console) as trainers:
            result = hwbmpq.pipeline.compress(
                model.network,
                data,
                settings,
                run=folder,
                state=state,
                hooks=hooks,
                on_ready=make if is_new and hwbmpq.distributed.rank() == 0 else None,
                on_trainer=trainers.append,
                command=("hwbmpq", *sys.argv[1:]),
                teacher=_teacher(settings, data),
            )
    except hwbmpq.InfeasibleBudget as error:
        if hwbmpq.distributed.rank() != 0:
            raise OtherRankError(str(error)) from error
        space = hwbmpq.pipeline.search_space_of(model.network, data, settings)
        raise explained_infeasible(error, space, as_json=args.json) from error
    return _Trained(result=result, settings=settings, title=model.title)


def _teacher(settings: "RunSettings", data: "ImageData") -> Any:
    """The float network that the settings name to learn from."""
    if settings.teacher is None or not settings.distill or not settings.epochs:
        return None
    spec, _, weights = settings.teacher.partition("=")
    if not weights:
        raise HwbmpqError(
            f"--teacher {spec}: its weights are missing; random ones teach nothing",
            hint=f"--teacher {spec}=FILE names trained ones, for these classes",
        )
    return hwbmpq.models.load_model(
        spec, num_classes=data.classes, input_size=data.train.input_size, weights=weights
    ).network


def _saved_state(
    args: argparse.Namespace, folder: "RunDirectory", settings: "RunSettings", console: Console
) -> "dict[str, Any] | None":
    """The checkpoint to continue from."""
    if args.resume is None:
        return None
    if not folder.has_checkpoint:
        goes_on = "goes on among its probes of accuracy" if folder.has_probes else "starts from its beginning"
        console.print(f"{escape(str(folder.path))} has no checkpoint yet: the run {goes_on}")
        return None
    epochs = settings.epochs
    if epochs == 0:
        raise HwbmpqError(
            f"{folder.path} is a run without training, and finished: there is nothing to continue",
            hint=f"hwbmpq report {quote(str(folder.path))} shows it; hwbmpq compress --config "
            f"{quote(str(folder.path / 'config.yaml'))} --epochs 20 trains the same network",
        )
    state, problem = folder.load_checkpoint()
    hwbmpq.training.check_state(state)
    if problem:
        print_remarks(console, [f"{problem}: the state before is used"])
    progress = state["progress"]
    if progress["epoch"] >= epochs:
        console.print("the run is finished: nothing is left to train")
    else:
        within = f" and {progress['batch']} batches of the next" if progress["batch"] else ""
        console.print(f"continuing after epoch {progress['epoch']} of {epochs}{within}")
    return state


def _make_folder(
    settings: "RunSettings", folder: "RunDirectory", console: Console, *, overwrite: bool
) -> None:
    folder.create(overwrite=overwrite)
    print_wrapped(console, f"run: {escape(str(folder.path))}")
    facts = {
        "written by": f"hwbmpq {hwbmpq.__version__}, Python {platform.python_version()}",
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    folder.save_settings(settings, facts)


def _announce(
    args: argparse.Namespace,
    console: Console,
    settings: "RunSettings",
    model: "LoadedModel",
    data: "ImageData",
) -> None:
    validation = "" if data.validation is None else f", {len(data.validation):,} validation"
    classes = "" if data.classes is None else f", {data.classes} classes"
    print_wrapped(
        console,
        f"[bold]{escape(model.title)}[/] on {escape(settings.target)}, {escape(settings.data)}: "
        f"{len(data.train):,} training{validation} and {len(data.test):,} test {data.samples}{classes}",
    )
    print_wrapped(console, escape(data.inputs))
    if settings.epochs:
        print_wrapped(console, _augmentation(settings, data))
    remarks = list(data.remarks)
    if data.validation is None and settings.epochs:
        remarks.append("no images are held out for validation: the best epoch is chosen by the test images")
    if settings.max_steps is not None:
        console.print(
            f"to try it out: {counted(settings.epochs, 'epoch')}, at most {counted(settings.max_steps, 'step')} in all"
        )
    has_weights = settings.weights or settings.pretrained or settings.model.startswith("file:")
    if settings.epochs == 0 and not has_weights:
        told = "the weights are random, and nothing is trained: give --weights or --pretrained"
        print_remarks(Console(stderr=True, highlight=False), [told])  # with --quiet too
    if settings.amp and hwbmpq.training.find_device(settings.device).type == "cpu":
        remarks.append("mixed float precision is usually slower on CPUs")
    print_remarks(console, remarks)
    if args.recipe is not None:
        print_wrapped(console, _compared_with_paper(args.recipe, settings))


def _augmentation(settings: "RunSettings", data: "ImageData") -> str:
    if data.samples == "images":
        return f"augmentation: {settings.augment or data.augment}; --augment changes that"
    return "augmentation: none, since the samples are not images"


def _compared_with_paper(recipe: str, settings: "RunSettings") -> str:
    """What the paper reports, or why this run cannot be compared with it."""
    whole = hwbmpq.training.resolve_settings({}, recipe=recipe).model_dump()
    other = [
        field
        for field, value in settings.model_dump().items()
        if field not in _ANYWHERE and value != whole[field]
    ]
    reported = f"recipe {recipe}; the paper's {hwbmpq.training.get_paper_recipe(recipe).reported}"
    return reported if not other else f"{reported}, not comparable: other {', '.join(other)}"


@contextmanager
def _hooks(args: argparse.Namespace, folder: "RunDirectory", console: Console) -> Iterator[list[Any]]:
    """What follows the training."""
    with ExitStack() as stack:
        hooks: list[Any] = [stack.enter_context(TrainingProgress(console, verbose=args.verbose))]
        if args.tensorboard and hwbmpq.distributed.rank() == 0:
            hooks.append(stack.enter_context(hwbmpq.training.TensorBoardHook(folder.path)))
        yield hooks


@contextmanager
def _graceful_stop(console: Console) -> Iterator[list[Any]]:
    """While a trainer is in the list, Ctrl-C asks it to stop after the present step; a second one stops at once."""
    trainers: list[Any] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: object) -> None:
        restore()
        if not trainers:
            raise KeyboardInterrupt
        console.print("stopping after this step (once more to stop at once)")
        trainers[-1].ask_to_stop()

    if not hwbmpq.distributed.is_distributed():
        # Ranks cannot agree on a step to stop at without waiting at each.
        for number in before:
            signal.signal(number, stop)
    try:
        yield trainers
    finally:
        restore()


def _baseline(args: argparse.Namespace, trained: _Trained, path: Path, console: Console) -> "_Trained | None":
    """The widest single width within the budget, trained the same way beside the run."""
    best = None if trained.result.plan is None else trained.result.plan.best_uniform
    if best is None:
        print_remarks(console, ["no single width fits the budget: there is no baseline to train"])
        return None
    update: dict[str, Any] = {"method": "hpq", "bits": (best.weight_bits,), "baseline": False}
    update |= dict.fromkeys(("max_drop", "min_accuracy", "minimise"))
    if trained.settings.activation_bits == "apart":  # the single width is a pair
        pair = hwbmpq.Precision.parse(best.label)
        update |= {"activation_bits": pair.activation_bits, "activation_widths": None}
    uniform = trained.settings.model_copy(update=update)
    console.print(f"baseline: {best.label} for all layers")
    beside = hwbmpq.training.RunDirectory(hwbmpq.training.RunDirectory(path).subfolder("baseline"))
    try:
        return _train(args, uniform, beside, console, is_baseline=True)
    except RunStoppedError as error:
        raise RunStoppedError(
            f"baseline: {error}", hint=f"hwbmpq compress --resume {quote(str(path))} --baseline"
        ) from error


def _show(args: argparse.Namespace, trained: _Trained, baseline: _Trained | None, path: Path) -> None:
    result, settings = trained.result, trained.settings
    if args.json:
        content = {"run": str(path), **hwbmpq.pipeline.summary(result, settings)}
        if baseline is not None:
            content["baseline"] = hwbmpq.pipeline.summary(baseline.result, baseline.settings)
        print_json(content)
        return
    output = OutputConsole()
    if args.quiet:
        print_remarks(output, result.remarks)
        output.print("\n".join([*accuracy_lines(result, settings), f"run: {escape(str(path))}"]))
    else:
        print_run(output, result, settings, path, title=trained.title, all_rows=args.all)
    if baseline is not None:
        output.print(baseline_line(result, baseline.result))
