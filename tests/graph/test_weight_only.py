"""Weights without a convolution or linear module around them are layers too."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from weight_only_networks import NETWORKS, Encoder, FunctionalHead, Gru, Lstm, TiedEmbedding

import hwbmpq
from hwbmpq.graph import describe_trace
from hwbmpq.graph.operations import Trace
from hwbmpq.graph.trace import _plain_evaluation, trace_with_export, trace_with_hooks
from hwbmpq.graph.weight_uses import WeightUses
from hwbmpq.quant import prepare
from hwbmpq.values import Layer

Facts = tuple[str, int, int, bool]


def facts(layer: Layer) -> Facts:
    return layer.kind, layer.parameters, layer.macs, layer.weight_only


EXPECTED: dict[str, dict[str, Facts]] = {
    "gru": {
        "embed": ("linear", 80, 7 * 80, False),
        "gru.weight_ih_l0": ("linear", 36 * 8, 7 * 36 * 8, True),
        "gru.weight_hh_l0": ("linear", 36 * 12, 7 * 36 * 12, True),
        "gru.weight_ih_l1": ("linear", 36 * 12, 7 * 36 * 12, True),
        "gru.weight_hh_l1": ("linear", 36 * 12, 7 * 36 * 12, True),
        "head": ("linear", 60, 60, False),
    },
    "lstm": {
        "lstm.weight_ih_l0": ("linear", 48 * 10, 7 * 48 * 10, True),
        "lstm.weight_hh_l0": ("linear", 48 * 12, 7 * 48 * 12, True),
        "lstm.weight_ih_l0_reverse": ("linear", 48 * 10, 7 * 48 * 10, True),
        "lstm.weight_hh_l0_reverse": ("linear", 48 * 12, 7 * 48 * 12, True),
        "head": ("linear", 120, 120, False),
    },
    "projected lstm": {
        "lstm.weight_ih_l0": ("linear", 48 * 10, 7 * 48 * 10, True),
        "lstm.weight_hh_l0": ("linear", 48 * 6, 7 * 48 * 6, True),
        "lstm.weight_hr_l0": ("linear", 6 * 12, 7 * 6 * 12, True),
        "lstm.weight_ih_l0_reverse": ("linear", 48 * 10, 7 * 48 * 10, True),
        "lstm.weight_hh_l0_reverse": ("linear", 48 * 6, 7 * 48 * 6, True),
        "lstm.weight_hr_l0_reverse": ("linear", 6 * 12, 7 * 6 * 12, True),
        "head": ("linear", 60, 60, False),
    },
    "cell": {
        "embed": ("linear", 80, 7 * 80, False),
        "cell.weight_ih": ("linear", 36 * 8, 7 * 36 * 8, True),
        "cell.weight_hh": ("linear", 36 * 12, 7 * 36 * 12, True),
        "head": ("linear", 60, 60, False),
    },
    "encoder": {
        "embed": ("linear", 160, 7 * 160, False),
        **{
            f"encoder.layers.{n}.{name}": found
            for n in range(2)
            for name, found in {
                "self_attn.in_proj_weight": ("linear", 48 * 16, 7 * 48 * 16, True),
                "self_attn.out_proj": ("linear", 256, 7 * 256, True),
                "linear1": ("linear", 512, 7 * 512, False),
                "linear2": ("linear", 512, 7 * 512, False),
            }.items()
        },
        "head": ("linear", 80, 80, False),
    },
    "cross attention": {
        "embed": ("linear", 160, 7 * 160, False),
        "attention.k_proj_weight": ("linear", 160, 7 * 160, True),
        "attention.v_proj_weight": ("linear", 256, 7 * 256, True),
        "attention.out_proj": ("linear", 256, 3 * 256, True),
        "head": ("linear", 80, 80, False),
    },
    "tied embedding": {
        "embedding": ("embedding", 640, 0, True),
        "positions": ("embedding", 192, 0, True),
        "mix": ("linear", 256, 12 * 256, False),
        "head": ("linear", 0, 640, False),
    },
    "functional head": {
        "embedding": ("linear", 640, 640, True),
        "mix": ("linear", 256, 12 * 256, False),
    },
    "functional": {
        "stem": ("conv2d", 216, 64 * 216, False),
        "kernel": ("conv2d", 288, 16 * 288, True),
        "router": ("linear", 32, 32, False),
        "experts": ("linear", 256, 256, True),
        "qkv": ("linear", 192, 192, True),
        "values": ("linear", 144, 144, True),
        "head": ("linear", 30, 30, False),
    },
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_product_and_lookup_is_a_layer(name: str) -> None:
    make, example = NETWORKS[name]
    model = make()
    graph = hwbmpq.describe(model, example())
    assert {layer.name: facts(layer) for layer in graph} == EXPECTED[name]
    assert graph.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("run", [trace_with_export, trace_with_hooks], ids=["export", "hooks"])
def test_all_tracers_find_them(name: str, run: object) -> None:
    make, example = NETWORKS[name]
    model = make()
    with _plain_evaluation(model.eval()):
        operations = run(model, example()[:1])  # type: ignore[operator]
    graph = describe_trace(model, Trace(operations=tuple(operations), traced_by=""))
    assert {layer.name: facts(layer) for layer in graph} == EXPECTED[name]


def test_a_recurrent_weight_counts_its_time_steps() -> None:
    graph = hwbmpq.describe(Gru(), torch.randn(1, 7, 10))
    inputs, states = graph["gru.weight_ih_l0"], graph["gru.weight_hh_l0"]
    assert (inputs.calls, inputs.input_shape, inputs.output_shape) == (1, (1, 7, 8), (1, 7, 36))
    assert (states.calls, states.input_shape, states.output_shape) == (7, (1, 1, 12), (1, 1, 36))
    assert (inputs.reads, inputs.fed_by, inputs.feeds) == (("embed",), ("embed",), ("head",))


def test_only_the_first_gate_of_a_network_is_an_end() -> None:
    middle = hwbmpq.describe(Gru(), torch.randn(1, 7, 10))
    assert [layer.name for layer in middle if layer.is_end] == ["embed", "head"]
    first = hwbmpq.describe(Lstm(), torch.randn(1, 7, 10))
    assert [layer.name for layer in first if layer.is_end] == ["lstm.weight_ih_l0", "head"]


def test_an_embedding_tied_to_the_head_is_one_weight() -> None:
    graph = hwbmpq.describe(TiedEmbedding(), torch.zeros(1, 12, dtype=torch.long))
    assert graph["head"].shares_weight_with == "embedding"
    assert graph["embedding"].is_end
    assert graph["head"].is_end
    assert not graph["positions"].is_end
    # They have no precision in common, W16A32 and W16A16, and being ends they need none.
    assert graph.ties == ()
    per_channel = graph.with_scales(per_channel=True)
    # One scale for each column of a table, but for each row where a product shares it.
    assert [layer.scales for layer in per_channel] == [40, 16, 16, 0]


def test_one_table_for_lookup_and_product_is_one_layer() -> None:
    graph = hwbmpq.describe(FunctionalHead(), torch.zeros(1, 12, dtype=torch.long))
    assert [layer.name for layer in graph] == ["embedding", "mix"]
    assert (graph["embedding"].kind, graph["embedding"].is_end) == ("linear", True)


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.renormed = nn.Embedding(8, 4, max_norm=1.0)
        self.sparse = nn.Embedding(8, 4, sparse=True)
        self.plain = nn.Embedding(8, 4, padding_idx=0)
        self.bag = nn.EmbeddingBag(8, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.renormed(tokens) + self.sparse(tokens) + self.plain(tokens)
        return self.head(values.mean(1) + self.bag(tokens))


def test_tables_that_need_floats_stay_in_float() -> None:
    graph = hwbmpq.describe(Tables(), torch.zeros(1, 3, dtype=torch.long))
    assert [layer.name for layer in graph] == ["plain", "bag", "head"]
    left = {entry.name: entry.reason for entry in graph.uncovered if entry.reason != "bias"}
    assert left == {"renormed": "embedding", "sparse": "embedding"}


class Tokens(nn.Module):
    """Parameters that are added to or put beside data are not weights."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 4, 4))
        self.bias = nn.Parameter(torch.randn(2, 9))
        self.first = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.first(x)], 1) + self.positions
        scores = torch.baddbmm(self.bias[:, :4].sum(0).expand(x.shape[0], 4, 4), x, x.transpose(1, 2))
        return self.head(scores.softmax(2) @ x)


def test_tokens_positions_and_biases_are_not_layers() -> None:
    graph = hwbmpq.describe(Tokens(), torch.randn(1, 3, 4))
    assert [layer.name for layer in graph] == ["first", "head"]


class Reshaped(nn.Module):
    """Weights that are put together, cut and turned before they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.queries = nn.Parameter(torch.randn(4, 4))
        self.keys = nn.Parameter(torch.randn(4, 4))
        self.heads = nn.Parameter(torch.randn(2, 4, 3))
        self.bounded = nn.Parameter(torch.randn(3, 3))
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        both = F.linear(self.embed(x), torch.cat([self.queries, self.keys]))
        mixed = torch.einsum("bti,hio->bhto", both[..., :4] + both[..., 4:], self.heads).sum(1)
        return self.head(mixed @ torch.tanh(self.bounded))


def test_weights_are_followed_through_changes_of_shape_only() -> None:
    graph = hwbmpq.describe(Reshaped(), torch.randn(1, 5, 4))
    assert {layer.name: layer.macs for layer in graph} == {
        "embed": 80,
        "queries": 5 * 16,
        "keys": 5 * 16,
        "heads": 5 * 24,
        "head": 30,
    }
    assert {e.name: e.reason for e in graph.uncovered if e.reason != "bias"} == {
        "bounded": "other parameter",
        "matmul": "activation product",
    }


def test_containers_keep_their_parameters_in_float() -> None:
    class Container(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(4, 4))
            self.kernel = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(super().forward(x), self.kernel)

    model = nn.Sequential(Container(), nn.Linear(4, 2))
    graph = hwbmpq.describe(model, torch.randn(1, 4))
    assert [layer.name for layer in graph] == ["0.0", "1"]


def test_a_transformer_of_torch_is_not_one_operation() -> None:
    graph = hwbmpq.describe(Encoder(), torch.randn(1, 7, 10))
    assert not graph["encoder.layers.0.linear1"].weight_only
    assert {group.layers for group in graph.ties} == set()


def test_what_is_stored_leaves_their_weights_out() -> None:
    graph = hwbmpq.describe(Gru(), torch.randn(1, 7, 10))
    stored = {entry.name: entry.bits for entry in graph.stored if entry.label != "clipping points"}
    biases = [
        "embed.bias",
        *(f"gru.bias_{part}_l{n}" for n in range(2) for part in ("ih", "hh")),
        "head.bias",
    ]
    assert stored == dict.fromkeys(biases[1:-1], 36 * 32) | {"embed.bias": 8 * 32, "head.bias": 5 * 32}
    assert {entry.label for entry in graph.stored} == {"biases", "clipping points"}
    assert sum(entry.label == "clipping points" for entry in graph.stored) == 2


def test_a_prepared_network_is_described_as_before() -> None:
    for make, example in NETWORKS.values():
        model = make()
        before = hwbmpq.describe(model, example())
        prepare(model, before)
        after = hwbmpq.describe(model, example())
        assert after.layers == before.layers
        assert after.stored == before.stored


def test_meta_networks_are_described_the_same() -> None:
    for make, example in NETWORKS.values():
        real = hwbmpq.describe(make(), example())
        with torch.device("meta"):
            model = make()
        found = hwbmpq.describe(model, example().to("meta"))
        assert found.layers == real.layers


def test_a_product_of_two_parameters_is_nobodys() -> None:
    uses = WeightUses(lambda value: "w" if isinstance(value, nn.Parameter) else "")
    weight, other = nn.Parameter(torch.randn(3, 3)), torch.randn(3, 3)
    uses.see("mm", (weight, weight), other, 27)
    assert uses.take() == ()
    uses.see("mm", (other, weight), other, 27)
    assert [use.macs for use in uses.take()] == [27]
