"""Which parameters an operation multiplies with or looks values up in, seen below torch's functions.

Whatever a network calls (a linear function, an einsum, a whole LSTM), it ends in a few matrix products, convolutions
and lookups. A parameter is followed to them through operations that only change its shape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from hwbmpq.values import EMBEDDING, Shape


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightUse:
    """One product with a parameter, or one lookup in it."""

    parameter: str
    kind: str
    """That of the ``Layer``: ``linear``, ``conv2d`` …, ``embedding``."""
    macs: int
    elements: int
    """How much of the parameter it takes."""
    input_shape: Shape = ()
    output_shape: Shape = ()
    geometry: Mapping[str, Any] = field(default_factory=dict)
    """Of a convolution: kernel size, stride and so on, as in ``Layer``."""


_SHAPE_ONLY = frozenset(
    """
    view _unsafe_view _reshape_alias reshape t transpose permute expand slice select split split_with_sizes chunk unbind
    unsqueeze squeeze cat stack clone contiguous alias detach narrow as_strided repeat _to_copy lift_fresh flatten
    unflatten movedim swapaxes
    """.split()
)
_FACTORS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2)}
"""Matrix products, and which of their arguments are multiplied."""
_CONVOLUTIONS = frozenset({"convolution", "_convolution"})
_LOOKUPS = {"embedding": 4, "_embedding_bag": 5, "_embedding_bag_forward_only": 5}
"""Lookups, and which argument says that gradients are sparse."""
_RENORMALISES = "embedding_renorm_"


class WeightUses:
    """Follows parameters through the calls of one forward pass."""

    def __init__(self, parameter_name: Callable[[object], str]) -> None:
        self._parameter_name = parameter_name
        self._sources: Any = WeakIdKeyDictionary()  # tensor -> names of the parameters that it consists of
        self._left_out: set[str] = set()
        self.found: list[WeightUse] = []

    def see(self, name: str, args: Sequence[Any], result: Any, macs: int) -> None:
        """Note one call of an ATen operator."""
        if name in _SHAPE_ONLY:
            self._follow(args, result)
        elif name in _FACTORS:
            self._multiply([args[place] for place in _FACTORS[name]], macs)
        elif name in _CONVOLUTIONS:
            self._convolve(args, result, macs)
        elif name == _RENORMALISES:
            # The lookup rescales rows of its table in place, which would need them in float.
            self._left_out.update(self._names(args[0]))
        elif name in _LOOKUPS:
            self._look_up(args, result, has_sparse_gradients=bool([*args, *[False] * 6][_LOOKUPS[name]]))

    def _names(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, Tensor):
            return ()
        own = self._parameter_name(value)
        return (own,) if own else self._sources.get(value, ())

    def _follow(self, args: Sequence[Any], result: Any) -> None:
        """The result consists of parameters if all that it is made of does (a class token before data does not)."""
        first = args[0] if args else ()
        parts = [self._names(part) for part in (first if isinstance(first, (tuple, list)) else [first])]
        if parts and all(parts):
            names = tuple(dict.fromkeys(name for part in parts for name in part))
            for made in result if isinstance(result, (tuple, list)) else [result]:
                self._sources[made] = names

    def _multiply(self, factors: Sequence[Tensor], macs: int) -> None:
        names = [self._names(factor) for factor in factors]
        if all(names):
            return  # a product of parameters does not depend on data
        for factor, found in zip(factors, names, strict=True):
            for name in found:
                share = len(found)
                self.found.append(
                    WeightUse(
                        parameter=name, kind="linear", macs=macs // share, elements=factor.numel() // share
                    )
                )

    def _convolve(self, args: Sequence[Any], result: Tensor, macs: int) -> None:
        values, weight = args[0], args[1]
        stride, padding, dilation, transposed, _, groups = args[3:9]
        names = self._names(weight)
        if len(names) != 1 or self._names(values):
            return
        kernel = tuple(weight.shape[2:])
        sizes = [weight.shape[0], weight.shape[1] * groups]
        inputs, outputs = sizes if transposed else reversed(sizes)
        each = {"stride": stride, "padding": padding, "dilation": dilation}
        self.found.append(
            WeightUse(
                parameter=names[0],
                kind=f"conv{'_transpose' if transposed else ''}{len(kernel)}d",
                macs=macs,
                elements=weight.numel(),
                input_shape=tuple(values.shape),
                output_shape=tuple(result.shape),
                geometry={
                    "in_channels": inputs,
                    "out_channels": outputs,
                    "kernel_size": kernel,
                    "groups": groups,
                    **{name: tuple(value) * (len(kernel) // len(value)) for name, value in each.items()},
                },
            )
        )

    def _look_up(self, args: Sequence[Any], result: Any, *, has_sparse_gradients: bool) -> None:
        names = self._names(args[0])
        if has_sparse_gradients:
            self._left_out.update(names)
        output = result[0] if isinstance(result, (tuple, list)) else result
        if len(names) == 1:
            use = WeightUse(
                parameter=names[0],
                kind=EMBEDDING,
                macs=0,
                elements=args[0].numel(),
                input_shape=tuple(args[1].shape),
                output_shape=tuple(output.shape),
            )
            self.found.append(use)

    def take(self) -> tuple[WeightUse, ...]:
        """What was seen since the last call."""
        found, self.found = self.found, []
        return tuple(use for use in found if use.parameter not in self._left_out)


def linear_shapes(weight_shape: Shape, macs: int, calls: int) -> tuple[Shape, Shape]:
    """Input and output of one of the calls of a matrix product, each weight being used equally often."""
    positions = max(1, macs // max(1, calls * prod(weight_shape)))
    return (1, positions, prod(weight_shape[1:])), (1, positions, weight_shape[0])


def count_calls(uses: Sequence[WeightUse], weight_shape: Shape) -> int:
    """How often the whole weight is used: three products with a third of it each are one call."""
    return max(1, sum(use.elements for use in uses) // prod(weight_shape))


def is_quantizable(parameter: torch.Tensor) -> bool:
    """Norms and biases have one axis."""
    return parameter.is_floating_point() and parameter.dim() > 1
