"""Everything that a run is made of: given by flags or a file, completed by the data set's recipe."""

import math
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware import ProfileError, yaml_reader
from hwbmpq.io import read_regular
from hwbmpq.normalisation import given_normalisation
from hwbmpq.registry import DATA_SOURCES, METHODS, OBJECTIVES, QUANTIZERS, SENSITIVITIES, SOLVERS, TASKS
from hwbmpq.search.config import AllocationConfig, setting_problems
from hwbmpq.training.recipes import get_paper_recipe, recipe_for
from hwbmpq.units import parse_share, shown

_MOST = 2**31
"""Above any count of images, epochs or classes; what a file asks for may be memory."""
_LARGEST = 2**63
_LARGEST_INPUT = 2**24
WRITTEN_BY = "# written by: hwbmpq"
"""How the settings of a run begin; those that people write do not."""
CHOSEN_BY_NAME = {
    "method": METHODS,
    "objective": OBJECTIVES,
    "solver": SOLVERS,
    "sensitivity": SENSITIVITIES,
    "quantizer": QUANTIZERS,
}

_WITHOUT_BUDGET = ("fp32", "hpq", "ad")
"""Methods that choose widths whatever they cost."""


class RunSettings(AllocationConfig):
    """All that is needed to repeat a run."""

    # network
    model: str
    """timm:NAME, torchvision:NAME, hwbmpq:NAME (resnet8, resnet20, resnet56, each also as NAME_b with 1x1 shortcuts;
    resnet18, vgg16), file:PATH.py:FACTORY (your code: a function that returns a torch.nn.Module) or file:PATH.pt2
    (saved by torch.export)."""
    input: str | None = None
    """Input size without the batch; by default the network's own."""
    num_classes: int | None = Field(default=None, ge=1)
    """Classes; by default the network's own."""
    pretrained: bool = False
    """Fetch timm's or torchvision's weights."""
    weights: str | None = None
    """Local weights: safetensors, or a torch checkpoint of tensors (read without unpickling code)."""
    # device
    target: str
    bits: tuple[int, ...] | None = None
    # method
    sensitivity: str = "enbg"
    """What a run without training allocates by; a run that trains learns enbg."""
    # data
    data: str = "digits"
    """Labelled samples: a data set, folder:PATH (train/ and val/ or test/ with a folder of images or .npy files per
    class), npz:PATH (x_train, y_train, x_test, y_test), file:PATH.py:FUNCTION (your code: returns DataLoaders or
    Datasets), or the embedded digits."""
    data_root: str | None = None
    """Where data sets are; by default data."""
    normalise: str | None = None
    """What inputs are normalised with: none (pixels from 0 to 1, arrays as they are), imagenet, data (their own mean and
    deviation) or MEAN/STD; by default imagenet for images in colour, data for other images, none for arrays, and for
    pretrained weights what they were trained with."""
    mean: tuple[float, ...] | None = None
    """Subtracted from inputs, with --std: one value, or one for each channel."""
    std: tuple[float, ...] | None = None
    """Inputs are divided by it, with --mean."""
    layout: Literal["auto", "channels-first", "channels-last"] = "auto"
    """Where arrays in files have their channels; by default what their shape and the network's say."""
    train_images: int | None = Field(default=None, ge=1)
    """Train on a random N of the images."""
    test_images: int | None = Field(default=None, ge=1)
    """Evaluate on a random N of the images."""
    validation: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Training images that are held out to compare epochs on: a share below 1, or a number; 0: none, test images decide
    (by default a tenth, up to 5,000; none for the paper's recipes)."""
    task: str = "classification"
    """What to train for: a loss and a metric by name, or file:PATH.py:NAME, a hwbmpq.tasks.Task of your own."""
    calibrate: Literal["fast", "best"] = "fast"
    """How well to calibrate before training, or instead of it. fast: place clipping points, round weights with
    compensation; best: then weights, steps and clipping points learn to repeat the float network's answers, without
    labels, which takes minutes."""
    calibration_images: int = Field(default=512, ge=1)
    """Training images to calibrate with; by default 512, with --calibrate best 4,096."""
    augment: Literal["none", "crop", "flip-crop", "random-resized-crop", "rand-augment"] | None = None
    """The last two are for photographs; by default what suits the data."""
    workers: int | None = Field(default=None, ge=0, le=256)
    """Processes that read images; by default up to four for files, none for images in memory."""
    # schedule
    epochs: int = Field(ge=0, le=1_000_000)
    """Epochs in all, 0 for no training, only calibration; by default 200 for CIFAR, 100 for Tiny-ImageNet, 20 for
    digits, 30 elsewhere."""
    warmup_epochs: int | None = Field(default=None, ge=1)
    interval_epochs: int | None = Field(default=None, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    """Try a run out: the whole schedule, decisions included, in at most N steps (fewer and shorter epochs)."""
    # optimization
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """The optimizer."""
    lr: float = Field(gt=0, allow_inf_nan=False)
    """Learning rate; by default what suits the data (0.1 for CIFAR)."""
    lr_schedule: Literal["step", "cosine", "onecycle", "constant"] = "cosine"
    """How the learning rate falls; by default step for CIFAR and Tiny-ImageNet, else cosine."""
    lr_decay_at: tuple[float, ...] = (0.4, 0.7)
    """Where step decays the learning rate, as shares of the run."""
    lr_decay: float = Field(default=0.1, gt=0, le=1)
    """What step multiplies the learning rate by."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD."""
    nesterov: bool = False
    """Nesterov momentum."""
    weight_decay: float = Field(default=5e-4, ge=0)
    """Weight decay of the weights."""
    alpha_weight_decay: float = Field(default=5e-4, ge=0)
    """Weight decay of the clipping points."""
    batch_size: int = Field(default=128, ge=1)
    """Images in a batch, all ranks together; by default what suits the data."""
    accumulate: int = Field(default=1, ge=1)
    """Batches per optimizer step."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Clip gradients at this norm; by default never."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Label smoothing of the loss."""
    norms: Literal["train", "frozen"] = "train"
    """Batch norms. train: normalise by each batch and learn statistics; frozen: keep the statistics of the given weights
    (by default with --weights)."""
    amp: bool = False
    """Mixed float precision while training."""
    seed: int = Field(default=0, ge=0)
    """Seed for weights, data order and augmentation."""
    distill: float = Field(default=0.0, ge=0, le=1)
    """Share of the loss that is the difference from a float network's answers; by default 1 with --weights, else 0. The
    teacher is the network that the run starts from, in float, or --teacher."""
    distill_loss: Literal["mse", "kl"] = "mse"
    """What is compared with the teacher. mse: scores, before softmax; kl: probabilities, after it."""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Softens the teacher's probabilities (kl)."""
    teacher: str | None = None
    """A float network to learn from, with its weights, such as hwbmpq:resnet56=resnet56.pt; by default the network itself
    with the weights that the run starts from."""
    # comparison
    baseline: bool = False
    """Also train the widest single width that fits the budget, the same way, and compare."""
    # machine
    device: str = "auto"
    """Where to train: auto, cpu, cuda or mps."""
    checkpoint_minutes: float = Field(default=10.0, gt=0)
    """Time between checkpoints inside an epoch; there is one after each anyway."""
    # accuracy as the question
    max_drop: float | None = Field(default=None, ge=0, lt=1)
    """Find the smallest cost whose accuracy on validation images is at most this far below that of the given weights in
    float: 1% is one point (97.5% to 96.5%)."""
    min_accuracy: float | None = Field(default=None, gt=0, le=1)
    """Find the smallest cost whose accuracy on validation images is at least this, such as 91%."""
    minimise: str | None = None
    """The cost that --max-drop and --min-accuracy make small: memory, flash, latency, energy … (by default memory)."""

    @property
    def asks_for_accuracy(self) -> bool:
        """Whether a budget has to be found by accuracy first."""
        return self.max_drop is not None or self.min_accuracy is not None

    @field_validator("max_drop", "min_accuracy", mode="before")
    @classmethod
    def _in_percent(cls, given: Any) -> Any:
        return parse_share(given) if isinstance(given, str) else given

    @field_validator("*", mode="before")
    @classmethod
    def _reject_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML's ``yes`` is a number to Python, and a mistake to people."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("give a value, not yes or no")
        if isinstance(value, int) and abs(value) >= (_LARGEST if info.field_name == "seed" else _MOST):
            raise ValueError("the number is too large")
        return value

    @field_validator(*CHOSEN_BY_NAME)
    @classmethod
    def _registered(cls, name: str, info: ValidationInfo) -> str:
        """As the registry has it; its error is one of ours, and passes through pydantic as it is."""
        if (info.field_name, name) == ("solver", "auto"):
            return name
        return CHOSEN_BY_NAME[str(info.field_name)].resolve(name)

    @model_validator(mode="before")
    @classmethod
    def _one_normalisation(cls, given: Any) -> Any:
        """``mean`` and ``std`` become ``normalise``, which is what is stored."""
        if not isinstance(given, dict) or not given.keys() & {"normalise", "mean", "std"}:
            return given
        found = given_normalisation(*(given.get(name) for name in ("normalise", "mean", "std")))
        return {**given, "normalise": found, "mean": None, "std": None}

    @field_validator("data")
    @classmethod
    def _registered_source(cls, spec: str) -> str:
        kind, colon, detail = spec.partition(":")
        return f"{DATA_SOURCES.resolve(kind)}{colon}{detail}"

    @field_validator("validation")
    @classmethod
    def _share_or_count(cls, amount: float | None) -> float | None:
        if amount is not None and amount > 1 and not amount.is_integer():
            raise ValueError("give a share below 1, such as 0.1, or a whole number of images")
        return amount

    @field_validator("task")
    @classmethod
    def _registered_task(cls, spec: str) -> str:
        return spec if spec.startswith("file:") else TASKS.resolve(spec)

    @field_validator("teacher")
    @classmethod
    def _installed_teacher(cls, spec: str | None) -> str | None:
        if spec is not None and spec.partition(":")[0] not in ("timm", "torchvision", "hwbmpq"):
            raise ValueError(
                "name a network as timm:NAME, torchvision:NAME or hwbmpq:NAME; from Python any module can teach"
            )
        return spec

    @field_validator("input")
    @classmethod
    def _not_huge(cls, size: str | None) -> str | None:
        """A file of settings may ask for any memory; ``load_model`` says what is wrong with other texts."""
        sides = [int(side) for side in str(size).split("x") if side.isdecimal() and len(side) < 20]
        if math.prod(sides) > _LARGEST_INPUT:
            raise ValueError(f"more than {_LARGEST_INPUT:,} values in an input")
        return size

    @field_validator("lr_decay_at")
    @classmethod
    def _ascending_shares(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if list(shares) != sorted(shares) or not all(0 < share < 1 for share in shares):
            raise ValueError("give ascending shares of the run between 0 and 1, such as 0.4,0.7")
        return shares

    @model_validator(mode="after")
    def _consistent(self) -> "RunSettings":
        if self.method == "hpq" and (self.bits is None or len(self.bits) != 1):
            raise ValueError("the method hpq has one width for all layers: give --bits with one number")
        if self.max_steps is not None and not self.epochs:
            raise ValueError("without epochs there are no steps: leave out max_steps")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if self.teacher is not None and not self.distill:
            raise ValueError("a teacher needs --distill above 0")
        if self.calibrate == "best" and self.epochs and self.start != "calibrated":
            raise ValueError(
                "--calibrate best is for runs that start calibrated: give --weights, or --epochs 0"
            )
        if self.minimise is not None and not self.asks_for_accuracy:
            raise ValueError(
                "--minimise is for a demand on accuracy: give --max-drop 1% or --min-accuracy 91% as well"
            )
        if self.asks_for_accuracy and self.method in _WITHOUT_BUDGET:
            raise ValueError(
                f"the method {self.method} keeps no budget: --max-drop and --min-accuracy need one that does, such as bmpq"
            )
        return self


def resolve_settings(given: Mapping[str, Any], *, recipe: str | None = None) -> RunSettings:
    """Complete what was given with a recipe of the paper's tables or of the data set; what was given wins.

    ``None`` counts as not given.
    """
    said = {name: value for name, value in given.items() if value is not None}
    unknown = [name for name in said if name not in RunSettings.model_fields]
    if unknown:
        names = list(RunSettings.model_fields)
        begin_so = [name for name in names if name.startswith(unknown[0])]
        close = begin_so or get_close_matches(unknown[0][:100], names, n=1)
        raise HwbmpqError(
            f"there is no setting {shown(unknown[0])}" + (f": did you mean {close[0]}?" if close else ""),
            hint=f"settings are {', '.join(RunSettings.model_fields)}",
        )
    epochs = said.get("epochs")
    if isinstance(epochs, float) and epochs.is_integer():
        epochs = said["epochs"] = int(epochs)
    complete = partial(
        recipe_for,
        said,
        named=None if recipe is None else get_paper_recipe(recipe).settings,
    )
    completion = complete(epochs=epochs if isinstance(epochs, int) else None)  # else refused below
    most, planned = said.get("max_steps"), said.get("epochs", completion["epochs"])
    if isinstance(most, int) and isinstance(planned, int) and 0 < most < planned:
        said["epochs"] = most  # an epoch has a step at least
        completion = complete(epochs=most)
    if said.get("decide_after") is not None:
        completion = {name: value for name, value in completion.items() if name not in _PERIODIC}
    try:
        return RunSettings(**{**completion, **said})
    except ValidationError as error:
        raise HwbmpqError("\n".join(setting_problems(error))) from None


def settings_to_train(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run without training, less its defaults: a run that trains has others.

    Files of earlier versions have no validation images for such a run, which nobody asked for either.
    """
    data = found.get("data") or "digits"
    usual = resolve_settings({"model": "any", "target": "any", "data": data, "epochs": 0}).model_dump(
        mode="json"
    )
    usual |= {"validation": 0, "data": None}
    return {name: value for name, value in found.items() if name not in usual or usual[name] != value}


_PERIODIC = ("warmup_epochs", "interval_epochs")


def read_settings(path: Path) -> dict[str, Any]:
    """What a YAML file of settings says; checked by ``resolve_settings``.

    A run of 0.1.0 knew no validation images; its settings keep meaning what they meant.
    """
    try:
        content = read_regular(path, yaml_reader.MOST_BYTES)
        found: dict[str, Any] = yaml_reader.parse_document(content, str(path), "a file of settings").plain()
    except (OSError, ValueError) as error:  # ValueError: a path that cannot be
        what = getattr(error, "strerror", None) or error
        raise HwbmpqError(f"{path}: cannot be read: {what}") from error
    except ProfileError as error:
        raise HwbmpqError(str(error), hint="write lines like `epochs: 30`") from None
    before = {"validation": 0} if content.startswith(WRITTEN_BY.encode()) else {}
    is_first = content.startswith(f"{WRITTEN_BY} 0.1.0,".encode())
    return {**before, **(_AS_IN_0_1_0 if is_first else {}), **found}


_AS_IN_0_1_0 = {"memory_as_in": "0.1.0", "quantizer": "paper", "start": "widest", "inertia": 0.0}
"""What its files do not say, having known nothing else."""


def settings_yaml(settings: RunSettings, header: str = "") -> str:
    """The settings as a YAML document that ``read_settings`` reads back."""
    content = settings.model_dump(mode="json", exclude_none=True)
    content.setdefault("validation", None)  # a file of a run without it is one of 0.1.0's
    content = {"model": content.pop("model"), **content}  # what people look for first
    return header + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
