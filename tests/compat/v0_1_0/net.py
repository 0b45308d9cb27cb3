"""A user's own network, as a file: convolutions of three kinds, norms, and two linear layers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def make_net(num_classes: int = 10) -> nn.Module:
    """4,506 parameters, for images of 1x8x8."""
    return nn.Sequential(
        *[nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()],
        *[nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU()],
        *[nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()],
        *[nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, num_classes)],
    )


def arithmetic() -> Tensor:
    """What torch alone makes of this network: its outputs after a few steps of training in float.

    Another version of torch, or another processor, may add in another order: then these bits differ, and so may
    those of a quantized network, through no fault of hwbmpq's.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = make_net().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images, labels = torch.randn(64, 1, 8, 8), torch.randint(10, (64,))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(6):
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        outputs: Tensor = net.eval()(images)
    return outputs
