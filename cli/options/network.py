"""The network that options or settings name: described, built for the images of a run, or restored from a run."""

import argparse
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.options.common import add_output_options
from hwbmpq.cli.options.settings import (
    add_data_options,
    add_settings,
    add_trust_option,
    given_on_command_line,
)
from hwbmpq.cli.progress import progress, status
from hwbmpq.errors import ModelLoadError, TraceError
from hwbmpq.normalisation import NORMALISATIONS, Normalisation

if TYPE_CHECKING:
    from hwbmpq.data import ImageData, OpenData
    from hwbmpq.graph import LayerGraph
    from hwbmpq.models import LoadedModel
    from hwbmpq.tasks import Task
    from hwbmpq.training import RunDirectory, RunSettings


def describe_model(
    args: argparse.Namespace, *, needs_values: bool = False, data: "OpenData | None" = None
) -> "tuple[LoadedModel, LayerGraph]":
    """The network that the options name, and its graph; of the size of ``data`` if that cannot be resized.

    A zoo's network is built on the meta device, without memory for its weights, if nothing needs them.
    """
    needs_values = needs_values or args.pretrained or args.weights or args.model.startswith("file:")
    sizes = {} if data is None or data.are_images else _sizes(args.model, data)
    # Zoos and factories print; stdout is for the result.
    with status(f"reading {args.model}"), redirect_stdout(sys.stderr):
        for device in ("cpu",) if needs_values else ("meta", "cpu"):
            try:
                model = load_model(args, num_classes=args.num_classes, device=device, **sizes)
                example = model.example_input()
                if data is not None:
                    example = example.to(data.input_dtype(given_on_command_line(args).get("normalise")))
                graph = hwbmpq.describe(model.network, example, tie=args.tie)
                return model, graph.with_scales(per_channel=bool(getattr(args, "per_channel", False)))
            except (ModelLoadError, TraceError):
                if device == "cpu":
                    raise  # else: the network looks at values while it is built or runs
    raise AssertionError("the last device raises or returns")


def load_model(
    source: "argparse.Namespace | RunSettings",
    *,
    input_size: tuple[int, ...] | None = None,
    num_classes: int | None = None,
    **options: Any,
) -> "LoadedModel":
    """The network of options or settings; their input size stands above ``input_size``.

    ``options`` are those of ``hwbmpq.models.load_model``.
    """
    size = input_size if source.input is None else hwbmpq.models.parse_input_size(source.input)
    return hwbmpq.models.load_model(
        source.model,
        num_classes=num_classes,
        input_size=size,
        pretrained=source.pretrained,
        weights=source.weights,
        **{"seed": 0, **options},
    )


def _sizes(model: str, data: "OpenData") -> "dict[str, Any]":
    """The input size that the data asks for, as options of ``load_model``.

    One's own network may say its size itself, which stands above that.
    """
    if not model.startswith("file:"):
        return {"input_size": data.default_input_size}
    return {"default_input_size": data.default_input_size or data.common_size}


def load_network(
    settings: "RunSettings", data: "OpenData", *, most_bytes: int | None = None
) -> "LoadedModel":
    """The network of a run, made for its data unless the settings say otherwise."""
    is_own, sizes = settings.model.startswith("file:"), _sizes(settings.model, data)
    try:
        classes = settings.num_classes or data.classes
        model = load_model(
            settings, num_classes=classes or None, seed=settings.seed, most_bytes=most_bytes, **sizes
        )
    except ModelLoadError as error:
        # A factory may or may not take a class count.
        if not is_own or ("num_classes" not in str(error) and "--num-classes" not in error.hint):
            raise
        model = load_model(settings, seed=settings.seed, **sizes)
    data.input_size_for(model.input_size)
    return model


def build(
    settings: "RunSettings",
    *,
    download: bool = False,
    is_from_0_1_0: bool = False,
    state: Mapping[str, Any] | None = None,
    origin: str = "as given",
) -> "tuple[LoadedModel, ImageData]":
    """The network with as many outputs as the data has classes, and the samples as it takes them.

    With the ``state`` of a checkpoint, a network that is larger than the checkpoint's weights is not built. ``origin``
    says whose normalisation the settings have.
    """
    most_bytes = None if state is None else hwbmpq.training.bytes_to_build(state)
    # Zoos and factories print; stdout is for the result.
    with redirect_stdout(sys.stderr):
        opened = hwbmpq.data.open_data(
            settings.data,
            root=settings.data_root,
            download=download,
            classes=settings.num_classes if settings.data.startswith("file:") else None,
            layout=settings.layout,
            has_classes=hwbmpq.tasks.get_task(settings.task).has_classes,
            floats_are_pixels=is_from_0_1_0,
        )
        model = load_network(settings, opened, most_bytes=most_bytes)
    with progress(f"reading {settings.data}") as advance:
        data = opened.sized(
            model.input_size,
            normalise=_normalisation(settings, origin) or own_normalisation(settings, model),
            train_limit=settings.train_images,
            test_limit=settings.test_images,
            seed=settings.seed,
            batch_size=settings.batch_size,
            workers=settings.workers,
            on_image=advance,
        )
    return model, data


def _normalisation(settings: "RunSettings", origin: str) -> str | Normalisation | None:
    if settings.normalise is None or settings.normalise in NORMALISATIONS:
        return settings.normalise
    return replace(Normalisation.parse(settings.normalise), origin=origin)


def own_normalisation(
    settings: "RunSettings | argparse.Namespace", model: "LoadedModel"
) -> Normalisation | None:
    """What pretrained weights were trained with, where timm says so."""
    known: Any = getattr(model.network, "pretrained_cfg", None) or {}
    if not settings.pretrained or not known.get("mean") or not known.get("std"):
        return None
    return Normalisation(
        mean=tuple(known["mean"]), std=tuple(known["std"]), origin="of the pretrained weights"
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the folder that hwbmpq compress wrote")
    text = "other images (their test part; default: the run's); one of %(choices)s"
    add_data_options(parser, default=None, help=text)
    add_settings(parser, "test_images")
    text = "the run's network, where its code is another file now, or to run that code without --trust"
    add_settings(parser, "model", default=None, help=text)
    text = "the run's task, where its code is another file now, or to run that code without --trust"
    add_settings(parser, "task", default=None, help=text)
    add_trust_option(parser)
    parser.add_argument("--best", action="store_true", help="the best epoch's network instead of the last's")
    add_output_options(parser)


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A run's network at its widths, with the images to try it on."""

    folder: "RunDirectory"
    settings: "RunSettings"
    network: Any
    """A torch module."""
    data: "ImageData"
    epoch: int
    task: "Task"
    remarks: tuple[str, ...]
    is_from_0_1_0: bool


def open_run(args: argparse.Namespace) -> OpenedRun:
    """The run that the options name, with its network restored from the checkpoint."""
    folder = hwbmpq.training.RunDirectory(args.folder).open()
    # The checkpoint has the weights: what the run began with is not looked for again.
    given = {"weights": None, "pretrained": False, **given_on_command_line(args)}
    if args.data is not None:
        given.setdefault("layout", "auto")  # the run's is that of its own data
    settings = folder.load_settings(trust=args.trust, given=given)
    is_old = folder.load_settings(trust=True).normalise is None
    state, problem = folder.load_checkpoint(best=args.best)
    hwbmpq.training.check_state(state)
    origin = "as given" if "normalise" in given else "as in the run"
    model, data = build(settings, download=args.download, is_from_0_1_0=is_old, state=state, origin=origin)
    network = hwbmpq.pipeline.restore(model.network, data, settings, state)
    epoch = int(state.get("progress", state)["epoch"])  # best.pt has it at its top
    remarks = list(data.remarks)
    if problem:
        remarks.append(f"{problem}: the state before is used")
    if epoch < settings.epochs and not args.best:
        remarks.append(f"the run is not finished: this is epoch {epoch} of {settings.epochs}")
    return OpenedRun(
        folder=folder,
        settings=settings,
        network=network,
        data=data,
        epoch=epoch,
        task=hwbmpq.tasks.get_task(settings.task),
        remarks=tuple(remarks),
        is_from_0_1_0=is_old,
    )
