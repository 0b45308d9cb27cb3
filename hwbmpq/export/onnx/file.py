"""A quantized network as an ONNX file."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes import common as passes
from torch import nn

import hwbmpq
from hwbmpq.costs.stored import SCALES, WEIGHTS
from hwbmpq.data.inputs import Inputs
from hwbmpq.deprecated import renamed_arguments, warn
from hwbmpq.errors import HwbmpqError
from hwbmpq.export.onnx import checksum
from hwbmpq.export.onnx.graph import (
    GraphEditor,
    IntegerWeight,
    Product,
    find_held_weights,
    find_products,
    fold_batchnorm,
)
from hwbmpq.export.onnx.int8_form import Int8Plan, lower_for_int8
from hwbmpq.export.onnx.kernels import MATMUL_NBITS_DOMAIN
from hwbmpq.export.onnx.lowering import (
    QUANT_DOMAIN,
    TWO_BIT_OPSET,
    activation_quants,
    qdq_activation,
    qdq_held_weight,
    qdq_weight,
    qonnx_activation,
    qonnx_held_weight,
    qonnx_weight,
    stored_width,
)
from hwbmpq.export.onnx.trace import PLACEHOLDER_DOMAIN, TRACED_OPSET, TracedGraph, input_names, trace_network
from hwbmpq.export.onnx.versions import OLDEST, least_runtime
from hwbmpq.export.packed.contents import SizeAccount, SizeLine, stored_bytes
from hwbmpq.export.runtime.onnxruntime import LARGEST_FILE, Arrays, as_input, output_ranges
from hwbmpq.export.stored_weights import StoredWeight, stored_weights
from hwbmpq.graph.stored import BIASES, NORMS, OTHER
from hwbmpq.io import atomic_write
from hwbmpq.search.loop_checks import warn_if_undecided
from hwbmpq.values import CLIPPING

Form = Literal["qdq", "qdq8", "int8", "qonnx"]
_IR_VERSION = {TRACED_OPSET: 10, TWO_BIT_OPSET: 13}
_BYTE = 8
_Lower = Callable[..., None]
_STANDARDS: dict[str, tuple[_Lower, _Lower, _Lower]] = {
    "qdq": (qdq_weight, qdq_held_weight, qdq_activation),
    "qdq8": (
        partial(qdq_weight, narrowest=_BYTE),
        partial(qdq_held_weight, narrowest=_BYTE),
        partial(qdq_activation, narrowest=_BYTE),
    ),
    "qonnx": (qonnx_weight, qonnx_held_weight, qonnx_activation),
}
_MOST_NAMES = 3


@dataclass(frozen=True, kw_only=True)
class OnnxGraph:
    """A graph, serialized, and what its readers should know about it."""

    content: bytes
    form: Form
    opset: int
    has_dynamic_batch: bool
    folded_norms: int
    integer_layers: tuple[str, ...]
    """Layers that become integer kernels of ONNX Runtime."""
    matmul_nbits_layers: tuple[str, ...]
    """Linear layers that become MatMulNBits, which only ONNX Runtime has."""
    unsigned_layers: tuple[str, ...]
    """Of the integer layers: those that take the slower kernel, which is exact on every processor."""
    added_roundings: int
    """Tensors that are rounded to a byte although the network does not round them."""
    widened: Mapping[int, int]
    """Weight widths that ONNX has no type for, and the next wider ones used instead."""
    account: SizeAccount
    least_runtime: str = ""
    """The first release of ONNX Runtime that loads it; empty if none does."""

    @property
    def block_linear_layers(self) -> tuple[str, ...]:
        """Deprecated: ``matmul_nbits_layers``."""
        warn("OnnxGraph.block_linear_layers", "OnnxGraph.matmul_nbits_layers")
        return self.matmul_nbits_layers

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a user should know about the file."""
        found = [
            f"{bits}-bit weights are stored as {width}-bit integers" for bits, width in self.widened.items()
        ]
        if self.form == "int8" and self.integer_layers:
            found.append(
                f"{len(self.integer_layers)} layers run as 8-bit integer kernels: weights of fewer bits are widened to bytes"
            )
        elif self.form == "int8" and not self.matmul_nbits_layers:
            found.append(
                "no layer has weights and activations of 8 bits or fewer: all run in float; that takes a target with 8-bit activations, "
                "such as mpic or x86_onnxruntime"
            )
        if self.unsigned_layers:
            found.append(
                f"{len(self.unsigned_layers)} of them take a slower kernel that is exact on any processor; for Arm, and x86 with "
                "VNNI: --runtime-compat int8-vnni"
            )
        if self.matmul_nbits_layers:
            found.append(
                f"{_listed(self.matmul_nbits_layers)}: by MatMulNBits, fast for one input at a time; it rounds its input to bytes"
            )
        if self.added_roundings:
            found.append(
                f"what {self.added_roundings} layers give is rounded to 8 bits, which the network keeps in float: answers differ"
            )
        if self.least_runtime:
            older = (
                ""
                if self.form != "qdq" or self.least_runtime == OLDEST
                else f"; --runtime-compat older: from {OLDEST}"
            )
            found.append(f"ONNX Runtime loads it from version {self.least_runtime} on{older}")
        if not self.has_dynamic_batch:
            found.append("the graph takes one input at a time")
        return tuple(found)


@renamed_arguments(wide_sums="accumulates_int32")
def onnx_graph(
    model: nn.Module,
    example_input: Inputs,
    *,
    form: Form = "qdq",
    calibration: Iterable[Arrays] | None = None,
    accumulates_int32: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> OnnxGraph:
    """A quantized network as an ONNX graph; the network is left as it was.

    ``example_input`` is a tensor, a tuple of arguments or a dict of keyword arguments; several inputs get the names that
    they have in ``forward``.

    ``qdq`` is standard ONNX and computes what the network computes, to float rounding; ``qdq8`` is the same with no integer
    narrower than a byte, for older runtimes. ``int8`` is the form that ONNX
    Runtime fuses into integer kernels; it needs ``calibration`` images (batches as the network takes them) for the ranges
    of tensors that those kernels round and the network does not; without, ``example_input`` serves. ``accumulates_int32`` makes 8-bit
    weights faster on processors that add products of bytes in 32 bits (Arm, x86 with VNNI), and wrong on others. ``qonnx`` has Quant
    nodes, which are not ONNX's own. ``facts`` are kept in the file's metadata.
    """
    if form not in get_args(Form):
        raise HwbmpqError(
            f"no form of ONNX graphs is called {form!r}", hint=f"use {', '.join(get_args(Form))}"
        )
    _check_kind(model)
    warn_if_undecided(model)
    weights = stored_weights(model, example_input)
    # Tools that read Quant nodes need all shapes.
    traced = trace_network(model, example_input, weights, any_batch=form != "qonnx")
    lowering = _Lowering(traced, weights, facts or {})
    if form == "int8":
        given = as_input(example_input, input_names(model, example_input))
        batches = [given] if calibration is None else list(calibration)
        if not batches:
            raise HwbmpqError(
                "there are no images to calibrate with", hint="leave calibration out, or give some"
            )
        lowering.to_int8(_Lowering(traced, weights, {}), batches, accumulates_int32=accumulates_int32)
    else:
        lowering.to_standard(form)
    return lowering.finished(form, stored_bytes(model, weights))


def _check_kind(model: nn.Module) -> None:
    kinds = {value.dtype for value in model.parameters() if value.is_floating_point()} - {torch.float32}
    if kinds:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise HwbmpqError(
            f"the network has parameters of {names}; ONNX files are written of float32 ones",
            hint="export model.float()",
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.LSTM) and module.proj_size:
            raise HwbmpqError(
                f"{name} is an LSTM with projections (proj_size), which ONNX does not have",
                hint="the packed model.safetensors needs no graph: hwbmpq.load reads it",
            )


def write_onnx(graph: OnnxGraph, path: str | Path) -> Path:
    """Write a graph to a file, atomically."""
    path = Path(path)
    with atomic_write(path) as file:
        file.write(graph.content)
    return path


class _Lowering:
    """One copy of a traced graph on its way to plain ONNX."""

    def __init__(
        self, traced: TracedGraph, weights: Mapping[str, StoredWeight], facts: Mapping[str, Any]
    ) -> None:
        self.traced = traced.copy()
        self.facts = facts
        self.weights = weights
        self.editor = GraphEditor(self.graph)
        self.products = find_products(self.traced, weights)
        self.held = find_held_weights(self.traced, weights)
        self.folded = fold_batchnorm(self.products, self.editor)
        self.plan: Int8Plan | None = None

    @property
    def graph(self) -> ir.Graph:
        return self.traced.model.graph

    def to_standard(self, form: Form) -> None:
        """``qdq`` or ``qonnx``."""
        lower_weight, lower_held, lower_activation = _STANDARDS[form]
        for product in self.products:
            lower_weight(product, self.editor)
        for weight in self.held:
            lower_held(weight, self.editor)
        for quant in activation_quants(self.traced):
            lower_activation(quant, self.editor)
        if form == "qonnx":
            self.traced.model.opset_imports[QUANT_DOMAIN] = 1

    def to_int8(self, exact: "_Lowering", batches: Iterable[Arrays], *, accumulates_int32: bool) -> None:
        """``exact`` is another copy, run to find the ranges."""
        quants = {quant.node: quant for quant in activation_quants(self.traced)}
        self.plan = Int8Plan(products=self.products, quants=quants, accumulates_int32=accumulates_int32)
        exact.to_standard("qdq")
        ranges = (
            output_ranges(exact.content(also=tuple(self.plan.rounded)), batches) if self.plan.rounded else {}
        )
        for weight in self.held:
            qdq_held_weight(weight, self.editor)
        lower_for_int8(self.plan, ranges, self.editor)
        if self.plan.matmul_nbits:
            self.traced.model.opset_imports[MATMUL_NBITS_DOMAIN] = 1

    def content(self, also: tuple[str, ...] = ()) -> bytes:
        """The graph in bytes, checked; ``also`` names values to add to its outputs."""
        graph = self.graph
        values = {value.name: value for node in graph for value in node.outputs}
        graph.outputs.extend(values[name] for name in also)
        passes.RemoveUnusedNodesPass()(self.traced.model)
        # Initializers of layers that run twice or share a weight.
        passes.DeduplicateHashedInitializersPass()(self.traced.model)
        passes.ClearMetadataAndDocStringPass()(
            self.traced.model
        )  # which line of whose source a node came from
        self.traced.model.opset_imports.pop(PLACEHOLDER_DOMAIN, None)
        self.traced.model.opset_imports[""] = self.opset
        self.traced.model.ir_version = _IR_VERSION[self.opset]
        proto = ir.to_proto(self.traced.model)
        proto.producer_name, proto.producer_version = "hwbmpq", hwbmpq.__version__
        facts = {f"hwbmpq.{key}": json.dumps(value) for key, value in self.facts.items()}
        onnx.helper.set_model_props(proto, {**facts, checksum.KEY: checksum.BLANK})
        content = checksum.add_checksum(proto.SerializeToString())
        if len(content) > LARGEST_FILE:
            raise HwbmpqError("the graph is larger than the 2 GiB that an ONNX file holds")
        onnx.checker.check_model(content, full_check=True)
        return content

    @property
    def opset(self) -> int:
        kinds = {value.dtype for value in self.graph.initializers.values()}
        return TWO_BIT_OPSET if kinds & {ir.DataType.INT2, ir.DataType.UINT2} else TRACED_OPSET

    def finished(self, form: Form, stored: Mapping[str, int]) -> OnnxGraph:
        """The file; ``stored`` is what the network takes on a device, by label."""
        content = self.content()
        narrowest = _BYTE if form == "qdq8" else 0
        weights: list[IntegerWeight] = [*self.products, *self.held]
        odd = sorted(
            {weight.bits for weight in weights if stored_width(weight.bits, narrowest) != weight.bits}
        )
        integer, blocked = ({}, ()) if self.plan is None else (self.plan.integer, self.plan.matmul_nbits)
        return OnnxGraph(
            content=content,
            form=form,
            opset=self.opset,
            has_dynamic_batch=self.traced.has_dynamic_batch,
            folded_norms=len(self.folded),
            integer_layers=_layers(integer),
            matmul_nbits_layers=_layers(blocked),
            unsigned_layers=_layers(product for product, weight in integer.items() if weight.zero),
            added_roundings=0 if self.plan is None else len(self.plan.rounded),
            widened={bits: stored_width(bits, narrowest) for bits in odd} if form.startswith("qdq") else {},
            least_runtime="" if form == "qonnx" else least_runtime(self.graph),
            account=_account(self.graph, stored, len(content)),
        )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} linear layers"


def _layers(products: Iterable[Product]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(product.layer for product in products))


_LINES = {
    "weights": (WEIGHTS,),
    "scales and ranges": (SCALES, CLIPPING),
    "biases and norms": (BIASES, NORMS),
    "other constants": (OTHER,),
}
"""What the bytes of a file are used for, by what a memory budget calls it."""


def _account(graph: ir.Graph, stored: Mapping[str, int], total: int) -> SizeAccount:
    """What the bytes of a file are used for. Predicted is what a memory budget counts, line by line."""
    found = dict.fromkeys(_LINES, 0)
    for name, value in graph.initializers.items():
        assert value.const_value is not None
        found[_purpose(name)] += value.const_value.nbytes
    found["graph"] = total - sum(found.values())
    return SizeAccount(
        lines=tuple(
            SizeLine(
                label=label,
                predicted_bytes=sum(stored.get(name, 0) for name in _LINES.get(label, ())),
                actual_bytes=size,
            )
            for label, size in found.items()
        )
    )


def _purpose(name: str) -> str:
    if ".weight_codes" in name or ".weight_float" in name:
        return "weights"
    if any(part in name for part in ("_scale", "_zero", "_low", "_high")):
        return "scales and ranges"
    return "biases and norms" if ".bias" in name else "other constants"
