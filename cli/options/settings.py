"""Flags that are settings of a run: type, choices, default and help are those of ``RunSettings``."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import hwbmpq
from hwbmpq.cli.options.common import RegistryNames, activation_bits, parse_bits, several, share
from hwbmpq.cli.options.parser import Within
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.normalisation import given_normalisation
from hwbmpq.registry import DATA_SOURCES, TASKS
from hwbmpq.training import trust

if TYPE_CHECKING:
    from hwbmpq.training import RunDirectory, RunSettings

_GROUPS = {
    "accuracy": "max_drop min_accuracy minimise",
    "method": "method objective sensitivity quantizer",
    "data": "data data_root normalise mean std layout task train_images validation test_images augment "
    "workers",
    "calibration": "calibrate calibration_images",
    "schedule": "epochs warmup_epochs interval_epochs decide_after max_steps start settle inertia",
    "distillation": "distill distill_loss teacher temperature",
}
"""The settings that ``compress`` lists together; what stands in no group is about optimization."""
_VALUES = {
    "model": "SPEC",
    "input": "CxHxW",
    "weights": "FILE",
    "teacher": "MODEL[=FILE]",
    "data_root": "DIR",
    "normalise": "none|imagenet|data|MEAN/STD",
    "mean": "0.5,0.4,0.4",
    "std": "0.2,0.2,0.2",
    "device": "auto|cpu|cuda|mps",
    "validation": "SHARE|COUNT",
    "max_drop": "1%",
    "min_accuracy": "91%",
    "minimise": "COST",
    "decide_after": "20,40,100",
    "lr_decay_at": "0.4,0.7",
    int: "N",
    float: "X",
}
"""What help shows for a value, by setting or type."""
_LONG_CHOICES = 40
"""Characters from which names stand in the help text: usage cannot wrap them."""
_MAY_CHANGE = {"baseline", "device", "data_root", "checkpoint_minutes", "workers"}
"""Settings that a resumed run may get anew: they change nothing in the result."""
_FOLLOW_EPOCHS = ("warmup_epochs", "interval_epochs", "decide_after")
_FOLLOW_DATA = ("input", "num_classes", "normalise", "layout", "validation")
_NORMALISATION = ("normalise", "mean", "std")


def add_settings(group: argparse._ActionsContainer, names: str, **options: Any) -> None:
    """A flag for each setting; ``options`` are argparse's, and stand above what the setting says."""
    fields = hwbmpq.training.RunSettings.model_fields
    for name in names.split():
        info = fields[name]
        default = None if info.is_required() else info.default
        shown = ", ".join(map(str, default)) if isinstance(default, tuple) else default
        shown = {True: "yes", False: "no"}[shown] if isinstance(shown, bool) else shown
        said = _argument(name, info.annotation)
        text, notes = setting_text(name), []
        if isinstance(said.get("choices"), RegistryNames) or said.get("metavar") == "NAME":
            notes.append("one of %(choices)s")
        if default is not None and default not in ((), {}) and "by default" not in text:
            notes.append(f"default: {shown}")
        text += f" ({'; '.join(notes)})" if notes else ""
        arguments = {"default": default, "help": text, **said, **options}
        group.add_argument(f"--{name.replace('_', '-')}", **arguments)


def setting_text(name: str) -> str:
    """What a setting means, as argparse's help."""
    own = hwbmpq.training.RunSettings.model_fields[name].description
    text = own or hwbmpq.search.AllocationConfig.model_fields[name].description or ""
    text = " ".join(text.replace("``", "").replace("%", "%%").split()).removesuffix(".")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _argument(name: str, annotation: Any) -> dict[str, Any]:
    """How argparse reads a setting's value."""
    registries = {**hwbmpq.training.settings.CHOSEN_BY_NAME, "data": DATA_SOURCES}
    if name in registries:
        names = RegistryNames(registries[name], ("auto",) if name == "solver" else ())
        return {"type": names, "choices": names, "metavar": "SPEC" if name == "data" else "NAME"}
    if name == "task":
        tasks = RegistryNames(TASKS, ("file",))
        return {"type": tasks, "choices": tasks, "metavar": "NAME"}
    if name in ("max_drop", "min_accuracy"):
        return {"type": share, "metavar": _VALUES[name]}
    if name in ("bits", "activation_widths"):
        return {"type": parse_bits, "metavar": "2,4,8"}
    if name == "pin":
        return {"action": _Pins, "nargs": "+", "metavar": "PATTERN=WIDTH", "default": None}
    if name == "keep_float":
        return {"action": "extend", "nargs": "+", "metavar": "PATTERN", "default": None}
    if name == "activation_bits":
        words = ("auto", "same", "widest", "apart", "float")
        return {"type": activation_bits(*words), "metavar": f"{'|'.join(words)}|N"}
    kinds = (annotation,) if get_origin(annotation) in (Literal, tuple) else get_args(annotation)
    kind = next((kind for kind in kinds if kind is not NoneType), annotation)
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is Literal:
        choices = tuple(str(choice) for choice in get_args(kind))
        return {"choices": choices, **({"metavar": "NAME"} if len(",".join(choices)) > _LONG_CHOICES else {})}
    if get_origin(kind) is tuple:
        kind = several(get_args(kind)[0], _VALUES[name])
    return {"type": _within(name, kind), "metavar": _VALUES.get(name, _VALUES.get(kind))}


def _within(name: str, kind: Any) -> Any:
    """The type of a number with the bounds of its setting."""
    if kind not in (int, float):
        return kind
    info = hwbmpq.training.RunSettings.model_fields[name]
    bounds = {
        word: getattr(mark, bound)
        for mark in info.metadata
        for word, bound in (("at_least", "ge"), ("above", "gt"), ("at_most", "le"), ("below", "lt"))
        if hasattr(mark, bound)
    }
    usual = info.default if isinstance(info.default, (int, float)) else None
    return Within(kind=kind, usual=usual, **bounds)


class _Pins(argparse.Action):
    """``'head.*=8' stem=W4A8`` as a dict; may be repeated."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        pins = dict(getattr(namespace, self.dest) or {})
        for text in values:
            pattern, _, width = (part.strip() for part in text.rpartition("="))
            if not pattern or not width:
                raise argparse.ArgumentError(
                    self, f"{text!r}: write PATTERN=WIDTH, such as 'head.*=8' or stem=W4A8"
                )
            if pins.get(pattern, width) != width:
                raise argparse.ArgumentError(
                    self, f"{text!r}: {pattern} is pinned to {pins[pattern]} already"
                )
            pins[pattern] = width
        setattr(namespace, self.dest, pins)


def add_model_options(parser: argparse.ArgumentParser, *, required: bool = True, **options: Any) -> None:
    """``--model`` and its companions, for every command that takes a network."""
    group = parser.add_argument_group("network")
    add_settings(group, "model", required=required, **options)
    add_settings(group, "input num_classes", **options)
    add_settings(group.add_mutually_exclusive_group(), "pretrained weights", **options)
    add_settings(group, "tie", **options)


def add_data_options(group: argparse._ActionsContainer, **options: Any) -> None:
    """``--data``, where to look for it and how to take it; ``options`` are those of ``--data``."""
    add_settings(group, "data", **options)
    is_of_run = "default" in options  # of a run that exists, whose own data are the default
    add_settings(
        group,
        "data_root",
        **({"help": "where data sets are (default: where the run's are)"} if is_of_run else {}),
    )
    add_settings(group, "normalise mean std layout", default=None)
    group.add_argument("--download", action="store_true", help="fetch the data set if it is not there")


def add_allocation_options(parser: argparse.ArgumentParser, **options: Any) -> None:
    """The widths to choose among, and who chooses."""
    add_settings(
        parser.add_argument_group("widths"),
        "bits activation_bits activation_widths ends per_channel pin keep_float solver",
        **options,
    )


def add_budget_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--budget",
        nargs="+",
        action="extend",
        default=[],
        metavar="COST=AMOUNT",
        help="an upper bound on a cost, such as memory=350KiB, memory=12x (a twelfth of float), memory=4b/weight (bits "
        "per weight on average), latency=8ms, energy=40uJ or bops=30%%; several hold together (default: the profile's "
        "own)",
    )


def add_trust_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the Python files that the run's settings name (file:PATH.py:NAME), and ONNX files with loops, whoever "
        "wrote them",
    )


def given_on_command_line(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that have been typed."""
    names = hwbmpq.training.RunSettings.model_fields
    given = {name: value for name, value in vars(args).items() if name in names and value is not None}
    if given.keys() & set(_NORMALISATION):
        given["normalise"] = given_normalisation(*(given.pop(name, None) for name in _NORMALISATION))
    return given


def check_budgets(budgets: Mapping[str, str | float]) -> None:
    """Raise for a budget that cannot be read, before anything slow."""
    for name, text in budgets.items():
        try:
            hwbmpq.costs.parse_budget(name, text)
        except UnknownNameError as error:
            if error.hint.partition("=")[0] in error.close:
                error.hint = f"--budget {error.hint}"
            raise


def read_budgets(texts: Sequence[str]) -> dict[str, str]:
    """``["memory=350KiB", "latency=8ms"]`` by cost."""
    budgets: dict[str, str] = {}
    for text in texts:
        name, equals, amount = (part.strip() for part in text.partition("="))
        if not equals or not name or not amount:
            raise HwbmpqError(
                f"budget {text!r}: write COST=AMOUNT",
                hint="for example --budget memory=350KiB, memory=12x, memory=4b/weight, latency=8ms, energy=40uJ, bops=30%",
            )
        if name in budgets:
            raise HwbmpqError(f"two budgets on {name}: {budgets[name]} and {amount}")
        budgets[name] = amount
    return budgets


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Every setting as a flag. One that is not given is None, so that the config file and the recipe can speak."""
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help="a run of the BMPQ paper's tables: network, data, method, budget, schedule; other flags win (names: below)",
    )
    add_model_options(parser, required=False, default=None)
    device = parser.add_argument_group("device")
    add_settings(device, "target")
    add_budget_option(device)
    add_allocation_options(parser, default=None)
    taken = {action.dest for action in parser._actions} | {"budgets", "memory_as_in"}
    grouped = {name for names in _GROUPS.values() for name in names.split()}
    others = (name for name in hwbmpq.training.RunSettings.model_fields if name not in taken | grouped)
    for title, names in {**_GROUPS, "optimization": " ".join(others)}.items():
        group = parser.add_argument_group(title)
        add_settings(group, names, default=None)
        if title == "data":
            group.add_argument(
                "--download", action="store_true", help="fetch the data set if it is not there"
            )


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as flags."""
    given = given_on_command_line(args)
    if args.budget:
        given["budgets"] = read_budgets(args.budget)
    return given


def settings_from(args: argparse.Namespace) -> "RunSettings":
    """Flags over the ``--config`` file over the recipe."""
    training = hwbmpq.training
    found = {} if args.recipe is None else dict(training.get_paper_recipe(args.recipe).settings)
    found |= {} if args.config is None else training.read_settings(Path(args.config))
    given = given_settings(args)
    if found.get("epochs") == 0 and given.get("epochs"):
        found = training.settings_to_train(found)
    stale: tuple[str, ...] = ()
    if given.keys() & {"epochs", "data", "decide_after", "max_steps"}:
        stale += _FOLLOW_EPOCHS  # the file's warm-up belongs to other epochs
    named = {name for name in ("model", "data") if name in given}
    if any(not trust.is_same_code(given[name], found.get(name)) for name in named):
        stale += _FOLLOW_DATA
    if "normalise" in given:
        stale += _NORMALISATION
    found = {name: value for name, value in found.items() if name not in stale} | given
    for name in ("model", "target"):
        if found.get(name) is None:
            raise HwbmpqError(
                f"--{name} is missing",
                hint="for example: hwbmpq compress --model timm:resnet18 --target jetson_nano.yaml",
            )
    settings = training.resolve_settings(_with_absolute_paths(found), recipe=args.recipe)
    if args.config is not None and not args.trust:
        others = {name: value for name, value in settings.model_dump().items() if name not in given}
        trust.check_trust(others, Path(args.config))
    return settings


def _with_absolute_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Files by their full paths, so that the run can be resumed from another folder."""
    found = dict(settings)
    for name in ("weights", "data_root"):
        if found.get(name):
            found[name] = str(Path(found[name]).expanduser().absolute())
    paths = {"data": ("npz", "folder", "file"), "model": ("file",), "task": ("file",)}
    for name, kinds in paths.items():
        kind, _, path = str(found.get(name, "")).partition(":")
        if kind in kinds:
            found[name] = f"{kind}:{Path(path).expanduser().absolute()}"
    spec, equals, path = str(found.get("teacher") or "").partition("=")
    if equals:
        found["teacher"] = f"{spec}={Path(path).expanduser().absolute()}"
    target = Path(str(found["target"])).expanduser()
    if target.is_file():
        found["target"] = str(target.absolute())
    return found


def resumed_settings(args: argparse.Namespace, run: "RunDirectory") -> "RunSettings":
    """The settings of a run that continues: its own, but for where it runs."""
    training = hwbmpq.training
    given, own = given_settings(args), training.read_settings(run.path / hwbmpq.report.run_files.CONFIG)
    others = [name for name in ("config", "recipe") if getattr(args, name) is not None]
    kept = {name for name in given if trust.is_same_code(given[name], own.get(name))}
    fixed = sorted(set(given) - _MAY_CHANGE - kept) + others
    if fixed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in fixed)
        raise HwbmpqError(
            f"a resumed run keeps its settings: leave out {flags}",
            hint="to change them, start a new run; the old one's config.yaml can be given as --config",
        )
    return run.load_settings(trust=args.trust, given=given)
