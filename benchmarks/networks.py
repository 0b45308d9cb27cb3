"""Small networks beyond plain CNNs, each with its example arguments: what whole-network budgets are tried on.

All have random weights. The parts that are not plain conv and linear modules (recurrent weights, attention projections,
embeddings, functional weights) hold most of the parameters in several of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.data.torchvision_import import import_torchvision


@dataclass(frozen=True, kw_only=True)
class Example:
    """A network and the arguments that it is called with."""

    model: nn.Module
    args: tuple[Tensor, ...]


class GruKeywords(nn.Module):
    """Keyword spotting: a projection, two GRU layers, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(10, 24)
        self.gru = nn.GRU(24, 48, num_layers=2, batch_first=True)
        self.head = nn.Linear(48, 12)

    def forward(self, frames: Tensor) -> Tensor:  # (B, T, 10)
        states, _ = self.gru(F.relu(self.project(frames)))
        return self.head(states[:, -1])


class LstmTagger(nn.Module):
    """Token tagging: an embedding, a bidirectional LSTM, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 7)

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T)
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states)


class SequenceClassifier(nn.Module):
    """``nn.TransformerEncoder`` over frames."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 32)
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, frames: Tensor) -> Tensor:  # (B, T, 16)
        return self.head(self.encoder(self.project(frames)).mean(1))


def _double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Segmentation with skip connections and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = _double_conv(3, 8), _double_conv(8, 16), _double_conv(16, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.merge2, self.merge1 = _double_conv(32, 16), _double_conv(16, 8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, image: Tensor) -> Tensor:  # (B, 3, H, W)
        first = self.down1(image)
        second = self.down2(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        second = self.merge2(torch.cat([self.up2(bottom), second], 1))
        return self.head(self.merge1(torch.cat([self.up1(second), first], 1)))


class AnchorFreeDetector(nn.Module):
    """Three levels of features, a shared tower, and heads for class, box and centre at each level."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.stages = nn.ModuleList(nn.Conv2d(16, 16, 3, stride=2, padding=1) for _ in range(3))
        self.tower = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.classes, self.box, self.centre = (nn.Conv2d(16, n, 3, padding=1) for n in (5, 4, 1))

    def forward(self, image: Tensor) -> list[dict[str, Tensor]]:
        found = []
        features = F.relu(self.stem(image))
        for stage in self.stages:
            features = F.relu(stage(features))
            shared = self.tower(features)
            found.append(
                {
                    "classes": self.classes(shared),
                    "box": F.relu(self.box(shared)),
                    "centre": self.centre(shared),
                }
            )
        return found


class PyramidHead(nn.Module):
    """One head called at four sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8, 6)

    def forward(self, image: Tensor) -> Tensor:
        features = F.relu(self.stem(image))
        pooled = [F.avg_pool2d(features, 2**level) if level else features for level in range(4)]
        means = [F.relu(self.head(level)).mean((2, 3)) for level in pooled]
        return self.last(torch.stack(means).sum(0))


class TemporalConvNet(nn.Module):
    """Dilated causal convolutions over a signal, weights normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(6, 24, 3)
        self.blocks = nn.ModuleList(nn.Conv1d(24, 24, 3, dilation=2**n) for n in range(4))
        self.head = nn.Linear(24, 6)

    def forward(self, signal: Tensor) -> Tensor:  # (B, 6, T)
        hidden = F.relu(self.stem(F.pad(signal, (2, 0))))
        for level, block in enumerate(self.blocks):
            hidden = hidden + F.relu(block(F.pad(hidden, (2 * 2**level, 0))))
        return self.head(hidden.mean(2))


class Autoencoder(nn.Module):
    """MLPerf Tiny's anomaly detector, narrower."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [128, 64, 64, 8, 64, 64, 128]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-2])

    def forward(self, spectrum: Tensor) -> Tensor:  # (B, 128)
        return self.layers(spectrum)


class TwoInputs(nn.Module):
    """An image and a vector of readings."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.readings = nn.Linear(5, 16)
        self.join, self.head = nn.Linear(32, 16), nn.Linear(16, 3)

    def forward(self, image: Tensor, readings: Tensor) -> Tensor:
        seen = F.relu(self.conv2(F.relu(self.conv1(image)))).mean((2, 3))
        joined = torch.cat([seen, F.relu(self.readings(readings))], 1)
        return self.head(F.relu(self.join(joined)))


class DictOutput(nn.Module):
    """Two tasks from one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
        )
        self.depth, self.label = nn.Conv2d(16, 1, 1), nn.Linear(16, 4)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        features = self.trunk(image)
        return {"depth": self.depth(features), "label": self.label(features.mean((2, 3)))}


class TiedEmbedding(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 32)
        self.hidden1, self.hidden2 = nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 96, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T)
        return self.head(self.hidden2(F.relu(self.hidden1(self.embedding(tokens)))))


class FunctionalMixture(nn.Module):
    """Experts kept as one parameter, mixed for each input, and a convolution with a weight of its own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.kernel = nn.Parameter(torch.randn(16, 16, 3, 3) * 0.1)
        self.gate = nn.Linear(16, 4)
        self.experts = nn.Parameter(torch.randn(4, 32, 16) * 0.2)
        self.head = nn.Linear(32, 5)

    def forward(self, image: Tensor) -> Tensor:
        features = F.relu(F.conv2d(F.relu(self.stem(image)), self.kernel, padding=1)).mean((2, 3))
        share = self.gate(features).softmax(1)  # (B, 4)
        answers = torch.einsum("eoi,bi->beo", self.experts, features)
        return self.head(F.relu((answers * share[:, :, None]).sum(1)))


def _torchvision_segmenter() -> nn.Module:
    models = import_torchvision().models.segmentation
    network: nn.Module = models.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    return network


def _image(side: int, channels: int = 3) -> Tensor:
    return torch.randn(1, channels, side, side)


def _tokens(count: int, length: int) -> Tensor:
    return torch.randint(count, (1, length))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "gru": (GruKeywords, lambda: (torch.randn(1, 49, 10),)),
    "lstm": (LstmTagger, lambda: (_tokens(200, 20),)),
    "transformer encoder": (SequenceClassifier, lambda: (torch.randn(1, 24, 16),)),
    "U-Net": (UNet, lambda: (_image(32),)),
    "torchvision lraspp": (_torchvision_segmenter, lambda: (_image(64),)),
    "anchor-free detector": (AnchorFreeDetector, lambda: (_image(64),)),
    "pyramid, shared head": (PyramidHead, lambda: (_image(32),)),
    "1-D TCN": (TemporalConvNet, lambda: (torch.randn(1, 6, 64),)),
    "autoencoder": (Autoencoder, lambda: (torch.randn(1, 128),)),
    "two inputs": (TwoInputs, lambda: (_image(16, 1), torch.randn(1, 5))),
    "dict output": (DictOutput, lambda: (_image(32),)),
    "tied embedding": (TiedEmbedding, lambda: (_tokens(96, 16),)),
    "functional mixture": (FunctionalMixture, lambda: (_image(32),)),
}


def build(name: str, seed: int = 0) -> Example:
    """A network of this page, in evaluation mode, always the same for one seed."""
    make, arguments = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Example(model=make().eval(), args=arguments())
