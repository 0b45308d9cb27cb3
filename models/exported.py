"""A ``torch.export`` program as an ordinary network with layers, norms and dropouts as modules.

An exported program calls ATen operators on bare parameters. Putting modules in their place lets everything
else (the graph pass, quantization, ``train()`` and ``eval()``) treat it like any other network.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from hwbmpq.errors import ModelLoadError
from hwbmpq.models.archives import ArchiveError
from hwbmpq.models.program_archive import read_program
from hwbmpq.models.program_graph import UnsafeProgramError
from hwbmpq.models.program_memory import check_memory

_Arguments = dict[str, Any]  # an operator's arguments by name, parameters in place of nodes
aten = torch.ops.aten
_INSTEAD = "if you trust whoever wrote it, let them send the code of the network: file:PATH.py:FACTORY"


def load_exported(path: Path) -> tuple[nn.Module, tuple[int, ...] | None]:
    """The network of a ``.pt2`` file, and the shape (without batch) of the input it was exported with.

    torch's own reader would run code that a file brings. It is given a copy with nothing but operators on tensors,
    their names and shapes, and plain weights; files with anything else are refused.
    """
    if not path.is_file():
        raise ModelLoadError(f"no file {path}", hint="check the path; it is relative to this folder")
    try:
        copy = read_program(path)
        with _tensors_only(), _quiet_logs():
            program = torch.export.load(copy)
            root = program.module(check_guards=False)
            assert isinstance(root, fx.GraphModule)
            check_memory(root, program.example_inputs)
            return _with_modules(root), _input_shape(program)
    except UnsafeProgramError as error:
        raise ModelLoadError(f"{path} was not loaded: {error}", hint=_INSTEAD) from error
    except Exception as error:  # zip, JSON, version and pickle errors, by what is wrong with the file
        why = str(error) if isinstance(error, ArchiveError) else type(error).__name__
        raise ModelLoadError(
            f"{path} is not a program that torch.export saved ({why})",
            hint="write one with torch.export.save(torch.export.export(model, (example,)), 'model.pt2')",
        ) from error


@contextmanager
def _tensors_only() -> Iterator[None]:
    """``torch.export.load`` asks for full unpickling; this setting of torch's overrides it."""
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """torch logs the traceback of a file that it cannot read; the error says enough."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _input_shape(program: torch.export.ExportedProgram) -> tuple[int, ...] | None:
    inputs = program.example_inputs
    example = inputs[0][0] if inputs and inputs[0] else None
    return tuple(example.shape[1:]) if isinstance(example, torch.Tensor) else None


def _with_modules(root: fx.GraphModule) -> nn.Module:
    places, modules = _build_modules(root)
    for place, module in modules.items():
        _put(root, place, module)
    for node, place in places.items():
        with root.graph.inserting_before(node):
            node.replace_all_uses_with(root.graph.call_module(place, (node.args[0],)))
        root.graph.erase_node(node)
    root.graph.eliminate_dead_code()
    return fx.GraphModule(root, root.graph)  # anew: the program's own object refuses train() and eval()


def _build_modules(root: fx.GraphModule) -> tuple[dict[fx.Node, str], dict[str, nn.Module]]:
    """Where each call of a layer goes, and the modules for those places, all built before any is put there."""
    places: dict[fx.Node, str] = {}
    modules: dict[str, nn.Module] = {}
    calls: dict[str, tuple[Any, ...]] = {}  # by place: the call that its module stands for
    for node in root.graph.nodes:
        build = _BUILDERS.get(node.target) if node.op == "call_function" else None
        place = _place(node) if build else ""
        if build and place:
            call = (node.target, *node.args[1:], *node.kwargs.items())
            if calls.setdefault(place, call) != call:
                place = f"{place}_{node.name}"  # another layer with the same weight
            if place not in modules:
                modules[place] = build(_arguments(root, node))
            places[node] = place
    return places, modules


def _place(node: fx.Node) -> str:
    """Where the module belongs: the path its weight has; a dropout has none and is named after its node."""
    if node.target is aten.dropout.default:
        return node.name
    weight = node.args[1]
    is_parameter = isinstance(weight, fx.Node) and weight.op == "get_attr" and not _has_computed_bias(node)
    owner, _, leaf = str(weight.target).rpartition(".") if is_parameter else ("", "", "")  # type: ignore[union-attr]
    return owner if leaf == "weight" else ""


def _has_computed_bias(node: fx.Node) -> bool:
    """A module's bias is a parameter: a call with another one stays a call."""
    bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
    return isinstance(bias, fx.Node) and bias.op != "get_attr"


def _arguments(root: fx.GraphModule, node: fx.Node) -> _Arguments:
    assert isinstance(node.target, torch._ops.OpOverload)
    values: _Arguments = {}
    for index, argument in enumerate(node.target._schema.arguments):
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        if value is None:
            value = argument.default_value if argument.has_default_value() else None
        if isinstance(value, fx.Node) and value.op == "get_attr":
            value = _attribute(root, str(value.target))
        values[argument.name] = value
    return values


def _attribute(root: nn.Module, target: str) -> Any:
    owner, _, leaf = target.rpartition(".")
    return getattr(root.get_submodule(owner), leaf)


def _put(root: nn.Module, place: str, module: nn.Module) -> None:
    owner, _, leaf = place.rpartition(".")
    setattr(root.get_submodule(owner), leaf, module)


def _convolution(
    module_class: Callable[..., nn.Module], *, transposed: bool = False
) -> Callable[[_Arguments], nn.Module]:
    settings = ["stride", "padding", "dilation", "groups"] + ["output_padding"] * transposed

    def build(arguments: _Arguments) -> nn.Module:
        weight = arguments["weight"]
        channels = (
            weight.shape[1] * arguments["groups"],
            weight.shape[0],
        )  # in and out; swapped if transposed
        with torch.device("meta"):  # the parameters come from the program
            layer = module_class(
                *(reversed(channels) if transposed else channels),
                tuple(weight.shape[2:]),
                bias=arguments["bias"] is not None,
                **{name: _scalar_or_tuple(arguments[name]) for name in settings},
            )
        return _with_parameters(layer, arguments)

    return build


def _scalar_or_tuple(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(value) if len(value) > 1 else value[0]
    return value


def _linear(arguments: _Arguments) -> nn.Module:
    outputs, inputs = arguments["weight"].shape
    with torch.device("meta"):
        layer = nn.Linear(inputs, outputs, bias=arguments["bias"] is not None)
    return _with_parameters(layer, arguments)


def _batch_norm(arguments: _Arguments) -> nn.Module:
    norm = _AnyBatchNorm(
        arguments["weight"].shape[0], eps=arguments["eps"], momentum=arguments["momentum"], device="meta"
    )
    norm.num_batches_tracked = torch.zeros((), dtype=torch.long)
    norm.running_mean, norm.running_var = arguments["running_mean"], arguments["running_var"]
    return _with_parameters(norm, arguments)


class _AnyBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over inputs of any rank, as the ATen operator takes them."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        return


def _dropout(arguments: _Arguments) -> nn.Module:
    return nn.Dropout(arguments["p"])


def _with_parameters(module: nn.Module, arguments: _Arguments) -> nn.Module:
    module.weight = arguments["weight"]
    if arguments["bias"] is not None:
        module.bias = arguments["bias"]
    return module


_BUILDERS: dict[Any, Callable[[_Arguments], nn.Module]] = {
    aten.conv1d.default: _convolution(nn.Conv1d),
    aten.conv2d.default: _convolution(nn.Conv2d),
    aten.conv3d.default: _convolution(nn.Conv3d),
    aten.conv1d.padding: _convolution(nn.Conv1d),
    aten.conv2d.padding: _convolution(nn.Conv2d),
    aten.conv3d.padding: _convolution(nn.Conv3d),
    aten.conv_transpose1d.default: _convolution(nn.ConvTranspose1d, transposed=True),
    aten.conv_transpose2d.input: _convolution(nn.ConvTranspose2d, transposed=True),
    aten.conv_transpose3d.input: _convolution(nn.ConvTranspose3d, transposed=True),
    aten.linear.default: _linear,
    aten.batch_norm.default: _batch_norm,
    aten.dropout.default: _dropout,
}
