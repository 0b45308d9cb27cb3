"""Tracing with torch.fx, and with torch.export, whose program is an fx graph as well."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hwbmpq.graph.macs import MacCounter
from hwbmpq.graph.operations import (
    WEIGHTED_MODULES,
    Operation,
    TensorSource,
    call_facts,
    clamps_negatives,
    first_tensor,
    plain_name,
    storage_of,
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
    program = torch.export.export(model, (example,), strict=False).module(check_guards=False)
    assert isinstance(program, fx.GraphModule)
    return _operations(program, program.graph, example)


def _defaults_beyond_first(model: nn.Module) -> dict[str, Any]:
    """Optional arguments of ``forward`` fixed at their defaults, so that ``if mask is None`` traces."""
    arguments = list(inspect.signature(model.forward).parameters.values())[1:]
    return {a.name: a.default for a in arguments if a.default is not a.empty}


def _operations(root: nn.Module, graph: fx.Graph, example: torch.Tensor) -> list[Operation]:
    """Run the graph on tensors that have shapes but no data; meta models have none to begin with."""
    if not example.is_meta:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return _interpret(root, graph, mode.from_tensor(example))
    return _interpret(root, graph, example)


def _interpret(root: nn.Module, graph: fx.Graph, example: torch.Tensor) -> list[Operation]:
    interpreter = _Interpreter(root, graph)
    with interpreter.counter:
        interpreter.run(example)
    return interpreter.operations


class _Interpreter(fx.Interpreter):
    """Runs the graph and writes down each operation."""

    def __init__(self, root: nn.Module, graph: fx.Graph) -> None:
        super().__init__(root, graph=graph)
        self.counter = MacCounter()
        self.operations: list[Operation] = []
        self._parameter_names = {id(p): name for name, p in root.named_parameters(remove_duplicate=True)}
        self._parameter_of: dict[fx.Node, str] = {}
        # By position in ``operations``: what made a node's tensor, and what last changed a storage in place.
        self._made_at: dict[fx.Node, int] = {}
        self._changed_at: dict[int, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        read = [tensor for node in n.all_input_nodes if (tensor := first_tensor(self.env[node])) is not None]
        versions = [tensor._version for tensor in read]
        result = super().run_node(n)
        macs = self.counter.read()
        changed = [t for t, version in zip(read, versions, strict=True) if t._version != version]
        tensor = first_tensor(result) if result is not None or not changed else changed[0]
        if n.op == "output":
            self._mark_outputs(n)
        if tensor is None or n.op == "output":
            return result
        if n.op == "placeholder":
            self._write(n, tensor, kind="input", source=TensorSource.INPUT)
        elif n.op == "get_attr":
            self._write_attribute(n, tensor)
        else:
            self._write(n, tensor, **self._facts(n), macs=macs)
        self._made_at[n] = len(self.operations) - 1
        self._changed_at.update({storage_of(t): len(self.operations) - 1 for t in changed})
        return result

    def _mark_outputs(self, node: fx.Node) -> None:
        returned = set(self._inputs(node))
        self.operations = [
            replace(operation, is_output=operation.name in returned) for operation in self.operations
        ]

    def _inputs(self, node: fx.Node) -> Iterator[str]:
        """What it reads: the operations that made the tensors, or changed them (or a view) in place later."""
        for read in node.all_input_nodes:
            if read in self._made_at and (tensor := first_tensor(self.env[read])) is not None:
                changed_at = self._changed_at.get(storage_of(tensor), 0)
                yield self.operations[max(self._made_at[read], changed_at)].name

    def _write(self, node: fx.Node, tensor: torch.Tensor, **fields: Any) -> None:
        self.operations.append(Operation(name=node.name, shape=tuple(tensor.shape), **fields))

    def _write_attribute(self, node: fx.Node, tensor: torch.Tensor) -> None:
        name = self._parameter_names.get(id(_attribute(self.module, str(node.target))), "")
        if name:
            self._parameter_of[node] = name
        source = TensorSource.PARAMETER if name else TensorSource.CONSTANT
        self._write(node, tensor, kind=source.value, source=source, parameters=(name,) if name else ())

    def _facts(self, node: fx.Node) -> dict[str, Any]:
        """What an ``Operation`` says of a call."""
        if node.op == "call_module":
            facts = self._facts_of_module(str(node.target))
        else:
            facts = call_facts(
                _callee(node),
                _module_path(node),
                node.args,
                node.kwargs,
                parameters=map(self._parameter_name, node.all_input_nodes),
                name_of=self._parameter_name,
            )
        return {**facts, "inputs": tuple(self._inputs(node))}

    def _parameter_name(self, node: fx.Node) -> str:
        return self._parameter_of.get(node, "")

    def _facts_of_module(self, path: str) -> dict[str, Any]:
        module = self.module.get_submodule(path)
        kind = _module_kind(module)
        weight = module._parameters.get("weight") if isinstance(module, WEIGHTED_MODULES) else None
        return {
            "kind": kind,
            "module": path,
            "parameters": tuple(
                self._parameter_names[id(p)] for p in module.parameters() if id(p) in self._parameter_names
            ),
            "weight": self._parameter_names.get(id(weight), ""),
            "clamps_negatives": clamps_negatives(kind, (), vars(module)),
        }


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
