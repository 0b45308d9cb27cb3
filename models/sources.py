"""``--model`` specifications: ``timm:NAME``, ``torchvision:NAME``, ``hwbmpq:NAME``, ``file:…``."""

import inspect
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hwbmpq.data.torchvision_import import import_timm, import_torchvision
from hwbmpq.data.user_file import function_of
from hwbmpq.errors import HwbmpqError, ModelLoadError, UnknownNameError
from hwbmpq.models.bounded import BoundedMemory
from hwbmpq.models.exported import load_exported
from hwbmpq.models.weights import load_weights
from hwbmpq.models.zoo import NETWORKS

SPEC_FORMS = "timm:NAME, torchvision:NAME, hwbmpq:NAME, file:PATH.py:FACTORY or file:PATH.pt2"
_SMALL_IMAGE = (3, 32, 32)
_PHOTO = (3, 224, 224)


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A network, where it came from, and the input it is meant for (without batch)."""

    spec: str
    network: nn.Module
    input_size: tuple[int, ...]

    @property
    def title(self) -> str:
        """``timm:resnet18 at 3x224x224``."""
        return f"{self.spec} at {'x'.join(map(str, self.input_size))}"

    def example_input(self) -> torch.Tensor:
        """One random sample of the right size, on the network's device; zeros for a network that takes integers.

        A module of one's own says that it does with ``input_dtype = torch.int64``.
        """
        device = next((p.device for p in self.network.parameters()), torch.device("cpu"))
        dtype = getattr(self.network, "input_dtype", torch.float32)
        if isinstance(dtype, torch.dtype) and not dtype.is_floating_point:
            return torch.zeros(1, *self.input_size, dtype=dtype, device=device)
        return torch.randn(1, *self.input_size, device=device)


@dataclass(frozen=True, kw_only=True)
class _Request:
    name: str
    num_classes: int | None
    pretrained: bool


_Source = Callable[[_Request], tuple[nn.Module, tuple[int, ...] | None]]


def load_model(
    spec: str,
    *,
    num_classes: int | None = None,
    input_size: tuple[int, ...] | None = None,
    default_input_size: tuple[int, ...] | None = None,
    pretrained: bool = False,
    weights: str | Path | None = None,
    device: str = "cpu",
    seed: int | None = None,
    most_bytes: int | None = None,
) -> LoadedModel:
    """Build the network that ``spec`` names.

    ``num_classes`` None keeps the source's own. ``input_size`` None takes the network's own size, or
    ``default_input_size`` if it does not say one.
    ``pretrained`` lets timm and torchvision fetch their weights; ``weights`` is a local file.
    ``device="meta"`` builds shapes without memory. ``seed`` makes random weights the same every time.
    ``most_bytes`` bounds the tensors of a network that is named by somebody else; code of one's own (``file:``) is not
    bound.
    """
    kind, _, name = spec.partition(":")
    if kind not in _SOURCES or not name:
        raise ModelLoadError(f"cannot read the model specification {spec!r}", hint=f"use {SPEC_FORMS}")
    if num_classes is not None and num_classes < 1:
        raise ModelLoadError(f"a network cannot have {num_classes} classes", hint="give at least 1")
    if device == "meta" and (pretrained or weights):
        raise ModelLoadError("weights cannot be loaded on the meta device")
    bound = nullcontext() if most_bytes is None or kind == "file" else BoundedMemory(most_bytes)
    with torch.device(device), torch.random.fork_rng(devices=[], enabled=seed is not None), bound:
        if seed is not None:
            torch.manual_seed(seed)
        network, own_size = _SOURCES[kind](
            _Request(name=name, num_classes=num_classes, pretrained=pretrained)
        )
    if weights is not None:
        load_weights(network, weights)
    size = input_size or own_size or default_input_size
    if size is None:
        raise ModelLoadError(
            f"{spec} does not say which input it takes", hint="add the size, for example --input 3x224x224"
        )
    return LoadedModel(spec=spec, network=network, input_size=tuple(size))


def parse_input_size(text: str) -> tuple[int, ...]:
    """``3x224x224`` as a tuple; the batch axis is not part of it."""
    if not re.fullmatch(r"[1-9][0-9]{0,6}(x[1-9][0-9]{0,6}){0,4}", text.lower()):
        raise HwbmpqError(
            f"cannot read the input size {text!r}", hint="write channels x height x width, as in 3x224x224"
        )
    return tuple(int(part) for part in text.lower().split("x"))


def _from_timm(request: _Request) -> tuple[nn.Module, tuple[int, ...] | None]:
    timm = import_timm()
    bare_name = request.name.partition(".")[0]  # resnet18.a1_in1k names a set of weights as well
    if not timm.is_model(bare_name):
        raise UnknownNameError("timm model", bare_name, timm.list_models())
    options = {} if request.num_classes is None else {"num_classes": request.num_classes}
    network = _fetching(
        request, lambda: timm.create_model(request.name, pretrained=request.pretrained, **options)
    )
    settings: Any = network.pretrained_cfg
    return network, tuple(settings.get("input_size") or _PHOTO)


def _from_torchvision(request: _Request) -> tuple[nn.Module, tuple[int, ...] | None]:
    zoo = import_torchvision().models
    classifiers = zoo.list_models(module=zoo)
    if request.name not in classifiers:
        raise UnknownNameError("torchvision classifier", request.name, classifiers)
    if request.pretrained and request.num_classes is not None:
        raise ModelLoadError(
            "torchvision's pretrained weights have a head of their own size",
            hint="leave out --num-classes, or use timm, which replaces the head",
        )
    options: dict[str, Any] = {} if request.num_classes is None else {"num_classes": request.num_classes}
    if request.pretrained:
        options["weights"] = "DEFAULT"
    elif request.name in ("googlenet", "inception_v3"):
        options["init_weights"] = True  # as they do, with a warning, when it is not said
    network = _fetching(request, lambda: zoo.get_model(request.name, **options))
    return network, (3, 299, 299) if request.name == "inception_v3" else _PHOTO


def _fetching(request: _Request, build: Callable[[], nn.Module]) -> nn.Module:
    """Turn what a failed download, or a bad option, raises into one sentence."""
    try:
        return build()
    except Exception as error:  # zoo code and network stacks raise many types
        what = "fetch the pretrained weights of" if request.pretrained else "build"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        hint = "if there is no network, pass a local file with --weights" if request.pretrained else ""
        raise ModelLoadError(f"could not {what} {request.name}: {reason}", hint=hint) from error


def _from_zoo(request: _Request) -> tuple[nn.Module, tuple[int, ...] | None]:
    if request.name not in NETWORKS:
        raise UnknownNameError("hwbmpq network", request.name, NETWORKS)
    if request.pretrained:
        raise ModelLoadError(
            "hwbmpq's own networks come without trained weights", hint="pass a file with --weights"
        )
    return NETWORKS[request.name](10 if request.num_classes is None else request.num_classes), _SMALL_IMAGE


def _from_file(request: _Request) -> tuple[nn.Module, tuple[int, ...] | None]:
    if request.pretrained:
        raise ModelLoadError("a network from a file has no pretrained weights to fetch", hint="use --weights")
    path, _, factory = request.name.rpartition(":")
    if request.name.endswith(".pt2"):
        if request.num_classes is not None:
            raise ModelLoadError(
                "the class count of an exported program is fixed", hint="leave out --num-classes"
            )
        return load_exported(Path(request.name).expanduser())
    if not path.endswith(".py") or not factory:
        raise ModelLoadError(
            f"cannot read file:{request.name}", hint="use file:PATH.py:FACTORY or file:PATH.pt2"
        )
    network = _call_factory(Path(path).expanduser(), factory, request.num_classes)
    size = getattr(network, "input_size", None)
    return network, tuple(size) if isinstance(size, (tuple, list)) else None


def _call_factory(path: Path, factory: str, num_classes: int | None) -> nn.Module:
    build = function_of(path, factory, ModelLoadError)
    arguments = inspect.signature(build).parameters.values()
    takes_classes = any(a.name == "num_classes" or a.kind is a.VAR_KEYWORD for a in arguments)
    if num_classes is not None and not takes_classes:
        raise ModelLoadError(f"{factory} in {path} takes no num_classes", hint="leave out --num-classes")
    try:
        network = build(num_classes=num_classes) if num_classes is not None else build()
    except (Exception, SystemExit) as error:  # the user's own code
        raise ModelLoadError(
            f"{factory} in {path} raised {type(error).__name__}: {error}", hint="--debug shows where"
        ) from error
    if not isinstance(network, nn.Module):
        raise ModelLoadError(f"{factory} in {path} returned {type(network).__name__}, not torch.nn.Module")
    return network


_SOURCES: dict[str, _Source] = {
    "timm": _from_timm,
    "torchvision": _from_torchvision,
    "hwbmpq": _from_zoo,
    "file": _from_file,
}
