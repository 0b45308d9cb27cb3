"""The network that options or settings name: described, built for the images of a run, or restored from a run."""

import argparse
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
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

if TYPE_CHECKING:
    from hwbmpq.data import ImageData, OpenData
    from hwbmpq.graph import LayerGraph
    from hwbmpq.models import LoadedModel
    from hwbmpq.tasks import Task
    from hwbmpq.training import RunDirectory, RunSettings


def describe_model(
    args: argparse.Namespace, *, needs_values: bool = False
) -> "tuple[LoadedModel, LayerGraph]":
    """The network that the options name, and its graph.

    A zoo's network is built on the meta device, without memory for its weights, if nothing needs them.
    """
    needs_values = needs_values or args.pretrained or args.weights or args.model.startswith("file:")
    # Zoos and factories print; stdout is for the result.
    with status(f"reading {args.model}"), redirect_stdout(sys.stderr):
        for device in ("cpu",) if needs_values else ("meta", "cpu"):
            try:
                model = load_model(args, num_classes=args.num_classes, device=device)
                return model, hwbmpq.describe(model.network, model.example_input(), tie=args.tie)
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
    """The network of options or settings; their input size stands above ``input_size``."""
    size = input_size if source.input is None else hwbmpq.models.parse_input_size(source.input)
    return hwbmpq.models.load_model(
        source.model,
        num_classes=num_classes,
        input_size=size,
        pretrained=source.pretrained,
        weights=source.weights,
        **{"seed": 0, **options},
    )


def load_network(
    settings: "RunSettings", data: "OpenData", *, most_bytes: int | None = None
) -> "LoadedModel":
    """The network of a run, made for its data unless the settings say otherwise."""
    classes, size = settings.num_classes or data.classes, data.default_input_size
    try:
        return load_model(
            settings, input_size=size, num_classes=classes, seed=settings.seed, most_bytes=most_bytes
        )
    except ModelLoadError as error:
        # A factory may or may not take a class count.
        if not settings.model.startswith("file:") or (
            "num_classes" not in str(error) and "--num-classes" not in error.hint
        ):
            raise
    return load_model(settings, seed=settings.seed)


def build(
    settings: "RunSettings", *, download: bool = False, state: Mapping[str, Any] | None = None
) -> "tuple[LoadedModel, ImageData]":
    """The network with as many outputs as the data has classes, and the images in its size.

    With the ``state`` of a checkpoint, a network that is larger than the checkpoint's weights is not built.
    """
    most_bytes = None if state is None else hwbmpq.training.bytes_to_build(state)
    # Zoos and factories print; stdout is for the result.
    with redirect_stdout(sys.stderr):
        opened = hwbmpq.data.open_data(settings.data, root=settings.data_root, download=download)
        model = load_network(settings, opened, most_bytes=most_bytes)
    with progress(f"reading {settings.data}") as advance:
        data = opened.sized(
            model.input_size,
            train_limit=settings.train_images,
            test_limit=settings.test_images,
            seed=settings.seed,
            workers=settings.workers,
            on_image=advance,
        )
    return model, data


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the folder that hwbmpq compress wrote")
    text = "other images (their test part; default: the run's); one of %(choices)s"
    add_data_options(parser, default=None, help=text)
    add_settings(parser, "test_images")
    text = "the run's network, where its code is another file now, or to run that code without --trust"
    add_settings(parser, "model", default=None, help=text)
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


def open_run(args: argparse.Namespace) -> OpenedRun:
    """The run that the options name, with its network restored from the checkpoint."""
    folder = hwbmpq.training.RunDirectory(args.folder).open()
    # The checkpoint has the weights: what the run began with is not looked for again.
    given = {"weights": None, "pretrained": False, **given_on_command_line(args)}
    settings = folder.load_settings(trust=args.trust, given=given)
    state, problem = folder.load_checkpoint(best=args.best)
    hwbmpq.training.check_state(state)
    model, data = build(settings, download=args.download, state=state)
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
    )
