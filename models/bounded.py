"""Building a network within a number of bytes: a file that somebody sent names networks of any size."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hwbmpq.errors import ModelLoadError

_BYTES_OF_A_VALUE = 8
_SPARE_BYTES = 1 << 26
"""For masks, tables of positions and the like, which are not stored."""


def bytes_to_build(values: int) -> int:
    """What a network may take whose weights are said to have so many values."""
    return values * _BYTES_OF_A_VALUE + _SPARE_BYTES


class BoundedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, tensors can be made anew up to ``most_bytes`` in all; then ``ModelLoadError``.

    Counted are the functions that take sizes (``empty``, ``zeros``, ``arange``): every parameter begins with one.
    """

    def __init__(self, most_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = self._left = most_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _makes_tensors(func) and torch.device(kwargs.get("device") or "cpu").type != "meta":
            made = func(*args, **{**kwargs, "device": "meta", "pin_memory": None})  # no memory is taken yet
            self._left -= made.nbytes
            if self._left < 0:
                raise ModelLoadError(f"it would take more than {self._most >> 20} MiB to build")
        return func(*args, **kwargs)


def _makes_tensors(func: Any) -> bool:
    arguments = {argument.name: str(argument.type) for argument in func._schema.arguments}
    return "device" in arguments and not any("Tensor" in kind for kind in arguments.values())
