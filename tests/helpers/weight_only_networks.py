"""Networks whose weights are not all those of convolution and linear modules, each with an input for it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Gru(nn.Module):
    """A keyword spotter: a linear layer, two GRU layers, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(10, 8)
        self.gru = nn.GRU(8, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(x))[0][:, -1])


class Lstm(nn.Module):
    """Bidirectional; it reads the input itself."""

    def __init__(self, **settings: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(10, 12, batch_first=True, bidirectional=True, **settings)
        self.head = nn.Linear(12 if settings else 24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0].mean(1))


class Cell(nn.Module):
    """A GRU cell in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(10, 8)
        self.cell = nn.GRUCell(8, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 12, dtype=x.dtype, device=x.device)
        for step in self.embed(x).unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class Encoder(nn.Module):
    """A transformer encoder of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(10, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2)
        for parameter in self.encoder.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)  # or both layers would be the same
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class CrossAttention(nn.Module):
    """Attention of ten learned queries, with projections of their own sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(10, 16)
        self.queries = nn.Parameter(torch.randn(1, 3, 16))
        self.attention = nn.MultiheadAttention(16, 4, kdim=10, vdim=16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        values = self.embed(x)
        queries = self.queries.expand(x.shape[0], -1, -1)
        return self.head(self.attention(queries, x, values, need_weights=False)[0].mean(1))


class TiedEmbedding(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.positions = nn.Embedding(12, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        values = self.embedding(tokens) + self.positions(places)
        return self.head(F.relu(self.mix(values)).mean(1))


class FunctionalHead(nn.Module):
    """The embedding's weight passed to a function."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.mix = nn.Linear(16, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.mix(self.embedding(tokens)).mean(1), self.embedding.weight)


class Functional(nn.Module):
    """Weights that the network passes to functions: a linear module's, own kernels, experts that are mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.kernel = nn.Parameter(torch.randn(8, 4, 3, 3) / 6)
        self.experts = nn.Parameter(torch.randn(4, 8 * 8) / 8)
        self.router = nn.Linear(8, 4)
        self.qkv = nn.Linear(8, 24, bias=False)
        self.values = nn.Parameter(torch.randn(24, 6) / 5)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(F.conv2d(x, self.kernel, padding=1, stride=2, groups=2))
        pooled = x.mean((2, 3))
        mixed = (self.router(pooled).softmax(1) @ self.experts).view(-1, 8, 8)
        pooled = torch.bmm(mixed, pooled.unsqueeze(2)).squeeze(2)
        return self.head(F.linear(pooled, self.qkv.weight) @ self.values)


def _sequence() -> Tensor:
    return torch.randn(3, 7, 10)


def _tokens() -> Tensor:
    return torch.randint(0, 40, (3, 12))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "gru": (Gru, _sequence),
    "lstm": (Lstm, _sequence),
    "projected lstm": (lambda: Lstm(proj_size=6), _sequence),
    "cell": (Cell, _sequence),
    "encoder": (Encoder, _sequence),
    "cross attention": (CrossAttention, _sequence),
    "tied embedding": (TiedEmbedding, _tokens),
    "functional head": (FunctionalHead, _tokens),
    "functional": (Functional, lambda: torch.randn(3, 3, 8, 8)),
}
