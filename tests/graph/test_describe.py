"""Layers, shapes, MACs, what feeds what, and coverage."""

import logging

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.errors import NoLayersError, TraceError


def test_tiny_cnn_against_figures_worked_by_hand(tiny_cnn: nn.Module, images: Tensor) -> None:
    graph = hwbmpq.describe(tiny_cnn, images)
    stem, strided, hidden, head = graph
    assert [layer.name for layer in graph] == ["0", "3", "6", "8"]
    assert stem.macs == 8 * 8 * 4 * 3 * 9
    assert strided.macs == 4 * 4 * 6 * 4 * 9
    assert (hidden.macs, head.macs) == (96 * 12, 12 * 5)
    assert (stem.parameters, stem.bias_parameters, strided.bias_parameters) == (108, 4, 0)
    assert (strided.input_shape, strided.output_shape) == ((1, 4, 8, 8), (1, 6, 4, 4))
    assert (strided.kernel_size, strided.stride, strided.groups) == ((3, 3), (2, 2), 1)
    assert [layer.input_signed for layer in graph] == [True, False, False, False]
    assert [layer.is_end for layer in graph] == [True, False, False, True]
    assert [layer.fed_by for layer in graph] == [("input_1",), ("0",), ("3",), ("6",)]
    assert [layer.feeds for layer in graph] == [("3",), ("6",), ("8",), ("output",)]
    assert [layer.reads_network_input for layer in graph] == [True, False, False, False]
    assert {(entry.name, entry.reason): entry.parameters for entry in graph.uncovered} == {
        ("0.bias", "bias"): 4,
        ("1", "norm"): 8,
        ("6.bias", "bias"): 12,
        ("8.bias", "bias"): 5,
    }


@pytest.mark.parametrize(
    ("layer", "shape", "kind", "macs"),
    [
        (nn.Conv1d(4, 6, 3), (4, 10), "conv1d", 8 * 6 * 4 * 3),
        (nn.Conv3d(2, 3, 2), (2, 4, 4, 4), "conv3d", 27 * 3 * 2 * 8),
        (nn.Conv2d(4, 8, 3, groups=2), (4, 5, 5), "conv2d", 9 * 8 * 2 * 9),
        (nn.Conv2d(4, 4, 3, groups=4), (4, 5, 5), "conv2d", 9 * 4 * 9),
        (nn.Conv2d(4, 4, 3, padding="same", dilation=2), (4, 5, 5), "conv2d", 25 * 4 * 4 * 9),
        (nn.ConvTranspose1d(4, 6, 3), (4, 10), "conv_transpose1d", 10 * 4 * 6 * 3),
        (nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (4, 5, 5), "conv_transpose2d", 25 * 4 * 3 * 4),
        (nn.ConvTranspose3d(2, 2, 2), (2, 3, 3, 3), "conv_transpose3d", 27 * 2 * 2 * 8),
        (nn.Linear(7, 3), (5, 7), "linear", 5 * 7 * 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_every_kind_of_layer(layer: nn.Module, shape: tuple[int, ...], kind: str, macs: int) -> None:
    (found,) = hwbmpq.describe(nn.Sequential(layer), torch.randn(2, *shape))
    assert (found.kind, found.macs) == (kind, macs)
    assert found.is_depthwise == (getattr(layer, "groups", 1) == 4)


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.relu(self.conv(x)))


class SharedWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)))


class Functional(nn.Module):
    """A weight outside any layer, an embedding, a product of activations, an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 3, 1, 1))
        self.head = nn.Linear(4, 2)
        self.table = nn.Embedding(5, 4)
        self.unused = nn.Linear(9, 9)

    def forward(self, x: Tensor) -> Tensor:
        tokens = F.conv2d(x, self.kernel).flatten(2).transpose(1, 2)
        tokens = tokens + self.table(torch.zeros(1, dtype=torch.long, device=x.device))
        return self.head((tokens @ tokens.transpose(1, 2)) @ tokens)


def test_a_layer_called_twice_is_one_layer() -> None:
    (layer,) = hwbmpq.describe(CalledTwice(), torch.randn(1, 3, 4, 4))
    assert (layer.calls, layer.parameters, layer.macs) == (2, 9, 2 * 16 * 9)
    assert len(layer.reads) == 2
    assert layer.input_signed


def test_shared_weights_are_two_tied_layers_whose_parameters_count_once() -> None:
    model = SharedWeight()
    for policy in ("input", "none"):
        graph = hwbmpq.describe(model, torch.randn(1, 4), tie=policy)
        assert [layer.parameters for layer in graph] == [16, 0, 8]
        assert graph["second"].shares_weight_with == "first"
        assert [group.layers for group in graph.ties] == [("first", "second")]
        assert graph.parameters == sum(p.numel() for p in model.parameters())


def test_what_stays_in_float_is_listed_with_its_reason() -> None:
    model = Functional()
    graph = hwbmpq.describe(model, torch.randn(1, 3, 2, 2))
    assert [layer.name for layer in graph] == ["kernel", "table", "head"]
    by_reason = {entry.reason: entry for entry in graph.uncovered}
    assert by_reason["never runs"].parameters == 90
    products = [entry.macs for entry in graph.uncovered if entry.reason == "activation product"]
    assert sum(products) == 2 * 4 * 4 * 4
    assert graph.parameters == sum(p.numel() for p in model.parameters())


def test_multihead_attention_has_layers_and_products_of_activations() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.attention(x, x, x, need_weights=False)[0])

    model = Attention()
    graph = hwbmpq.describe(model, torch.randn(1, 5, 8))
    assert [layer.name for layer in graph] == ["attention.in_proj_weight", "attention.out_proj", "head"]
    assert {entry.reason for entry in graph.uncovered} == {"activation product", "bias"}
    assert graph.parameters == sum(p.numel() for p in model.parameters())
    products = 2 * 5 * 5 * 8  # queries with keys, weights with values
    assert graph.macs - graph.layer_macs == products
    assert [layer.macs for layer in graph] == [3 * 5 * 8 * 8, 5 * 8 * 8, 5 * 8 * 2]


def test_the_model_is_left_as_it_was(tiny_cnn: nn.Module, images: Tensor) -> None:
    tiny_cnn.train()
    tiny_cnn[1].eval()
    before = {key: value.clone() for key, value in tiny_cnn.state_dict().items()}
    hwbmpq.describe(tiny_cnn, images)
    assert tiny_cnn[0].training
    assert not tiny_cnn[1].training
    assert all(torch.equal(value, before[key]) for key, value in tiny_cnn.state_dict().items())


def test_torchs_own_settings_are_left_as_they_were() -> None:
    class LooksAtValues(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            seen.append((self.training, torch.is_grad_enabled()))
            return self.fc(x) if x.sum() > 0 else self.fc(-x)

    def settings() -> tuple[object, ...]:
        return (
            torch._C._get_mkldnn_enabled(),
            torch.backends.mha.get_fastpath_enabled(),
            logging.root.manager.disable,
            torch.is_grad_enabled(),
        )

    seen: list[tuple[bool, bool]] = []
    torch._C._set_mkldnn_enabled(True)
    torch.backends.mha.set_fastpath_enabled(True)
    model = LooksAtValues().train()
    before = settings()
    assert hwbmpq.describe(model, torch.randn(1, 4)).traced_by == "hooks"
    assert settings() == before
    assert set(seen) == {(False, False)}  # evaluation mode, no gradients
    assert not model.fc._forward_hooks
    assert not model.fc._forward_pre_hooks


def test_a_tensor_behind_dropout_is_the_tensor_before_it() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b, self.head = (nn.Linear(4, 4) for _ in range(4))
            self.dropout = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.stem(x))
            return self.head(self.a(x) + self.b(self.dropout(x)))

    graph = hwbmpq.describe(Dropped(), torch.randn(1, 4))
    assert graph["a"].reads == graph["b"].reads


def test_a_model_without_layers_is_an_error_that_says_so() -> None:
    with pytest.raises(NoLayersError, match="Sequential has no layer to quantize"):
        hwbmpq.describe(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), torch.randn(1, 3, 4, 4))


def test_a_rejected_input_names_its_size(tiny_cnn: nn.Module) -> None:
    with pytest.raises(TraceError, match="the network does not run on an input of 5x8x8"):
        hwbmpq.describe(tiny_cnn, torch.randn(1, 5, 8, 8))


def test_meta_models_are_described_without_memory() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(100_000, 100_000), nn.ReLU(), nn.Linear(100_000, 10))  # 40 GB
    graph = hwbmpq.describe(model, torch.empty(1, 100_000))
    assert graph.weights == 100_000 * 100_010


def test_constant_fed_layers_are_not_the_ends() -> None:
    class PositionBias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("positions", torch.randn(1, 4))
            self.bias_net = nn.Linear(4, 4)
            self.stem = nn.Linear(4, 4)
            self.body = nn.Linear(4, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            bias = self.bias_net(self.positions)
            return self.head(self.body(self.stem(x)) + bias)

    graph = hwbmpq.describe(PositionBias(), torch.randn(1, 4))
    assert [layer.name for layer in graph if layer.is_end] == ["stem", "head"]
    assert graph["bias_net"].fed_by == ("constant",)


def test_all_stems_and_all_heads_are_ends() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.body, self.head, self.other = (nn.Linear(4, 4) for _ in range(5))

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.body(F.relu(self.left(x) + self.right(x))))
            return (self.head(x) + self.other(x)) / 2

    graph = hwbmpq.describe(Many(), torch.randn(1, 4))
    assert [layer.name for layer in graph if layer.is_end] == ["left", "right", "head", "other"]


def test_a_layer_that_shares_its_weight_with_an_end_is_an_end() -> None:
    graph = hwbmpq.describe(SharedWeight(), torch.randn(1, 4))
    assert [layer.is_end for layer in graph] == [True, True, True]


@pytest.mark.parametrize("container", ["attribute", "dictionary", "list"])
def test_tensors_that_a_network_caches_while_traced_are_taken_out_again(container: str) -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.cache: dict[str, Tensor] = {}
            self.kept: Tensor | None = None
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            if container == "attribute":
                self.kept = self.kept if self.kept is not None else x.mean(0, keepdim=True)
                return self.fc(x + self.kept)
            if container == "list":
                self.seen.append(x)
                return self.fc(x)
            return self.fc(x + self.cache.setdefault("bias", x.mean(0, keepdim=True)))

    model = Caching()
    cache = model.cache
    hwbmpq.describe(model, torch.randn(1, 4))
    assert (model.kept, model.cache, model.seen) == (None, {}, [])
    assert model.cache is cache
    assert type(model(torch.randn(2, 4))) is Tensor


def test_recurrent_layers_are_counted() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 6, batch_first=True)
            self.head = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0])

    graph = hwbmpq.describe(Recurrent(), torch.randn(1, 10, 8))
    assert graph.macs == graph.layer_macs == 10 * 4 * 6 * (8 + 6) + 10 * 6 * 2


def test_json_content_is_complete(tiny_cnn: nn.Module, images: Tensor) -> None:
    content = hwbmpq.describe(tiny_cnn, images).to_dict()
    assert content["totals"] == {
        "layers": 4,
        "weights": 108 + 216 + 1152 + 60,
        "parameters": sum(p.numel() for p in tiny_cnn.parameters()),
        "layer_macs": 6912 + 3456 + 1152 + 60,
        "macs": 6912 + 3456 + 1152 + 60,
        "covered_parameters": (108 + 216 + 1152 + 60) / (108 + 216 + 1152 + 60 + 4 + 8 + 12 + 5),
        "covered_macs": 1.0,
    }
    assert set(content) == {"traced_by", "notes", "totals", "layers", "ties", "uncovered"}
