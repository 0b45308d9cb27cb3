"""Runs: the network and the images of one that starts, and the state of one that has ended."""

import argparse
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.options.names import add_data_options
from hwbmpq.cli.options.parser import add_output_options
from hwbmpq.cli.progress import progress
from hwbmpq.errors import ModelLoadError

if TYPE_CHECKING:
    from hwbmpq.data import ImageData, OpenData
    from hwbmpq.models import LoadedModel
    from hwbmpq.training import RunDirectory, RunSettings


def add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the folder that hwbmpq compress wrote")
    add_data_options(parser, "other images (their test part); default: the run's", root="as in the run")
    parser.add_argument("--test-images", type=int, metavar="N", help="a random N of the images")
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
    remarks: tuple[str, ...]


def open_run(args: argparse.Namespace) -> OpenedRun:
    """The run that the options name, with its network restored from the checkpoint."""
    folder = hwbmpq.training.RunDirectory(args.folder).open()
    asked = {name: getattr(args, name, None) for name in ("data", "data_root", "test_images", "device")}
    settings = folder.load_settings().model_copy(
        # The checkpoint has the weights: what the run began with is not looked for again.
        update={"weights": None, "pretrained": False, **{n: v for n, v in asked.items() if v is not None}}
    )
    state, problem = folder.load_checkpoint(best=args.best)
    model, data = build(settings, download=args.download)
    network = hwbmpq.pipeline.restore(model.network, data, settings, state)
    epoch = int(state.get("progress", state)["epoch"])  # best.pt has it at its top
    remarks = list(data.remarks)
    if problem:
        remarks.append(f"{problem}: the state before is used")
    if epoch < settings.epochs and not args.best:
        remarks.append(f"the run is not finished: this is epoch {epoch} of {settings.epochs}")
    return OpenedRun(
        folder=folder, settings=settings, network=network, data=data, epoch=epoch, remarks=tuple(remarks)
    )


def build(settings: "RunSettings", *, download: bool = False) -> "tuple[LoadedModel, ImageData]":
    """The network with as many outputs as the data has classes, and the images in its size."""
    # Zoos and factories print; stdout is for the result.
    with redirect_stdout(sys.stderr):
        opened = hwbmpq.data.open_data(settings.data, root=settings.data_root, download=download)
        model = load_network(settings, opened)
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


def load_network(settings: "RunSettings", data: "OpenData") -> "LoadedModel":
    """The network of a run that starts, made for its data unless the settings say otherwise."""
    is_file = settings.model.startswith("file:")
    size = None if settings.input is None else hwbmpq.models.parse_input_size(settings.input)
    if size is None and not is_file:
        size = data.default_input_size
    classes = settings.num_classes or data.classes
    if not is_file:
        return _load(settings, size, classes)
    try:  # a factory may or may not take a class count
        return _load(settings, size or data.default_input_size, classes)
    except ModelLoadError as error:
        if "num_classes" not in str(error) and "--num-classes" not in error.hint:
            raise
    return _load(settings, size, None)


def _load(settings: "RunSettings", size: tuple[int, ...] | None, num_classes: int | None) -> "LoadedModel":
    return hwbmpq.models.load_model(
        settings.model,
        num_classes=num_classes,
        input_size=size,
        pretrained=settings.pretrained,
        weights=settings.weights,
        seed=settings.seed,
    )
