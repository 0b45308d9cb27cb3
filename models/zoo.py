"""hwbmpq's own networks, by name."""

from collections.abc import Callable

from torch import nn

from hwbmpq.models.resnet import cifar_resnet, resnet18
from hwbmpq.models.vgg import vgg16

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "resnet8": cifar_resnet(8, shortcut="A"),
    "resnet8_b": cifar_resnet(8, shortcut="B"),
    "resnet18": resnet18,
    "resnet20": cifar_resnet(20, shortcut="A"),
    "resnet20_b": cifar_resnet(20, shortcut="B"),
    "resnet56": cifar_resnet(56, shortcut="A"),
    "resnet56_b": cifar_resnet(56, shortcut="B"),
    "vgg16": vgg16,
}
"""Each takes the number of classes."""
