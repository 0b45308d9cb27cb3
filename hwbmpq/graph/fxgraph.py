"""Tracing with torch.fx, and with torch.export, whose program is an fx graph as well."""

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from hwbmpq.graph.macs import MacCounter
from hwbmpq.graph.operations import (
    LAYER_KINDS,
    WEIGHTED_MODULES,
    Operation,
    Source,
    clamps_negatives,
    first_tensor,
    negates,
    plain_name,
)


class _Tracer(fx.Tracer):
    """Stops at torch's own modules, except at those that hide weighted layers inside."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.MultiheadAttention):
            return True  # it uses its children's weights without calling them
        hides_layers = any(isinstance(child, WEIGHTED_MODULES) for child in m.children())
        return super().is_leaf_module(m, module_qualified_name) and not hides_layers


def trace_with_fx(model: nn.Module, example: torch.Tensor) -> list[Operation]:
    """Operations of ``model`` by symbolic tracing."""
    graph = _Tracer().trace(model, concrete_args=_defaults_beyond_first(model))
    return _operations(model, graph, example)


def trace_with_export(model: nn.Module, example: torch.Tensor) -> list[Operation]:
    """Operations of ``model`` from its exported program."""
    with _quiet_logs():  # a failed export logs its whole graph
        program = torch.export.export(model, (example,), strict=False).module(check_guards=False)
    assert isinstance(program, fx.GraphModule)
    return _operations(program, program.graph, example)


@contextmanager
def _quiet_logs() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _defaults_beyond_first(model: nn.Module) -> dict[str, Any]:
    """Optional arguments of ``forward`` fixed at their defaults, so that ``if mask is None`` traces."""
    arguments = list(inspect.signature(model.forward).parameters.values())[1:]
    return {a.name: a.default for a in arguments if a.default is not a.empty}


def _operations(root: nn.Module, graph: fx.Graph, example: torch.Tensor) -> list[Operation]:
    interpreter = _Interpreter(root, graph)
    with interpreter.counter:
        interpreter.run(example)
    return interpreter.operations


class _Interpreter(fx.Interpreter):
    """Runs the graph on tensors without data and writes down each operation."""

    def __init__(self, root: nn.Module, graph: fx.Graph) -> None:
        super().__init__(root, graph=graph)
        self.counter = MacCounter()
        self.operations: list[Operation] = []
        self._parameter_names = {id(p): name for name, p in root.named_parameters(remove_duplicate=True)}
        self._parameter_of_node: dict[fx.Node, str] = {}
        self._alias: dict[fx.Node, str] = {}  # nodes that carry tensors, by the operation they stand for

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        macs = self.counter.read()
        tensor = first_tensor(result)
        if tensor is None or n.op == "output":
            return result
        self._alias[n] = n.name
        if n.op == "placeholder":
            self._write(n, tensor, kind="input", source=Source.INPUT)
        elif n.op == "get_attr":
            self._write_attribute(n, tensor)
        else:
            self._write_call(n, tensor, macs)
        return result

    def _write(self, node: fx.Node, tensor: torch.Tensor, **fields: Any) -> None:
        self.operations.append(Operation(name=node.name, shape=tuple(tensor.shape), **fields))

    def _write_attribute(self, node: fx.Node, tensor: torch.Tensor) -> None:
        attribute = _attribute(self.module, str(node.target))
        name = self._parameter_names.get(id(attribute), "")
        if name:
            self._parameter_of_node[node] = name
        source = Source.PARAMETER if name else Source.CONSTANT
        self._write(node, tensor, kind=source.value, source=source, parameters=(name,) if name else ())

    def _write_call(self, node: fx.Node, tensor: torch.Tensor, macs: int) -> None:
        kind, weight, parameters = _callee(node), "", []
        numbers = tuple(a for a in node.args if isinstance(a, (int, float)) and not isinstance(a, bool))
        named: Mapping[str, object] = node.kwargs
        path = _module_path(node)
        if node.op == "call_module":
            path = str(node.target)
            module = self.module.get_submodule(path)
            kind = _module_kind(module)
            named = vars(module) if kind == "hardtanh" else named
            parameters = [self._parameter_names[id(p)] for p in module.parameters()]
            if isinstance(module, WEIGHTED_MODULES):
                weight = self._parameter_names.get(id(module.weight), "")
        else:
            read = [self._parameter_of_node[n] for n in node.all_input_nodes if n in self._parameter_of_node]
            parameters = read
            if kind in LAYER_KINDS:
                weight = self._parameter_of_node.get(_weight_argument(node), "")
        self._write(
            node,
            tensor,
            kind=kind,
            inputs=tuple(_tensor_inputs(node, self._alias)),
            module=path,
            parameters=tuple(parameters),
            weight=weight,
            macs=macs,
            clamps_negatives=clamps_negatives(kind, numbers, named),
            negates=negates(kind, numbers, named),
        )


def _tensor_inputs(node: fx.Node, alias: dict[fx.Node, str]) -> Iterator[str]:
    for read in node.all_input_nodes:
        if read in alias:
            yield alias[read]


def _callee(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        target = target.overloadpacket
    return plain_name(target if isinstance(target, str) else getattr(target, "__name__", str(target)))


def _module_kind(module: nn.Module) -> str:
    """The class's name; a subclass of a weighted module counts as that module."""
    for weighted in WEIGHTED_MODULES:
        if isinstance(module, weighted):
            return plain_name(weighted.__name__)
    return plain_name(type(module).__name__)


def _weight_argument(node: fx.Node) -> Any:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")


def _module_path(node: fx.Node) -> str:
    """Where the call stands in the module tree; torch.export writes ``conv@1`` for a second call."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    return ".".join(part.partition("@")[0] for part in path.split("."))


def _attribute(root: nn.Module, target: str) -> object:
    owner: object = root
    for part in target.split("."):
        owner = getattr(owner, part)
    return owner
