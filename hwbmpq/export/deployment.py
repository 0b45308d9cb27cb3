"""What a trained network becomes for others: a packed file, ONNX graphs, and how they compare with the network."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hwbmpq.data.images import ImageData
from hwbmpq.errors import HwbmpqError
from hwbmpq.export import (
    Agreement,
    BenchmarkEntry,
    Form,
    OnnxGraph,
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
from hwbmpq.quant import as_float
from hwbmpq.training.evaluation import Evaluation, evaluate
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import calibration_batches, example_input

COMPARED_IMAGES = 256
"""How many images a file is compared with its network on."""
_COMPARED_AT_ONCE = 16
_COMPARED_BY_QONNX = 16
"""It runs node by node in Python."""
INTEGER_FORM = "int8 kernels"
"""What a benchmark calls the form that ONNX Runtime computes in integers."""
_CALIBRATION_IMAGES = 256


def save_model(network: nn.Module, data: ImageData, settings: RunSettings, path: Path) -> SizeAccount:
    """Write the packed file of a run's network."""
    origin = {
        "model": settings.model,
        "num_classes": settings.num_classes or data.classes,
        **facts(data, settings),
    }
    return save_packed(network, path, example_input=example_input(network, data.test), origin=origin)


def facts(data: ImageData, settings: RunSettings) -> dict[str, Any]:
    """What one has to know to feed a network, and where it is from."""
    known: dict[str, Any] = {
        "input_size": list(data.test.input_size),
        "target": settings.target,
        "data": data.name,
    }
    if hasattr(data.test, "mean"):  # one's own loaders do not tell
        known["normalisation"] = {"mean": list(data.test.mean), "std": list(data.test.std)}
    return known


@dataclass(frozen=True, kw_only=True)
class OnnxExport:
    """A file that was written, and that gives the network's answers."""

    path: Path
    graph: OnnxGraph
    agreement: Agreement


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
) -> OnnxExport:
    """Write a network as ONNX once ONNX Runtime has loaded it and run it on test images beside the network."""
    graph = onnx_graph(
        network,
        example_input(network, data.test),
        form=form,
        calibration=[as_input(batch) for batch, _ in calibration_batches(data.train, _CALIBRATION_IMAGES)],
        accumulates_int32=accumulates_int32,
        facts=facts(data, settings),
    )
    if form == "qonnx":
        images = min(images, _COMPARED_BY_QONNX)
    runtime = QonnxNetwork(graph.content) if form == "qonnx" else OnnxNetwork(graph.content)
    agreement = compare(network.eval(), runtime, _watched(_images(data, images), on_image))
    if not agreement.is_plausible:
        raise HwbmpqError(
            f"the graph does not give the network's answers (median difference {agreement.median_difference:.2g} of the outputs' "
            "range): nothing was written",
            hint="this is a defect of hwbmpq or of the runtime: please report the network; --format packed is not concerned",
        )
    return OnnxExport(path=write_onnx(graph, path), graph=graph, agreement=agreement)


def _images(data: ImageData, count: int) -> Iterator[Tensor]:
    batches = (images for images, _ in data.test.batches(_COMPARED_AT_ONCE))
    return islice(batches, max(1, -(-count // _COMPARED_AT_ONCE)))


def _watched(batches: Iterator[Tensor], on_image: Callable[[int], None] | None) -> Iterator[Tensor]:
    done = 0
    for images in batches:
        yield images
        done += len(images)
        if on_image is not None:
            on_image(done)


def evaluate_onnx(network: OnnxNetwork, data: ImageData, *, batch_size: int) -> Evaluation:
    """The accuracy of an ONNX file in ONNX Runtime."""
    return evaluate(network.as_module(), data.test.batches(batch_size))


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
    images = _batch_of(data, batch)
    calibration = [as_input(part) for part, _ in calibration_batches(data.train, _CALIBRATION_IMAGES)]
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


def _batch_of(data: ImageData, count: int) -> NDArray[np.float32]:
    """Some test images; again from the first if there are fewer."""
    found = as_input(next(data.test.batches(count))[0])
    return np.resize(found, (count, *found.shape[1:]))
