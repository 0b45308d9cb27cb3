"""Tracing by watching one real forward pass: works whatever the control flow, for this one input."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hwbmpq.graph.macs import MacCounter
from hwbmpq.graph.operations import (
    Operation,
    TensorSource,
    call_facts,
    plain_name,
    storage_of,
    tensors,
)


def trace_with_hooks(model: nn.Module, example: torch.Tensor) -> list[Operation]:
    """Operations of ``model`` as they run: hooks tell the module, a function mode the tensors."""
    recorder = _Recorder(model)
    recorder.enter(example, kind="input", source=TensorSource.INPUT)
    with _module_stack(model, recorder.stack), recorder.counter, recorder:
        returned = model(example)
    names = {recorder.name_of(tensor) for tensor in tensors(returned)}
    return [replace(operation, is_output=operation.name in names) for operation in recorder.operations]


@contextmanager
def _module_stack(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep in ``stack`` the path of the module that is running."""

    def enter(path: str) -> Callable[..., None]:
        return lambda *_: stack.append(path)

    def leave(*_: Any) -> None:
        stack.pop()

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(path)))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Recorder(TorchFunctionMode):
    """Writes down every torch function that returns tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.stack: list[str] = []
        self.counter = MacCounter()
        self._parameter_names = {id(p): name for name, p in model.named_parameters(remove_duplicate=True)}
        # By position in ``operations``: what made a tensor, and what last changed a storage in place.
        self._made_at: Any = WeakIdKeyDictionary()
        self._changed_at: dict[int, int] = {}

    def enter(self, tensor: torch.Tensor, **fields: Any) -> str:
        """Write down an operation whose result is ``tensor``; its name."""
        name = f"{fields['kind']}_{len(self.operations)}"
        self.operations.append(Operation(name=name, shape=tuple(tensor.shape), **fields))
        self._made_at[tensor] = len(self.operations) - 1
        return name

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        read = list(tensors((args, kwargs)))
        inputs = [self.name_of(tensor) for tensor in read]  # before an in-place call takes them over
        versions = [tensor._version for tensor in read]
        self.counter.read()
        result = func(*args, **kwargs)
        macs = self.counter.read()
        changed = [t for t, version in zip(read, versions, strict=True) if t._version != version]
        made = list(tensors(result)) or changed
        if made and not (_is_attribute(func) and made[0] in self._made_at):
            facts = call_facts(
                plain_name(getattr(func, "__name__", str(func))),
                self.stack[-1] if self.stack else "",
                args,
                kwargs,
                parameters=map(self._parameter_name, read),
                name_of=self._parameter_name,
            )
            name = self.enter(made[0], **facts, inputs=tuple(inputs), macs=macs)
            self._changed_at.update({storage_of(t): len(self.operations) - 1 for t in changed})
            if len(made) > 1:
                for part in made:  # the parts of a split are tensors of their own
                    self.enter(part, kind="getitem", inputs=(name,))
        return result

    def _parameter_name(self, tensor: object) -> str:
        return self._parameter_names.get(id(tensor), "")

    def name_of(self, tensor: torch.Tensor) -> str:
        """The operation that made a tensor, or last changed it."""
        if tensor in self._made_at:
            made_at: int = self._made_at[tensor]
            changed_at = self._changed_at.get(storage_of(tensor), 0)
            return self.operations[max(made_at, changed_at)].name
        parameter = self._parameter_name(tensor)
        source = TensorSource.PARAMETER if parameter else TensorSource.CONSTANT
        return self.enter(
            tensor, kind=source.value, source=source, parameters=(parameter,) if parameter else ()
        )


def _is_attribute(func: Any) -> bool:
    return getattr(func, "__name__", "") == "__get__"
