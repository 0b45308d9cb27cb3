"""Exporting a trained network: the formats by name, a packed file, ONNX graphs, and how they compare with the network."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hwbmpq.data.images import ImageData
from hwbmpq.data.inputs import Inputs, sample_count
from hwbmpq.deprecated import renamed_arguments, renamed_attribute
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.export import (
    Agreement,
    BenchmarkEntry,
    Form,
    OnnxNetwork,
    QonnxNetwork,
    SizeAccount,
    Timing,
    as_input,
    compare,
    onnx_graph,
    save_packed,
    time_side_by_side,
    write_onnx,
)
from hwbmpq.export.onnx.trace import input_names
from hwbmpq.export.runtime.onnxruntime import Arrays
from hwbmpq.quant import as_float
from hwbmpq.quant.layers import eval_mode
from hwbmpq.registry import EXPORT_FORMATS, wrong_return
from hwbmpq.tasks import Task, get_task
from hwbmpq.training.evaluation import Evaluation, evaluate, evaluation_batches
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import calibration_batches, example_input

Writer: TypeAlias = "Callable[..., ExportResult]"
"""Called with (network, data, settings, path), ``on_image`` (told how many test images have been compared) and options."""
_RUNTIME_FORMS: Mapping[str, Form] = {"none": "qdq", "older": "qdq8", "int8": "int8", "int8-vnni": "int8"}


COMPARED_IMAGES = 256
"""How many images a file is compared with its network on."""
_COMPARED_AT_ONCE = 16
_COMPARED_BY_QONNX = 16
"""It runs node by node in Python."""
INTEGER_FORM = "int8 kernels"
"""What a benchmark calls the form that ONNX Runtime computes in integers."""
_CALIBRATION_IMAGES = 256


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What was written, and what is known about it, as far as the format can tell."""

    path: Path
    size: SizeAccount | None = None
    agreement: Agreement | None = None
    """With the network, on test images."""
    remarks: tuple[str, ...] = ()
    detail: str = ""
    """A few words to be printed after the path."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """More of it, ready for JSON."""

    def to_dict(self) -> dict[str, Any]:
        known = {
            "size": None if self.size is None else self.size.to_dict(),
            "remarks": list(self.remarks),
            "agreement": None if self.agreement is None else asdict(self.agreement),
        }
        found = {name: value for name, value in known.items() if value is not None}
        return {"file": str(self.path), **self.facts, **found}


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """A kind of file (or of folder) that others execute."""

    name: str
    summary: str
    file: str
    """Its name in a run's folder, such as ``model.onnx``; without a suffix it is a folder."""
    write: Writer
    options: frozenset[str] = frozenset()
    """Keyword arguments of ``write`` that ``hwbmpq export`` has flags for: ``runtime_compat``, ``images`` to compare."""

    @property
    def suffix(self) -> str:
        return Path(self.file).suffix

    def export(self, *args: Any, **options: Any) -> ExportResult:
        """``write``, with its result checked: it may be a plug-in's."""
        result = self.write(*args, **options)
        expected = "an ExportResult with the path that was written"
        if not isinstance(result, ExportResult):
            raise wrong_return(EXPORT_FORMATS, self.name, result, expected)
        if not Path(result.path).exists():
            raise wrong_return(EXPORT_FORMATS, self.name, f"{result.path}, which does not exist", expected)
        return result


def register(
    name: str, summary: str, *, file: str, options: Iterable[str] = ()
) -> Callable[[Writer], Writer]:
    """Function decorator: make a writer known as the format ``name``."""

    def add(write: Writer) -> Writer:
        known = ExportFormat(name=name, summary=summary, file=file, write=write, options=frozenset(options))
        EXPORT_FORMATS.add(name, known)
        return write

    return add


def save_model(network: nn.Module, data: ImageData, settings: RunSettings, path: Path) -> SizeAccount:
    """Write the packed file of a run's network."""
    has_classes = get_task(settings.task).has_classes
    origin = {
        "model": settings.model,
        "num_classes": settings.num_classes or (data.classes if has_classes else None),
        **facts(data, settings),
    }
    return save_packed(network, path, example_input=example_input(network, data.train), origin=origin)


def facts(data: ImageData, settings: RunSettings) -> dict[str, Any]:
    """What one must know to run a network on images, and where it came from."""
    known: dict[str, Any] = {
        "input_size": list(data.test.input_size),
        "target": settings.target,
        "data": data.name,
    }
    if getattr(data.test, "mean", ()):  # unknown for DataLoaders of one's own, and nothing for token ids
        known["normalisation"] = {"mean": list(data.test.mean), "std": list(data.test.std)}
    # Without whose figures they are: a run that is resumed reads them from its settings, and must write the same file.
    known["inputs"] = re.sub(r" \([^()]*\)$", "", data.inputs.removeprefix("inputs: ").partition(";")[0])
    return known


@renamed_arguments(wide_sums="accumulates_int32")
def export_onnx(
    network: nn.Module,
    data: ImageData,
    path: Path,
    *,
    settings: RunSettings,
    form: Form = "qdq",
    accumulates_int32: bool = False,
    images: int = COMPARED_IMAGES,
    on_image: Callable[[int], None] | None = None,
    task: Task | None = None,
) -> ExportResult:
    """Write a network as ONNX once ONNX Runtime has loaded it and run it on test images beside the network.

    ``task`` is what it was trained for, if the settings do not name it.
    """
    graph = onnx_graph(
        network,
        example_input(network, data.test),
        form=form,
        calibration=_calibration(network, data),
        accumulates_int32=accumulates_int32,
        facts=facts(data, settings),
    )
    if form == "qonnx":
        images = min(images, _COMPARED_BY_QONNX)
    runtime = QonnxNetwork(graph.content) if form == "qonnx" else OnnxNetwork(graph.content)
    has_classes = get_task(task or settings.task).has_classes
    agreement = compare(network.eval(), runtime, _images(data, images, on_image), has_classes=has_classes)
    if not agreement.is_plausible:
        raise HwbmpqError(
            f"the graph does not give the network's answers (median difference {agreement.median_difference:.2g} of the outputs' "
            "range): nothing was written",
            hint="this is a defect of hwbmpq or of the runtime: please report the network; --format packed is not concerned",
        )
    norms = "1 norm" if graph.folded_norms == 1 else f"{graph.folded_norms} norms"
    return ExportResult(
        path=write_onnx(graph, path),
        size=graph.account,
        agreement=agreement,
        remarks=tuple(graph.remarks),
        detail=f"opset {graph.opset}, {norms} folded into scales",
        facts={
            "form": graph.form,
            "bytes": len(graph.content),
            "opset": graph.opset,
            "least_onnxruntime": graph.least_runtime,
            "folded_norms": graph.folded_norms,
            "integer_layers": list(graph.integer_layers),
            "added_roundings": graph.added_roundings,
        },
    )


def _calibration(network: nn.Module, data: ImageData) -> list[Arrays]:
    batches = calibration_batches(data.train, _CALIBRATION_IMAGES)
    return [as_input(inputs, input_names(network, inputs)) for inputs, _ in batches]


def _images(data: ImageData, count: int, on_image: Callable[[int], None] | None) -> Iterator[Inputs]:
    """Batches of at least ``count`` test images; ``on_image`` is told the progress."""
    done = 0
    for inputs, _ in islice(data.test.batches(_COMPARED_AT_ONCE), max(1, -(-count // _COMPARED_AT_ONCE))):
        yield inputs
        done += sample_count(inputs)
        if on_image is not None:
            on_image(done)


def evaluate_onnx(
    network: OnnxNetwork,
    data: ImageData,
    *,
    batch_size: int | None = None,
    task: Task | str = "classification",
    original: nn.Module | None = None,
) -> Evaluation:
    """How good an ONNX file is in ONNX Runtime; ``original`` is its network, whose outputs may be a nest of tensors."""
    like = None
    if original is not None:
        with eval_mode(original), torch.no_grad():
            like = example_input(original, data.test).call(original)
    batches = evaluation_batches(data.test) if batch_size is None else data.test.batches(batch_size)
    return evaluate(network.as_module(like), batches, task)


@renamed_arguments(wide_sums="accumulates_int32")
def benchmark(
    network: nn.Module,
    data: ImageData,
    *,
    batch: int = 1,
    threads: int = 1,
    rounds: int = 50,
    accumulates_int32: bool = False,
    on_round: Callable[[int], None] | None = None,
) -> dict[str, Timing]:
    """Time the network in float, as stored, and in its integer form if it has one, side by side in ONNX Runtime.

    ``accumulates_int32``: the integer form for processors that add products of bytes in 32 bits.
    """
    example = example_input(network, data.test)
    images = _batch_of(network, data, batch)
    calibration = _calibration(network, data)
    with TemporaryDirectory() as folder:
        with as_float(network):
            in_float = write_onnx(onnx_graph(network, example), Path(folder) / "float.onnx")
        exact = write_onnx(onnx_graph(network, example), Path(folder) / "exact.onnx")
        graph = onnx_graph(
            network, example, form="int8", calibration=calibration, accumulates_int32=accumulates_int32
        )
        entries = {
            "float": BenchmarkEntry(path=in_float),
            "compressed": BenchmarkEntry(path=exact),
            "unpacked at load": BenchmarkEntry(path=exact, unpacks=True),
        }
        if graph.integer_layers or graph.matmul_nbits_layers:
            entries[INTEGER_FORM] = BenchmarkEntry(path=write_onnx(graph, Path(folder) / "int8.onnx"))
        return time_side_by_side(entries, images, threads=threads, rounds=rounds, on_round=on_round)


def _batch_of(network: nn.Module, data: ImageData, count: int) -> Arrays:
    """Test images, repeated if there are fewer than ``count``."""
    inputs = next(iter(data.test.batches(count)))[0]
    samples = sample_count(inputs)

    def resized(array: NDArray[Any]) -> NDArray[Any]:
        is_batch = array.ndim and len(array) == samples
        return np.resize(array, (count, *array.shape[1:])) if is_batch else array

    found = as_input(inputs, input_names(network, inputs))
    if isinstance(found, Mapping):
        return {name: resized(array) for name, array in found.items()}
    return resized(found)


@register(
    "onnx",
    "standard quantized ONNX: weights stored as integers of 2, 4, 8 or 16 bits",
    file="model.onnx",
    options=("runtime_compat", "images"),
)
def _write_onnx(
    network: nn.Module,
    data: ImageData,
    settings: RunSettings,
    path: Path,
    *,
    runtime_compat: str = "none",
    **compared: Any,
) -> ExportResult:
    if runtime_compat not in _RUNTIME_FORMS:
        raise UnknownNameError("runtime compatibility", runtime_compat, _RUNTIME_FORMS)
    form, is_vnni = _RUNTIME_FORMS[runtime_compat], runtime_compat == "int8-vnni"
    return export_onnx(
        network, data, path, settings=settings, form=form, accumulates_int32=is_vnni, **compared
    )


@register(
    "qonnx",
    "ONNX with Quant nodes of any width, for FINN, hls4ml and QONNX's own tools",
    file="model.qonnx.onnx",
    options=("images",),
)
def _write_qonnx(
    network: nn.Module, data: ImageData, settings: RunSettings, path: Path, **compared: Any
) -> ExportResult:
    return export_onnx(network, data, path, settings=settings, form="qonnx", **compared)


@register("packed", "every weight at exactly its bits, for hwbmpq.load", file="model.safetensors")
def _write_packed(
    network: nn.Module, data: ImageData, settings: RunSettings, path: Path, *, on_image: object = None
) -> ExportResult:
    return ExportResult(path=path, size=save_model(network, data, settings, path))


__getattr__ = renamed_attribute(__name__, {"OnnxExport": "ExportResult"})
