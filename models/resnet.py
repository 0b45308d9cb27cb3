"""Residual networks for small images."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


class PaddedSubsample(nn.Module):
    """He et al.'s option A: every second pixel, new channels filled with zeros. No weights."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.padding = (out_channels - in_channels) // 2

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, C + 2 * padding, H/2, W/2)
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """He et al.'s option B: a 1x1 convolution."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
    )


def _padded(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    return PaddedSubsample(in_channels, out_channels)


_Shortcut = Callable[[int, int, int], nn.Module]


class BasicBlock(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int, shortcut: _Shortcut) -> None:
        super().__init__()
        self.conv1 = _conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = _conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        changes_shape = stride != 1 or in_channels != out_channels
        self.shortcut = shortcut(in_channels, out_channels, stride) if changes_shape else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        return F.relu(out)


class SmallImageResNet(nn.Module):
    """A 3x3 stem, stages of basic blocks, global average pooling, one linear layer.

    Parameter names are those of the widely used CIFAR ResNets (``conv1``, ``layer1.0.conv1``, … ``linear``).
    """

    def __init__(
        self, *, blocks: tuple[int, ...], widths: tuple[int, ...], num_classes: int, shortcut: _Shortcut
    ) -> None:
        super().__init__()
        self.conv1 = _conv3x3(3, widths[0])
        self.bn1 = nn.BatchNorm2d(widths[0])
        in_channels, stages = widths[0], []
        for index, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            strides = [1 if index == 0 else 2] + [1] * (count - 1)
            stage = []
            for stride in strides:
                stage.append(BasicBlock(in_channels, width, stride, shortcut))
                in_channels = width
            stages.append(f"layer{index + 1}")
            self.add_module(stages[-1], nn.Sequential(*stage))
        self._stages = tuple(stages)
        self.linear = nn.Linear(in_channels, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W) -> (B, num_classes)
        x = F.relu(self.bn1(self.conv1(x)))
        for stage in self._stages:
            x = getattr(self, stage)(x)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        logits: Tensor = self.linear(x)
        return logits


def cifar_resnet(depth: int, *, shortcut: str) -> Callable[[int], nn.Module]:
    """Factory of the 6n+2 layer networks of He et al. 2016, section 4.2; ``shortcut`` is A or B."""

    def build(num_classes: int) -> nn.Module:
        return SmallImageResNet(
            blocks=((depth - 2) // 6,) * 3,
            widths=(16, 32, 64),
            num_classes=num_classes,
            shortcut={"A": _padded, "B": projection}[shortcut],
        )

    return build


def resnet18(num_classes: int) -> nn.Module:
    """ResNet-18 with a 3x3 stem and no pooling after it, as the paper uses for 32x32 images."""
    return SmallImageResNet(
        blocks=(2, 2, 2, 2), widths=(64, 128, 256, 512), num_classes=num_classes, shortcut=projection
    )
