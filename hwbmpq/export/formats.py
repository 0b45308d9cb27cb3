"""The formats that a run's network can be exported to, by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn

from hwbmpq.data.images import ImageData
from hwbmpq.errors import UnknownNameError
from hwbmpq.export import Agreement, Form, SizeAccount
from hwbmpq.export.deployment import OnnxExport, export_onnx, save_model
from hwbmpq.registry import EXPORT_FORMATS
from hwbmpq.training.settings import RunSettings

Writer: TypeAlias = "Callable[..., ExportResult]"
"""Called with (network, data, settings, path), ``on_image`` (told how many test images have been compared) and options."""
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


def register(
    name: str, summary: str, *, file: str, options: Iterable[str] = ()
) -> Callable[[Writer], Writer]:
    """Function decorator: make a writer known as the format ``name``."""

    def add(write: Writer) -> Writer:
        known = ExportFormat(name=name, summary=summary, file=file, write=write, options=frozenset(options))
        EXPORT_FORMATS.add(name, known)
        return write

    return add


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
    return _result(
        export_onnx(network, data, path, settings=settings, form=form, accumulates_int32=is_vnni, **compared)
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
    return _result(export_onnx(network, data, path, settings=settings, form="qonnx", **compared))


def _result(export: OnnxExport) -> ExportResult:
    graph = export.graph
    norms = "1 norm" if graph.folded_norms == 1 else f"{graph.folded_norms} norms"
    return ExportResult(
        path=export.path,
        size=graph.account,
        agreement=export.agreement,
        remarks=tuple(graph.remarks),
        detail=f"opset {graph.opset}, {norms} folded into scales",
        facts={
            "form": graph.form,
            "bytes": len(graph.content),
            "opset": graph.opset,
            "folded_norms": graph.folded_norms,
            "integer_layers": list(graph.integer_layers),
            "added_roundings": graph.added_roundings,
        },
    )


@register("packed", "every weight at exactly its bits, for hwbmpq.load", file="model.safetensors")
def _write_packed(
    network: nn.Module, data: ImageData, settings: RunSettings, path: Path, *, on_image: object = None
) -> ExportResult:
    return ExportResult(path=path, size=save_model(network, data, settings, path))
