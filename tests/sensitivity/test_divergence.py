"""The answers of a network with one layer narrowed, against a slow and obvious reference."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.quant import fake_quantize_weight
from hwbmpq.values import Sensitivity

Measured = Callable[..., Sensitivity]


def reference(network: nn.Module, layer: str, bits: int, images: Tensor) -> float:
    """Per image, in float but for one layer's weights."""
    changed = copy.deepcopy(network).eval()
    weight = changed.get_submodule(layer).weight
    with torch.no_grad():
        weight.copy_(fake_quantize_weight(weight, bits))
        usual, narrowed = (net(images).double().log_softmax(1) for net in (network.eval(), changed))
    return float(F.kl_div(narrowed, usual, log_target=True, reduction="batchmean"))


def test_errors_are_divergences_from_the_network_as_it_is(
    measured: Measured, tiny_cnn: nn.Module, images: Tensor, labels: Tensor
) -> None:
    batches = [
        (images[:1], labels[:1]),
        (images[1:], labels[1:]),
    ]  # of unequal size: images count, not batches
    found = measured(tiny_cnn, images, batches, method="divergence", widths=(2, 4, 32), activation_bits=32)
    for name, errors in found.errors.items():
        assert errors[32] == 0.0
        assert found.scores[name] == errors[2]
        for bits in (2, 4):
            assert errors[bits] == pytest.approx(reference(tiny_cnn, name, bits, images), rel=1e-4), name


def test_labels_do_not_matter(
    measured: Measured, tiny_cnn: nn.Module, images: Tensor, labels: Tensor
) -> None:
    one, other = (
        measured(tiny_cnn, images, [(images, these)], method="divergence") for these in (labels, labels * 0)
    )
    assert one == other


def test_a_layer_without_influence_has_no_error(
    measured: Measured, tiny_cnn: nn.Module, images: Tensor, labels: Tensor
) -> None:
    nn.init.zeros_(tiny_cnn[8].weight)  # nothing before it reaches the answer any more
    found = measured(tiny_cnn, images, [(images, labels)], method="divergence")
    assert set(found.scores.values()) == {0.0}
