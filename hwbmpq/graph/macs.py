"""Multiply-accumulates of whatever runs, counted as ATen sees it."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class MacCounter(TorchDispatchMode):
    """Adds up the MACs of matrix products and convolutions while it is active.

    ``read`` returns the count since the last ``read``, so one counter serves a whole forward pass.
    Works on fake and meta tensors, where nothing is computed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._macs = 0

    def read(self) -> int:
        macs, self._macs = self._macs, 0
        return macs

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default:
            return NotImplemented  # a question, not a computation: the fake tensor answers it itself
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if packet not in flop_registry:
            # A composite (scaled dot-product attention on CPU, say) is counted by its parts.
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=result)
            self._macs += flops // 2  # one MAC is one multiplication and one addition
        return result
