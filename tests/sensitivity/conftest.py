"""A network measured in one call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.values import Precision, Sensitivity

Measured = Callable[..., Sensitivity]


@pytest.fixture
def labels() -> Tensor:
    """Of ``images``."""
    return torch.tensor([0, 1, 2, 4])


@pytest.fixture
def measured() -> Measured:
    """Measure with candidates 2, 4 and 8 everywhere, quantized at 8 bits unless told otherwise."""

    def measure(
        network: nn.Module,
        example: Tensor,
        batches: Any,
        *,
        widths: tuple[int, ...] = (2, 4, 8),
        activation_bits: int = 8,
        **options: Any,
    ) -> Sensitivity:
        layers = hwbmpq.describe(network, example)
        precision = Precision(weight_bits=max(widths), activation_bits=activation_bits)
        options.setdefault("precisions", {layer.name: precision for layer in layers})
        options.setdefault("widths", {layer.name: widths for layer in layers})
        return measure_sensitivity(network, layers, batches, **options)

    return measure
