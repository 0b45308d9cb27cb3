"""``hwbmpq.load``: from a packed file to a network that computes what the saved one did."""

from pathlib import Path

from torch import nn

from hwbmpq.errors import HwbmpqError, ModelLoadError, UnknownNameError
from hwbmpq.export.packed.container import PackedFileError
from hwbmpq.export.packed.file import PackedFile, read_packed
from hwbmpq.export.packed.restore import check_fit, restore
from hwbmpq.export.packed.save import FILE_NAME
from hwbmpq.export.packed.schema import Origin
from hwbmpq.models import load_model

_SAFE_SOURCES = ("timm", "torchvision", "hwbmpq")
"""Of specifications that run no code but that of installed packages."""


def load(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """The quantized network in a packed file, or in the run directory that holds one; in evaluation mode, on the CPU.

    Its outputs are those of the saved network, and it can go on training, but for the weights of layers that
    compute them on the way (timm's ``StdConv2d``): these are frozen. ``model`` is the float network, which is changed
    in place; without it, the network is built from the specification that was saved, which works for ``timm:``,
    ``torchvision:`` and ``hwbmpq:``. Own modules have to be given, since a file must not say which code to run.
    """
    path = Path(path)
    file = read_packed(path / FILE_NAME if path.is_dir() else path)
    return restore(_network_of(file) if model is None else model, file)


def _network_of(file: PackedFile) -> nn.Module:
    spec = file.metadata.origin.model
    if spec is None or spec.partition(":")[0] not in _SAFE_SOURCES:
        what = "does not say which network it holds" if spec is None else f"names the network {spec!r:.100}"
        raise HwbmpqError(
            f"{file.path} {what}, which load does not build by itself: give the float network, hwbmpq.load(path, model=network)",
            hint="a file must not say which code to run",
        )
    try:
        _check_without_memory(spec, file)
        return _build(spec, file.metadata.origin, "cpu")
    except (ModelLoadError, UnknownNameError) as error:
        raise PackedFileError(f"{file.path}: origin: {error}", hint=error.hint) from error


def _check_without_memory(spec: str, file: PackedFile) -> None:
    """Compare shapes before there are tensors: a file that says a billion classes must hold them."""
    origin = file.metadata.origin
    sizes = {size for value in file.stored.values() for size in value.shape}
    sizes |= {size for layer in file.metadata.layers for size in layer.shape}
    if origin.num_classes is not None and origin.num_classes not in sizes:
        raise PackedFileError(f"{file.path}: origin: no tensor has {origin.num_classes} classes")
    try:
        skeleton = _build(spec, origin, "meta")
    except ModelLoadError:
        return  # some networks compute with their first values; what was checked has to do
    check_fit(skeleton, file)


def _build(spec: str, origin: Origin, device: str) -> nn.Module:
    # The seed is for the generator's sake, which goes on as if nothing had been built.
    loaded = load_model(
        spec, num_classes=origin.num_classes, input_size=origin.input_size, device=device, seed=0
    )
    return loaded.network
