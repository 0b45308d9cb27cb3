"""From a quantized network to an ONNX graph in which quantizers are still marks, not yet arithmetic."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes import common as passes
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.graph.trace import one_line, quiet
from hwbmpq.quant import InputQuantizer, quantized_layers
from hwbmpq.quant.modes import eval_mode, float_weights
from hwbmpq.values import FLOAT_BITS

MARK_DOMAIN = "hwbmpq"
ACTIVATION, WEIGHT = "Activation", "Weight"
TRACED_OPSET = 21
"""The first with 4-bit and 16-bit quantization; nothing that networks use has changed since."""


@dataclass(frozen=True, kw_only=True)
class MarkedGraph:
    """A graph whose ``Activation`` and ``Weight`` nodes stand for the quantizers of a network."""

    model: ir.Model
    quantizers: tuple[InputQuantizer, ...]
    """An ``Activation`` node has the position in it as ``quantizer``, and the width as ``bits``."""
    layers: tuple[str, ...]
    """A ``Weight`` node has the position in it as ``layer``."""
    has_dynamic_batch: bool

    def copy(self) -> "MarkedGraph":
        return replace(self, model=ir.from_proto(ir.to_proto(self.model)))


def trace_marked(
    model: nn.Module,
    example_input: Tensor,
    layers: Iterable[str],
    *,
    any_batch: bool = True,
) -> MarkedGraph:
    """Follow the network by torch's own exporter; it is left as it was. The weights of ``layers`` are marked.

    Without ``any_batch``, the graph takes one input.
    """
    quantizers = tuple(
        dict.fromkeys(layer.input_quantizer for _, layer in quantized_layers(model))  # each once, in order
    )
    layers = tuple(layers)
    with _marking(model, quantizers, layers), eval_mode(model), torch.no_grad():
        program, has_dynamic_batch = _export(model, example_input, any_batch)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(program)
    _drop_float_weights(program)
    # Readers of one tensor at one width get one quantizer.
    passes.CommonSubexpressionEliminationPass()(program)
    passes.RemoveUnusedNodesPass()(program)
    return MarkedGraph(
        model=program, quantizers=quantizers, layers=layers, has_dynamic_batch=has_dynamic_batch
    )


@contextmanager
def _marking(
    model: nn.Module, quantizers: tuple[InputQuantizer, ...], layers: tuple[str, ...]
) -> Iterator[None]:
    """Inside, quantizers leave marks in a traced graph instead of rounding."""
    modules = dict(quantized_layers(model))
    marked = [modules[name] for name in layers]
    with ExitStack() as stack:
        stack.enter_context(float_weights(marked))
        for index, quantizer in enumerate(quantizers):
            stack.enter_context(quantizer.register_forward_pre_hook(_activation_mark(index)))
        for index, layer in enumerate(marked):
            stack.enter_context(layer.weight_quantizer.register_forward_hook(_weight_mark(index, layer)))
        yield


def _activation_mark(index: int) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    def mark(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        values, bits = args
        if bits == FLOAT_BITS:
            return args
        return _symbol(ACTIVATION, values, like=values, quantizer=index, bits=bits), FLOAT_BITS

    return mark


def _weight_mark(index: int, layer: nn.Module) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    parameter = next(layer.parameters(recurse=False))  # what it is does not matter: the mark takes its place

    def mark(_: nn.Module, __: object, weight: Tensor) -> Tensor:
        return _symbol(WEIGHT, parameter, like=weight, layer=index)

    return mark


def _symbol(kind: str, value: Tensor, *, like: Tensor, **attributes: int) -> Tensor:
    return torch.onnx.ops.symbolic(
        f"{MARK_DOMAIN}::{kind}", (value,), attributes, dtype=like.dtype, shape=like.shape, version=1
    )


def _export(model: nn.Module, example_input: Tensor, any_batch: bool) -> tuple[ir.Model, bool]:
    """The graph, and whether it takes any batch size; some networks fix theirs."""
    if any_batch:
        example = torch.cat([example_input[:1]] * 2)  # a batch of one would be taken for a constant
        with suppress(Exception):  # of many types; the second try tells what is wrong
            program = _program(model, example, {0: torch.export.Dim("batch")})
            if not _batch_is_fixed(program):
                return program, True
    try:
        return _program(model, example_input[:1], None), False
    except Exception as error:
        raise HwbmpqError(
            f"torch's ONNX exporter cannot follow the network: {one_line(_innermost(error))}",
            hint="the packed model.safetensors needs no graph: hwbmpq.load reads it; --debug shows the whole traceback",
        ) from error


def _batch_is_fixed(model: ir.Model) -> bool:
    """A network that goes over its batch in a loop: the exporter fixes the size without a word."""
    shape = model.graph.inputs[0].shape
    return shape is not None and isinstance(shape[0], int)


def _program(model: nn.Module, example: Tensor, batch_axis: dict[int, object] | None) -> ir.Model:
    with quiet():
        program = torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            optimize=True,
            opset_version=TRACED_OPSET,
            input_names=["input"],
            dynamic_shapes=None if batch_axis is None else (batch_axis,),
            verbose=False,
        )
    assert program is not None
    return program.model


def _drop_float_weights(model: ir.Model) -> None:
    """A mark says whose weight it is; the numbers come from elsewhere."""
    for node in model.graph:
        if (node.domain, node.op_type) == (MARK_DOMAIN, WEIGHT):
            node.replace_input_with(0, None)


def _innermost(error: BaseException) -> BaseException:
    """The exporter wraps the cause in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
