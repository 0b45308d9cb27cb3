"""Contexts that put a network into another mode and leave it as it was."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from hwbmpq.quant.layers import QuantizedLayer
from hwbmpq.values import FLOAT_BITS


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside, ``model`` is in evaluation mode; afterwards every module is in the mode it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def float_weights(layers: Iterable[QuantizedLayer]) -> AbstractContextManager[None]:
    """Inside, the weights of ``layers`` are not rounded; their quantizers are still called."""
    return _temporarily([layer.weight_quantizer for layer in layers], "bits", FLOAT_BITS)


def float_inputs(layers: Iterable[QuantizedLayer]) -> AbstractContextManager[None]:
    """Inside, the inputs of ``layers`` are not rounded, and no input quantizer learns from them."""
    return _temporarily(layers, "activation_bits", FLOAT_BITS)


@contextmanager
def _temporarily(objects: Iterable[Any], attribute: str, value: object) -> Iterator[None]:
    before = [(thing, getattr(thing, attribute)) for thing in objects]
    for thing, _ in before:
        setattr(thing, attribute, value)
    try:
        yield
    finally:
        for thing, old in before:
            setattr(thing, attribute, old)
