"""What every tool gets: a trained ResNet-20, the images to calibrate and to test on, and how accuracy is counted."""

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import hwbmpq

WIDTHS = (2, 4, 8)
MEAN, STD = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
Images = tuple[Tensor, Tensor]


def folder() -> Path:
    """With cifar10.npz; trained weights are in the folder ``weights`` beside it."""
    return Path(os.environ["HWBMPQ_DATA"])


def trained_network() -> nn.Module:
    weights = folder().parent / "weights/cifar10_resnet20.pt"
    return hwbmpq.models.load_model("hwbmpq:resnet20", weights=weights).network.eval()


def images(part: str, count: int) -> Images:
    """The first ``count`` of a part, ``train`` or ``test``."""
    with np.load(folder() / "cifar10.npz") as arrays:
        pixels, labels = arrays[f"x_{part}"][:count], arrays[f"y_{part}"][:count]
    scaled = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    return (scaled - MEAN) / STD, torch.from_numpy(labels.astype(np.int64)).flatten()


def calibration_images() -> Images:
    return images("train", 1024)


def test_images() -> Images:
    return images("test", 5000)


@torch.no_grad()
def accuracy(network: nn.Module, test: Images) -> float:
    network.eval()
    hits = sum(
        int((network(batch).argmax(1) == labels).sum())
        for batch, labels in zip(test[0].split(250), test[1].split(250), strict=True)
    )
    return hits / len(test[1])


def weight_sizes(network: nn.Module) -> dict[str, int]:
    """Weights of every layer that a tool may quantize."""
    return {
        name: module.weight.numel()
        for name, module in network.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    }
