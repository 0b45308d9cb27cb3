"""Follow a forward pass: torch.fx first, then torch.export, then hooks on a real pass."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hwbmpq.errors import TraceError
from hwbmpq.graph.fxgraph import trace_with_export, trace_with_fx
from hwbmpq.graph.hooks import trace_with_hooks
from hwbmpq.graph.operations import Operation, Trace
from hwbmpq.quant.layers import as_float

_log = logging.getLogger(__name__)

_TRACERS: dict[str, Callable[[nn.Module, torch.Tensor], list[Operation]]] = {
    "fx": trace_with_fx,
    "export": trace_with_export,
    "hooks": trace_with_hooks,
}


def trace(model: nn.Module, example_input: torch.Tensor) -> Trace:
    """Write down what ``model`` does to one sample of ``example_input``.

    Weights are never copied, and no forward pass is computed unless both torch.fx and torch.export
    fail. A model on the meta device is traced there. A quantized model is traced as the float network it
    was. The model is left as it was found.
    """
    device = next((p.device for p in model.parameters()), example_input.device)
    example = example_input[:1].to(device)
    notes: list[str] = []
    for name, run in _TRACERS.items():
        try:
            with _undisturbed(model), _plain_evaluation(model):
                operations = run(model, example)
        except Exception as error:  # a model's forward can raise anything at all
            notes.append(f"{name}: {one_line(error)}")
            last_error = error
        else:
            return Trace(operations=tuple(operations), traced_by=name, notes=tuple(notes))
        _log.info("tracing with %s", notes[-1])
    shape = "x".join(map(str, example.shape[1:]))
    raise TraceError(
        f"the network does not run on an input of {shape}: {one_line(last_error)}",
        hint="if the size is wrong, give another (--input CxHxW); --debug shows the whole traceback",
    ) from last_error


@contextmanager
def _plain_evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation without gradients, logs, warnings, and kernels that would hide products inside."""
    fused_attention = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fused_attention)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)  # it has one operator for a whole LSTM
        stack.enter_context(quiet())
        stack.enter_context(torch.no_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(as_float(model))
        for module in model.modules():
            module.training = False
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, nothing is printed, logged or warned about: a failed export logs its whole graph, and prints it."""
    disabled_logs = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        logging.disable(disabled_logs)


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Undo what a traced forward pass leaves in the modules: caches of tensors without data, modes."""
    containers: list[tuple[Any, Any]] = []  # each with a copy of what it held
    for module in model.modules():
        attributes = vars(module)
        found = [attributes, *(value for value in attributes.values() if isinstance(value, (dict, list)))]
        containers.extend((container, container.copy()) for container in found)
    try:
        yield
    finally:
        for container, content in containers:
            container.clear()
            container.update(content) if isinstance(container, dict) else container.extend(content)


def one_line(error: BaseException) -> str:
    """Its type and the beginning of its text, for messages."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
