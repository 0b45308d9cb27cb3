"""Follow a forward pass: torch.fx first, then torch.export, then hooks on a real pass."""

import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from hwbmpq.data.inputs import Inputs, ModelInputs, first_tensor
from hwbmpq.deprecated import renamed_arguments
from hwbmpq.errors import TraceError
from hwbmpq.graph.hooks import trace_with_hooks
from hwbmpq.graph.operations import (
    WEIGHTED_MODULES,
    Operation,
    Recorder,
    TensorSource,
    Trace,
    call_facts,
    clamps_negatives,
    plain_name,
)
from hwbmpq.quant.layers import as_float

_log = logging.getLogger(__name__)


class _Tracer(fx.Tracer):
    """Stops at torch's own modules, except at those that hide weighted layers inside."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.MultiheadAttention):
            return True  # it uses its children's weights without calling them
        hides_layers = any(isinstance(inner, WEIGHTED_MODULES) for inner in m.modules() if inner is not m)
        return super().is_leaf_module(m, module_qualified_name) and not hides_layers


def trace_with_fx(model: nn.Module, inputs: Inputs) -> list[Operation]:
    """Operations of ``model`` by symbolic tracing."""
    given = ModelInputs.of(inputs).bound(model)
    # What is not given is fixed at its default, so that ``if mask is None`` traces.
    parameters = list(inspect.signature(model.forward).parameters.values())
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in given}
    graph = _Tracer().trace(model, concrete_args=defaults)
    # Placeholders stand in the order of the signature, for what is fixed too.
    values = [{**defaults, **given}[p.name] for p in parameters if p.name in given or p.name in defaults]
    return _operations(model, graph, ModelInputs(args=tuple(values)))


def trace_with_export(model: nn.Module, inputs: Inputs) -> list[Operation]:
    """Operations of ``model`` from its exported program."""
    example = ModelInputs.of(inputs)
    kwargs = dict(example.kwargs)
    program = torch.export.export(model, example.args, kwargs, strict=False).module(check_guards=False)
    assert isinstance(program, fx.GraphModule)
    return _operations(program, program.graph, ModelInputs(args=(*example.args, *kwargs.values())))


def _operations(root: nn.Module, graph: fx.Graph, example: ModelInputs) -> list[Operation]:
    """Run the graph on tensors that have shapes but no data; meta models have none to begin with."""
    interpreter = _Interpreter(root, graph)
    is_meta = any(tensor.is_meta for tensor in example.tensors)
    with nullcontext() if is_meta else FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = example if mode is None else example.map(mode.from_tensor)
        with interpreter.recorder:
            interpreter.run(*given.args)
    return interpreter.recorder.finish(interpreter.returned)


class _Interpreter(fx.Interpreter):
    """Runs the graph and records each operation."""

    def __init__(self, root: nn.Module, graph: fx.Graph) -> None:
        super().__init__(root, graph=graph)
        self.recorder = Recorder(root)
        self.returned: list[str] = []
        self._parameter_of: dict[fx.Node, str] = {}
        self._made_at: dict[fx.Node, int] = {}  # position of the operation that made a node's tensor

    def run_node(self, n: fx.Node) -> Any:
        read = [tensor for node in n.all_input_nodes if (tensor := first_tensor(self.env[node])) is not None]
        result, changed, macs = self.recorder.run(partial(super().run_node, n), read)
        if n.op == "output":
            self.returned = list(self._inputs(n))
            return result
        tensor = first_tensor(result) if result is not None or not changed else changed[0]
        if tensor is not None:
            fields = self._fields(n, tensor)
            self._made_at[n] = self.recorder.add(n.name, tensor, changed=changed, macs=macs, **fields)
        return result

    def _inputs(self, node: fx.Node) -> Iterator[str]:
        """What it reads: the operations that made the tensors, or changed them (or a view) in place later."""
        for read in node.all_input_nodes:
            if read in self._made_at and (tensor := first_tensor(self.env[read])) is not None:
                yield self.recorder.latest(tensor, self._made_at[read])

    def _fields(self, node: fx.Node, tensor: torch.Tensor) -> dict[str, Any]:
        """The fields of the node's ``Operation``."""
        if node.op == "placeholder":
            return {"kind": "input", "source": TensorSource.INPUT}
        if node.op == "get_attr":
            self._parameter_of[node] = self.recorder.parameter_name(tensor)
            return self.recorder.attribute_fields(tensor)
        inputs = tuple(self._inputs(node))
        if node.op == "call_module":
            return {**self._facts_of_module(str(node.target)), "inputs": inputs}
        facts = call_facts(
            _callee(node),
            _module_path(node),
            node.args,
            node.kwargs,
            reads=node.all_input_nodes,
            name_of=lambda read: self._parameter_of.get(read, ""),
        )
        return {**facts, "inputs": inputs}

    def _facts_of_module(self, path: str) -> dict[str, Any]:
        module = self.module.get_submodule(path)
        name_of = self.recorder.parameter_name
        weighted = next((kind for kind in WEIGHTED_MODULES if isinstance(module, kind)), None)
        kind = plain_name(
            (weighted or type(module)).__name__
        )  # a subclass of a weighted module counts as that
        weight = module._parameters.get("weight") if weighted else None
        return {
            "kind": kind,
            "module": path,
            "parameters": tuple(filter(None, map(name_of, module.parameters()))),
            "weight": name_of(weight),
            "clamps_negatives": clamps_negatives(kind, (), vars(module)),
        }


def _callee(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        target = target.overloadpacket
    return plain_name(target if isinstance(target, str) else getattr(target, "__name__", str(target)))


def _module_path(node: fx.Node) -> str:
    """Where the call stands in the module tree; torch.export writes ``conv@1`` for a second call."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    return ".".join(part.partition("@")[0] for part in path.split("."))


_TRACERS: dict[str, Callable[[nn.Module, Inputs], list[Operation]]] = {
    "fx": trace_with_fx,
    "export": trace_with_export,
    "hooks": trace_with_hooks,
}


@renamed_arguments(example_input="example_args")
def trace(model: nn.Module, example_args: Inputs, example_kwargs: Mapping[str, Any] | None = None) -> Trace:
    """Record what ``model`` does to one sample of its example inputs: ``model(*example_args, **example_kwargs)``.

    Weights are never copied, and no forward pass is computed unless both torch.fx and torch.export
    fail. A model on the meta device is traced there. A quantized model is traced as the float network it
    was. The model is left as it was found.
    """
    example = ModelInputs.of(example_args, example_kwargs).part(slice(1))
    device = next((p.device for p in model.parameters()), example.tensors[0].device)
    example = example.on(device)
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
    raise TraceError(
        f"the network does not run on an input of {example.shape_text}: {one_line(last_error)}",
        hint="if the size is wrong, give another (--input CxHxW); --debug shows the whole traceback",
    ) from last_error


@contextmanager
def _plain_evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation without gradients, logs, warnings, and fused kernels that would hide products."""
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
