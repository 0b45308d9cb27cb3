"""What a layer multiplies its weight with, seen where it happens: padding and all is done by then."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hwbmpq.quant.layers import QuantizedLayer

_PRODUCTS = frozenset({F.linear, F.conv1d, F.conv2d, F.conv3d})
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


@dataclass(frozen=True, kw_only=True)
class CapturedInput:
    """One multiplication with a layer's weight."""

    layer: QuantizedLayer
    input: Tensor
    kernel: tuple[int, ...]
    """Empty for linear layers."""
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1

    def columns(self, most: int) -> Tensor:
        """(groups, inputs, n): what each output is made of, the weight being (groups, rows, n).

        At most ``most`` of them, but one position of each image; the same ones for equal shapes.
        """
        if not self.kernel:
            rows = self.input.reshape(-1, self.input.shape[-1])
            return rows[_some(len(rows), most)][None]
        values, sizes = self._padded(), self._output_sizes()
        batch, positions = len(values), _some(prod(sizes), max(1, most // len(values)))
        pieces = [values[window] for window in self._windows(torch.unravel_index(positions, sizes))]
        unfolded = torch.stack(pieces, 2)  # (batch, channels, kernel, positions)
        grouped = unfolded.reshape(batch, self.groups, -1, len(positions))
        return grouped.permute(1, 0, 3, 2).flatten(1, 2)

    def _windows(self, positions: Sequence[Tensor]) -> Iterator[tuple[slice | Tensor, ...]]:
        """For each tap of the kernel, what it meets of the padded input at some positions of the output."""
        for taps in itertools.product(*map(range, self.kernel)):
            steps = zip(positions, self._each(self.stride), taps, self._each(self.dilation), strict=True)
            yield slice(None), slice(None), *(place * step + tap * far for place, step, tap, far in steps)

    def _padded(self) -> Tensor:
        values = self.input if self.input.dim() == len(self.kernel) + 2 else self.input[None]
        return F.pad(values, [number for border in reversed(self._borders()) for number in border])

    def _output_sizes(self) -> tuple[int, ...]:
        lengths = self.input.shape[-len(self.kernel) :]
        parts = zip(lengths, self._borders(), self._reaches(), self._each(self.stride), strict=True)
        return tuple((length + sum(border) - reach - 1) // step + 1 for length, border, reach, step in parts)

    def _borders(self) -> list[tuple[int, int]]:
        if self.padding == "same":
            return [(reach // 2, reach - reach // 2) for reach in self._reaches()]
        numbers = self._each(0 if self.padding == "valid" else self.padding)
        return [(number, number) for number in numbers]

    def _reaches(self) -> list[int]:
        """How far the last tap of the kernel is from the first."""
        return [far * (size - 1) for far, size in zip(self._each(self.dilation), self.kernel, strict=True)]

    def _each(self, value: Any) -> tuple[int, ...]:
        """One number for each axis of the kernel."""
        numbers = (value,) if isinstance(value, int) else tuple(value)
        return numbers * len(self.kernel) if len(numbers) == 1 else numbers


class InputCapture(TorchFunctionMode):
    """While active, ``see`` is called with each ``CapturedInput`` of one of the ``layers``, before it is computed.

    Not seen are transposed convolutions, and weights that a layer computes on the way (timm's ``StdConv2d``).
    """

    def __init__(self, layers: Iterable[QuantizedLayer], see: Callable[[CapturedInput], None]) -> None:
        super().__init__()
        self._layers = list(layers)
        self._see = see
        self._quantized: dict[QuantizedLayer, Tensor] = {}

    def __enter__(self) -> "InputCapture":
        for layer in self._layers:
            layer.quantize_weight = self._watched(layer, layer.quantize_weight)  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for layer in self._layers:
            del layer.quantize_weight

    def _watched(
        self, layer: QuantizedLayer, quantize: Callable[[Tensor], Tensor]
    ) -> Callable[[Tensor], Tensor]:
        def watch(weight: Tensor) -> Tensor:
            quantized = quantize(weight)
            if weight is layer._parameters.get("weight"):
                self._quantized[layer] = quantized
            return quantized

        return watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _PRODUCTS:
            call = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
            owner = next((layer for layer, own in self._quantized.items() if own is call["weight"]), None)
            if owner is not None:
                del self._quantized[owner]
                self._see(_product(owner, call))
        return func(*args, **kwargs)


def _product(layer: QuantizedLayer, call: dict[str, Any]) -> CapturedInput:
    given = {name: call[name] for name in ("stride", "padding", "dilation", "groups") if name in call}
    return CapturedInput(layer=layer, input=call["input"], kernel=tuple(call["weight"].shape[2:]), **given)


def _some(count: int, most: int) -> Tensor:
    """Up to ``most`` of ``count`` positions, spread at random, always the same."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values
