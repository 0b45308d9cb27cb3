"""On a trained ResNet-20 and real images, the layers that need bits are found."""

from pathlib import Path

import pytest
import torch
from torch import nn

import hwbmpq
from hwbmpq.data import load_images
from hwbmpq.models import load_model
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.values import Precision, Sensitivity

HURT_MOST = {"layer1.2.conv1": 0.945, "layer2.0.conv1": 0.888}
"""What 2-bit weights in this layer alone add to the loss of 1,000 test images, all others at 8 bits."""
HURT_LEAST = {"layer2.1.conv2": 0.019, "layer3.0.conv2": 0.009, "layer3.2.conv2": -0.042}


@pytest.fixture(scope="module")
def network(data_folder: Path) -> nn.Module:
    weights = data_folder.parent / "weights" / "cifar10_resnet20.pt"
    return load_model("hwbmpq:resnet20", weights=weights).network.eval()


@pytest.fixture(scope="module")
def layers(network: nn.Module) -> hwbmpq.LayerGraph:
    return hwbmpq.describe(network, torch.zeros(1, 3, 32, 32))


@pytest.fixture(scope="module")
def sensitivity(network: nn.Module, layers: hwbmpq.LayerGraph, data_folder: Path) -> Sensitivity:
    images = load_images(f"npz:{data_folder / 'cifar10.npz'}", input_size=(3, 32, 32), count=128)
    precision = Precision(weight_bits=8, activation_bits=32)
    return measure_sensitivity(
        network,
        layers,
        images.batches(32),
        precisions={layer.name: precision for layer in layers},
        widths={layer.name: (2, 4, 8) for layer in layers},
    )


def test_layers_that_2_bits_hurt_most_are_expected_to_be(sensitivity: Sensitivity) -> None:
    most = min(sensitivity.errors[name][2] for name in HURT_MOST)
    least = max(sensitivity.errors[name][2] for name in HURT_LEAST)
    assert most > least


def test_going_from_2_to_4_bits_is_worth_more_than_from_4_to_8(sensitivity: Sensitivity) -> None:
    for errors in sensitivity.errors.values():
        assert errors[2] - errors[4] > errors[4] - errors[8]
