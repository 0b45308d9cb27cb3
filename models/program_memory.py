"""How much memory a program takes, found out without taking it."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves

from hwbmpq.models.program_graph import UnsafeProgramError

MOST_BYTES = 1 << 31


def check_memory(root: fx.GraphModule, inputs: Any) -> None:
    """``UnsafeProgramError`` if running a network on its example would take more than ``MOST_BYTES`` at once."""
    if inputs is None:
        raise UnsafeProgramError("it has no example input")
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
    leaves = (mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(inputs))
    with mode, torch.no_grad():
        _Follower(root).run(*leaves, enable_io_processing=False)


class _Follower(fx.Interpreter):
    """Runs a graph on tensors without content, and counts the bytes that are in use."""

    def __init__(self, root: fx.GraphModule) -> None:
        super().__init__(root)
        self.extra_traceback = False  # which would be added to the message
        self._users: Counter[int] = Counter()  # by storage: views share one
        self._bytes = 0

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        for storage in _storages(result):
            self._bytes += 0 if self._users[storage._cdata] else storage.nbytes()
            self._users[storage._cdata] += 1
        if self._bytes > MOST_BYTES:
            raise UnsafeProgramError(f"it would take more than {MOST_BYTES >> 30} GiB of memory to run")
        for last_used in self.user_to_last_uses.get(n, ()):
            self._forget(self.env[last_used])
        return result

    def _forget(self, value: Any) -> None:
        for storage in _storages(value):
            self._users[storage._cdata] -= 1
            self._bytes -= 0 if self._users[storage._cdata] else storage.nbytes()


def _storages(value: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
