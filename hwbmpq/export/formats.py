"""The formats that a run's network can be exported to, by name."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from hwbmpq.data.images import ImageData
from hwbmpq.errors import UnknownNameError
from hwbmpq.export import Agreement, Form, SizeAccount
from hwbmpq.export.deployment import COMPARED_IMAGES, export_onnx, save_model
from hwbmpq.registry import EXPORT_FORMATS
from hwbmpq.training.settings import RunSettings

OnStep = Callable[[int], None]
_RUNTIME_FORMS: Mapping[str, Form] = {"none": "qdq", "int8": "int8", "int8-vnni": "int8"}


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What was written, and what is known about it; every format says what it can."""

    path: Path
    size: SizeAccount | None = None
    agreement: Agreement | None = None
    """With the network, on test images."""
    remarks: tuple[str, ...] = ()
    detail: str = ""
    """A few words that stand behind the path."""
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


class Writer(Protocol):
    """Writes a network to ``path``; ``on_step`` is told how many test images have been compared."""

    def __call__(
        self,
        network: nn.Module,
        data: ImageData,
        settings: RunSettings,
        path: Path,
        *,
        on_step: OnStep | None = None,
        **options: Any,
    ) -> ExportResult: ...


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """A kind of file (or of folder) that others execute."""

    name: str
    summary: str
    file: str
    """Its name in a run's folder, such as ``model.onnx``; without a suffix it is a folder."""
    write: Writer
    options: frozenset[str] = frozenset()
    """What ``write`` takes beside ``on_step``: ``runtime_compat``, ``images``."""

    @property
    def suffix(self) -> str:
        return Path(self.file).suffix


def _write_onnx(
    network: nn.Module,
    data: ImageData,
    settings: RunSettings,
    path: Path,
    *,
    runtime_compat: str = "none",
    images: int = COMPARED_IMAGES,
    on_step: OnStep | None = None,
) -> ExportResult:
    if runtime_compat not in _RUNTIME_FORMS:
        raise UnknownNameError("runtime compatibility", runtime_compat, _RUNTIME_FORMS)
    return _onnx(
        network,
        data,
        path,
        settings=settings,
        form=_RUNTIME_FORMS[runtime_compat],
        accumulates_int32=runtime_compat == "int8-vnni",
        images=images,
        on_image=on_step,
    )


def _write_qonnx(
    network: nn.Module,
    data: ImageData,
    settings: RunSettings,
    path: Path,
    *,
    images: int = COMPARED_IMAGES,
    on_step: OnStep | None = None,
) -> ExportResult:
    return _onnx(network, data, path, settings=settings, form="qonnx", images=images, on_image=on_step)


def _onnx(network: nn.Module, data: ImageData, path: Path, **options: Any) -> ExportResult:
    export = export_onnx(network, data, path, **options)
    graph = export.graph
    norms = f"{graph.folded_norms} norm{'' if graph.folded_norms == 1 else 's'}"
    facts = {
        "form": graph.form,
        "bytes": len(graph.content),
        "opset": graph.opset,
        "folded_norms": graph.folded_norms,
        "integer_layers": list(graph.integer_layers),
        "added_roundings": graph.added_roundings,
    }
    return ExportResult(
        path=export.path,
        size=graph.account,
        agreement=export.agreement,
        remarks=tuple(graph.remarks),
        detail=f"opset {graph.opset}, {norms} folded into scales",
        facts=facts,
    )


def _write_packed(
    network: nn.Module, data: ImageData, settings: RunSettings, path: Path, *, on_step: OnStep | None = None
) -> ExportResult:
    return ExportResult(path=path, size=save_model(network, data, settings, path))


for _format in (
    ExportFormat(
        name="onnx",
        summary="standard quantized ONNX: weights stored as integers of 2, 4, 8 or 16 bits",
        file="model.onnx",
        write=_write_onnx,
        options=frozenset({"runtime_compat", "images"}),
    ),
    ExportFormat(
        name="packed",
        summary="every weight at exactly its bits, for hwbmpq.load",
        file="model.safetensors",
        write=_write_packed,
    ),
    ExportFormat(
        name="qonnx",
        summary="ONNX with Quant nodes of any width, for FINN, hls4ml and QONNX's own tools",
        file="model.qonnx.onnx",
        write=_write_qonnx,
        options=frozenset({"images"}),
    ),
):
    EXPORT_FORMATS.add(_format.name, _format)
