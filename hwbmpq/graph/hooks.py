"""Tracing by watching one real forward pass: works whatever the control flow, for this one input."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hwbmpq.data.inputs import Inputs, ModelInputs, tensors
from hwbmpq.graph.operations import Operation, Recorder, TensorSource, call_facts, plain_name


def trace_with_hooks(model: nn.Module, inputs: Inputs) -> list[Operation]:
    """Operations of ``model`` as they run: hooks tell the module, a function mode the tensors."""
    example = ModelInputs.of(inputs)
    watch = _FunctionWatch(Recorder(model))
    for tensor in example.tensors:
        watch.add(tensor, kind="input", source=TensorSource.INPUT)
    with _module_stack(model, watch.stack), watch.recorder, watch:
        returned = example.call(model)
    return watch.recorder.finish([watch.name_of(tensor) for tensor in tensors(returned)])


@contextmanager
def _module_stack(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep in ``stack`` the path of the module that is running."""

    def enter(path: str) -> Callable[..., None]:
        return lambda *_: stack.append(path)

    def leave(*_: Any) -> None:
        stack.pop()

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(enter(path)).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


class _FunctionWatch(TorchFunctionMode):
    """Records every torch function that returns tensors."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.stack = [""]
        self._made_at: Any = WeakIdKeyDictionary()  # tensor -> position of the operation that made it

    def add(self, tensor: torch.Tensor, **fields: Any) -> str:
        """Record an operation whose result is ``tensor``; its name."""
        name = f"{fields['kind']}_{len(self.recorder.operations)}"
        self._made_at[tensor] = self.recorder.add(name, tensor, **fields)
        return name

    def name_of(self, tensor: torch.Tensor) -> str:
        """The operation that made a tensor, or last changed it."""
        if tensor in self._made_at:
            return self.recorder.latest(tensor, self._made_at[tensor])
        return self.add(tensor, **self.recorder.attribute_fields(tensor))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        read = list(tensors((args, kwargs)))
        inputs = tuple(map(self.name_of, read))  # before an in-place call takes them over
        result, changed, macs = self.recorder.run(partial(func, *args, **kwargs), read)
        made = list(tensors(result)) or changed
        callee = getattr(func, "__name__", str(func))
        if not made or (callee == "__get__" and made[0] in self._made_at):
            return result
        name_of = self.recorder.parameter_name
        facts = call_facts(plain_name(callee), self.stack[-1], args, kwargs, reads=read, name_of=name_of)
        name = self.add(made[0], changed=changed, **facts, inputs=inputs, macs=macs)
        if len(made) > 1:
            for part in made:  # the parts of a split are tensors of their own
                self.add(part, kind="getitem", inputs=(name,))
        return result
