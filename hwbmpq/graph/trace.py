"""Follow a forward pass: torch.fx first, then torch.export, then hooks on a real pass."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from hwbmpq.errors import TraceError
from hwbmpq.graph.fxgraph import trace_with_export, trace_with_fx
from hwbmpq.graph.hooks import trace_with_hooks
from hwbmpq.graph.operations import Operation, Trace

_log = logging.getLogger(__name__)

_Tracer = Callable[[nn.Module, torch.Tensor], list[Operation]]


def trace(model: nn.Module, example_input: torch.Tensor) -> Trace:
    """Write down what ``model`` does to one sample of ``example_input``.

    Weights are never copied, and no forward pass is computed unless both torch.fx and torch.export
    fail. A model on the meta device is traced there.
    """
    tracers: dict[str, _Tracer] = {
        "fx": _without_data(trace_with_fx),
        "export": trace_with_export,
        "hooks": trace_with_hooks,
    }
    device = next((p.device for p in model.parameters()), example_input.device)
    example = example_input[:1].to(device)
    notes: list[str] = []
    with _quiet_evaluation(model):
        for name, run in tracers.items():
            try:
                operations = run(model, example)
            except Exception as error:  # a model's forward can raise anything at all
                notes.append(f"{name}: {_one_line(error)}")
                _log.info("tracing with %s failed: %s", name, notes[-1])
                last_error = error
            else:
                return Trace(operations=tuple(operations), traced_by=name, notes=tuple(notes))
    shape = "x".join(map(str, example.shape[1:]))
    raise TraceError(
        f"the network rejects an input of {shape}: {_one_line(last_error)}",
        hint="check the input size (--input CxHxW); --debug shows the whole traceback",
    ) from last_error


def _without_data(run: _Tracer) -> _Tracer:
    """Run on tensors that have shapes but no data; meta models have none to begin with."""

    def traced(model: nn.Module, example: torch.Tensor) -> list[Operation]:
        if example.is_meta:
            return run(model, example)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return run(model, mode.from_tensor(example))

    return traced


@contextmanager
def _quiet_evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module's own mode comes back afterwards.

    Attention's fused kernels are switched off: they would hide its products.
    """
    fused_attention = torch.backends.mha.get_fastpath_enabled()
    modes = {module: module.training for module in model.modules()}
    for module in modes:
        module.training = False
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused_attention)
        for module, mode in modes.items():
            module.training = mode


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
