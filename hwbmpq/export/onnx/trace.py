"""From a quantized network to an ONNX graph in which placeholders stand for the quantizers."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes import common as passes
from torch import Tensor, nn

from hwbmpq.data.inputs import Inputs, ModelInputs, map_tensors, named_tensors
from hwbmpq.errors import HwbmpqError
from hwbmpq.graph.trace import one_line, quiet
from hwbmpq.quant import InputQuantizer, quantized_layers
from hwbmpq.quant.layers import QuantizedLayer, eval_mode, float_weights
from hwbmpq.quant.prepare import input_quantizers
from hwbmpq.quant.weights import QuantizedWeight
from hwbmpq.values import FLOAT_BITS

PLACEHOLDER_DOMAIN = "hwbmpq"
ACTIVATION, WEIGHT, HELD_WEIGHT = "Activation", "Weight", "HeldWeight"
TRACED_OPSET = 21
"""The first with 4-bit and 16-bit quantization; operators that networks use have not changed since."""


@dataclass(frozen=True, kw_only=True)
class TracedGraph:
    """A graph whose ``Activation``, ``Weight`` and ``HeldWeight`` nodes stand for the quantizers of a network.

    ``HeldWeight`` is the weight of a weight-only layer, which any node may read.
    """

    model: ir.Model
    quantizers: tuple[InputQuantizer, ...]
    """An ``Activation`` node has the index in it as ``quantizer``, and the width as ``bits``."""
    has_dynamic_batch: bool

    def copy(self) -> "TracedGraph":
        return replace(self, model=ir.from_proto(ir.to_proto(self.model)))

    def placeholders(self, kind: str) -> list[ir.Node]:
        """The nodes that stand for quantizers of one kind; those of weights have the name of their ``layer``."""
        return [n for n in self.model.graph if (n.domain, n.op_type) == (PLACEHOLDER_DOMAIN, kind)]


def trace_network(
    model: nn.Module, example_input: Inputs, layers: Iterable[str], *, any_batch: bool = True
) -> TracedGraph:
    """Trace the network with torch's exporter; it is not changed. ``layers`` are those with integer weights.

    Without ``any_batch``, the graph takes one input.
    """
    modules = dict(quantized_layers(model))
    quantizers = tuple(input_quantizers(modules.values()))
    with (
        _placeholders(quantizers, {name: modules[name] for name in layers}),
        eval_mode(model),
        torch.no_grad(),
    ):
        program, has_dynamic_batch = _export(model, ModelInputs.of(example_input), any_batch)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(program)
    traced = TracedGraph(model=program, quantizers=quantizers, has_dynamic_batch=has_dynamic_batch)
    for node in [*traced.placeholders(WEIGHT), *traced.placeholders(HELD_WEIGHT)]:
        node.replace_input_with(0, None)  # its values come from the stored weights
    # Readers of one tensor at one width get one quantizer.
    passes.CommonSubexpressionEliminationPass()(program)
    passes.RemoveUnusedNodesPass()(program)
    return traced


@contextmanager
def _placeholders(
    quantizers: tuple[InputQuantizer, ...], layers: Mapping[str, QuantizedLayer | QuantizedWeight]
) -> Iterator[None]:
    """Inside, quantizers leave placeholders in a traced graph instead of rounding."""
    with ExitStack() as stack:
        stack.enter_context(float_weights(layers.values()))
        for index, quantizer in enumerate(quantizers):
            stack.enter_context(quantizer.register_forward_pre_hook(partial(_activation, index)))
        for name, layer in layers.items():
            # Its input does not matter: any tensor that the exporter knows will do.
            if isinstance(layer, QuantizedWeight):
                kind, anything = HELD_WEIGHT, layer.weight
            else:
                kind, anything = WEIGHT, next(layer.parameters(recurse=False))
            hook = partial(_weight, kind, name, anything)
            stack.enter_context(layer.weight_quantizer.register_forward_hook(hook))
        yield


def _activation(index: int, _: nn.Module, args: tuple[Tensor, int]) -> tuple[Tensor, int]:
    values, bits = args
    if bits == FLOAT_BITS:
        return args
    return _placeholder(ACTIVATION, values, like=values, quantizer=index, bits=bits), FLOAT_BITS


def _weight(kind: str, name: str, anything: Tensor, _: nn.Module, args: object, weight: Tensor) -> Tensor:
    return _placeholder(kind, anything, like=weight, layer=name)


def _placeholder(kind: str, value: Tensor, *, like: Tensor, **attributes: Any) -> Tensor:
    return torch.onnx.ops.symbolic(
        f"{PLACEHOLDER_DOMAIN}::{kind}", (value,), attributes, dtype=like.dtype, shape=like.shape, version=1
    )


def input_names(model: nn.Module, inputs: Inputs) -> tuple[str, ...]:
    """What a graph of the network calls its inputs: ``input`` if there is one, else as ``forward`` calls them."""
    given = ModelInputs.of(inputs)
    if len(given.tensors) == 1:
        return ("input",)
    return tuple(
        name for argument, value in given.bound(model).items() for name, _ in named_tensors(argument, value)
    )


def _export(model: nn.Module, example: ModelInputs, any_batch: bool) -> tuple[ir.Model, bool]:
    """The graph, and whether it takes any batch size; some networks fix it."""
    if any_batch:
        count, axis = len(example), {0: torch.export.Dim("batch")}

        def batched(tensor: Tensor) -> bool:
            return bool(tensor.dim()) and len(tensor) == count

        # A batch of one would be taken for a constant.
        two = example.map(lambda tensor: torch.cat([tensor[:1]] * 2) if batched(tensor) else tensor)
        axes = map_tensors(example.bound(model), lambda tensor: axis if batched(tensor) else None)
        with suppress(Exception):  # of many types; the second try reports what is wrong
            program = _program(model, two, _only_axes(axes))
            if not _batch_is_fixed(program):
                return program, True
    try:
        return _program(model, example.part(slice(1)), None), False
    except Exception as error:
        raise HwbmpqError(
            f"torch's ONNX exporter cannot follow the network: {one_line(_innermost(error))}",
            hint="the packed model.safetensors needs no graph: hwbmpq.load reads it; --debug shows the whole traceback",
        ) from error


def _only_axes(axes: Any) -> Any:
    """For torch.export: what is not a tensor has no axes."""
    if isinstance(axes, (tuple, list)):
        return type(axes)(map(_only_axes, axes))
    if isinstance(axes, dict):
        return axes if 0 in axes else {name: _only_axes(value) for name, value in axes.items()}
    return None


def _batch_is_fixed(model: ir.Model) -> bool:
    """A network may loop over its batch: the exporter then silently fixes the size."""
    shape = model.graph.inputs[0].shape
    return shape is not None and isinstance(shape[0], int)


def _program(model: nn.Module, example: ModelInputs, axes: dict[str, Any] | None) -> ir.Model:
    order = {name: place for place, name in enumerate(example.bound(model))}
    with quiet():
        program = torch.onnx.export(
            model,
            example.args,
            kwargs=dict(sorted(example.kwargs.items(), key=lambda item: order.get(item[0], 0))) or None,
            dynamo=True,
            optimize=True,
            opset_version=TRACED_OPSET,
            input_names=list(input_names(model, example)),
            dynamic_shapes=axes,
            verbose=False,
        )
    assert program is not None
    return program.model


def _innermost(error: BaseException) -> BaseException:
    """The exporter wraps the cause in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
