"""VGG16 for small images."""

from torch import Tensor, nn

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class SmallImageVGG(nn.Module):
    """13 convolutions with batch norm, then linear layers of 512, 512 and ``num_classes``.

    Two hidden layers of 512 reproduce the compression ratios of the BMPQ paper's Table 1. ``shrink`` divides all widths, for
    experiments on small machines.
    """

    def __init__(self, num_classes: int, *, shrink: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in _STAGES:
            for width in (full // shrink for full in stage):
                layers += [
                    nn.Conv2d(channels, width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels, channels),
            nn.ReLU(inplace=True),
            nn.Linear(channels, channels),
            nn.ReLU(inplace=True),
            nn.Linear(channels, num_classes),
        )
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W) -> (B, num_classes), H and W at least 32
        logits: Tensor = self.classifier(self.pool(self.features(x)))
        return logits


def vgg16(num_classes: int) -> nn.Module:
    return SmallImageVGG(num_classes)
