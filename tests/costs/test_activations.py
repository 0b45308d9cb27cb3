"""Activation memory: rows against the definition, by brute force."""

import itertools
import random
from collections.abc import Iterable
from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.costs import get_cost_model
from hwbmpq.costs.activations import MOST_ROWS_PER_STEP
from hwbmpq.errors import UnsupportedLayerError
from hwbmpq.hardware import layer_candidates, load_profile
from hwbmpq.testing import conv_layer
from hwbmpq.values import Layer, Precision, Schedule, StoredTensor

WIDTHS = tuple(Precision(weight_bits=bits, activation_bits=bits) for bits in (2, 4, 8))


class Network(list[Layer]):
    """Layers with a schedule, as ``LayerGraph`` has it."""

    def __init__(self, layers: Iterable[Layer], schedule: Schedule) -> None:
        super().__init__(layers)
        self.schedule = schedule


def peak(schedule: Schedule, allocation: dict[str, Precision]) -> int:
    """The definition, step by step."""
    worst = 0
    for step in range(len(schedule.steps)):
        total = 0
        for tensor in schedule.tensors:
            if tensor.made_at <= step <= tensor.last_read_at:
                if tensor.leaves or tensor.read_in_float:
                    bits = 32
                elif tensor.feeds_addition:
                    bits = 16
                elif tensor.readers:
                    bits = max(allocation[reader].activation_bits for reader in tensor.readers)
                else:
                    bits = 32
                total += tensor.elements * bits
        worst = max(worst, total)
    return worst


def random_network(seed: int, *, readers: int = 3) -> Network:
    rng = random.Random(seed)
    names = [f"l{index}" for index in range(5)]
    tensors = []
    for index in range(6):
        made = rng.randrange(5)
        tensors.append(
            StoredTensor(
                name=f"t{index}",
                elements=rng.randint(1, 100),
                made_at=made,
                last_read_at=rng.randint(made, 4),
                readers=tuple(rng.sample(names, rng.randint(0, readers))),
                feeds_addition=rng.random() < 0.2,
                leaves=rng.random() < 0.1,
                read_in_float=rng.random() < 0.1,
            )
        )
    layers = [conv_layer(2, 2, size=4, name=name) for name in names]
    return Network(layers, Schedule(steps=tuple(names), tensors=tuple(tensors)))


@pytest.mark.parametrize("seed", range(40))
def test_the_rows_give_the_peak_for_every_allocation(seed: int) -> None:
    network = random_network(seed)
    table = get_cost_model("activation_memory").tabulate(network, load_profile("generic"), WIDTHS)
    capped = bool(table.notes)
    for choice in itertools.product(WIDTHS, repeat=5):
        allocation = dict(zip((layer.name for layer in network), choice, strict=True))
        expected = peak(network.schedule, allocation)
        assert table.total(allocation) >= expected
        assert capped or table.total(allocation) == expected


def test_beyond_64_rows_a_step_tensors_count_at_their_widest_and_the_table_says_so() -> None:
    names = [f"l{index}" for index in range(5)]
    tensors = [
        StoredTensor(name=f"t{n}", elements=10 + n, made_at=0, last_read_at=0, readers=tuple(names))
        for n in range(4)
    ]
    layers = [conv_layer(2, 2, size=4, name=name) for name in names]
    network = Network(layers, Schedule(steps=("only",), tensors=tuple(tensors)))
    table = get_cost_model("activation_memory").tabulate(network, load_profile("generic"), WIDTHS)
    assert len(table.rows) <= MOST_ROWS_PER_STEP
    assert (
        "in 1 of 1 steps some tensors with several readers count at their widest candidate" in table.notes[0]
    )
    widest = dict.fromkeys(names, WIDTHS[-1])
    assert table.total(widest) == peak(network.schedule, widest)
    narrow = dict.fromkeys(names, WIDTHS[0])
    assert peak(network.schedule, narrow) < table.total(narrow) <= peak(network.schedule, widest)


@pytest.mark.parametrize(
    "spec", ["hwbmpq:resnet8_b", "timm:mobilenetv2_050", "timm:vit_tiny_patch16_224", "timm:densenet121"]
)
def test_real_networks_agree_with_the_definition(spec: str) -> None:
    model = hwbmpq.models.load_model(spec, device="meta")
    graph = hwbmpq.describe(model.network, model.example_input())
    profile = load_profile("generic")
    choices = layer_candidates(graph, profile, [2, 4, 8])
    table = get_cost_model("activation_memory").tabulate(graph, profile, choices)
    rng = random.Random(0)
    for _ in range(20):
        allocation = {name: rng.choice(precisions) for name, precisions in choices.items()}
        assert table.total(allocation) >= peak(graph.schedule, allocation)
        assert bool(table.notes) or table.total(allocation) == peak(graph.schedule, allocation)


class FunctionalConvolution(nn.Module):
    """A convolution in float, with a weight that is computed or is a layer, between two quantized layers."""

    def __init__(self, *, is_computed: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.kernel = nn.Parameter(torch.randn(16, 16, 3, 3))
        self.last = nn.Conv2d(16, 4, 1)
        self.is_computed = is_computed

    def forward(self, x: Tensor) -> Tensor:
        kernel = torch.tanh(self.kernel) if self.is_computed else self.kernel
        return self.last(F.conv2d(self.stem(x), kernel, padding=1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_computed", [True, False], ids=["computed weight", "weight-only layer"])
def test_a_convolution_in_float_reads_floats_and_makes_a_tensor(is_computed: bool) -> None:
    graph = hwbmpq.describe(FunctionalConvolution(is_computed=is_computed), torch.zeros(1, 3, 64, 64))
    table = get_cost_model("activation_memory").tabulate(
        graph, load_profile("generic"), {layer.name: WIDTHS for layer in graph}
    )
    allocation = {layer.name: WIDTHS[1] for layer in graph}  # 4 bits
    image, inner, outer = 3 * 64 * 64, 16 * 64 * 64, 4 * 64 * 64
    # While it runs: what it reads in float (256 KiB), and what it makes at the 4 bits of its reader (32 KiB).
    assert table.total(allocation) == inner * 32 + inner * 4 == 288 * 1024 * 8
    by_step = [image * 4 + inner * 32, inner * 32 + inner * 4, inner * 4 + outer * 32]
    assert max(by_step) == table.total(allocation)


def test_the_row_that_decides_is_named() -> None:
    model = hwbmpq.models.load_model("hwbmpq:resnet8", device="meta")
    graph = hwbmpq.describe(model.network, model.example_input())
    profile = load_profile("gap8")
    table = get_cost_model("ram").tabulate(graph, profile, layer_candidates(graph, profile, [2, 8]))
    allocation = {name: max(choices) for name, choices in layer_candidates(graph, profile, [2, 8]).items()}
    # add: its two operands and its result, 16 x 32 x 32 each, all at 16 bits.
    assert table.peak(allocation).label == "add"
    assert table.total(allocation) == 3 * 16 * 32 * 32 * 16


def test_layers_alone_are_not_enough() -> None:
    with pytest.raises(
        UnsupportedLayerError, match="needs the network's tensors: pass the LayerGraph"
    ) as caught:
        get_cost_model("activation_memory").tabulate(
            [conv_layer(2, 2, size=4)], load_profile("generic"), WIDTHS
        )
    assert "layer_working_set" in caught.value.hint


def test_the_working_set_is_one_row_per_layer() -> None:
    layers = [conv_layer(2, 4, size=4, name="a"), conv_layer(4, 8, size=4, name="b")]
    table = get_cost_model("layer_working_set").tabulate(layers, load_profile("generic"), WIDTHS)
    assert [row.label for row in table.rows] == ["a", "b"]
    assert table.total({"a": WIDTHS[2], "b": WIDTHS[0]}) == (2 + 4) * 16 * 8
    assert table.total({"a": WIDTHS[0], "b": WIDTHS[2]}) == (4 + 8) * 16 * 8
    assert prod(layers[0].input_shape) == 32


def test_the_largest_input_of_resnet20_is_what_papers_count() -> None:
    """16 x 32 x 32 values: 8 KiB at 4 bits, however narrow the smaller tensors are."""
    model = hwbmpq.models.load_model("hwbmpq:resnet20", device="meta")
    graph = hwbmpq.describe(model.network, model.example_input())
    widths = [Precision(weight_bits=2, activation_bits=bits) for bits in (4, 8)]
    table = get_cost_model("largest_input").tabulate(graph, load_profile("mpic"), widths)
    narrow = {layer.name: widths[prod(layer.input_shape) < 16 * 32 * 32] for layer in graph}
    assert table.total(narrow) == 16 * 32 * 32 * 4
    assert table.total({**narrow, "layer2.0.conv1": widths[1]}) == 16 * 32 * 32 * 8
    assert table.float_total == 16 * 32 * 32 * 32


def test_promoted_widths_are_stored_wide() -> None:
    precision = Precision(weight_bits=3, activation_bits=3)
    table = get_cost_model("layer_working_set").tabulate(
        [conv_layer(2, 2, size=4)], load_profile("mpic"), [precision]
    )
    assert table.total({"conv": precision}) == 64 * 4


def test_a_reader_that_is_never_the_widest_makes_no_row() -> None:
    wide = Precision(weight_bits=16, activation_bits=16)
    names = ["narrow", "fixed"]
    tensor = StoredTensor(name="t", elements=10, made_at=0, last_read_at=0, readers=tuple(names))
    layers = [conv_layer(2, 2, size=4, name=name) for name in names]
    network = Network(layers, Schedule(steps=("only",), tensors=(tensor,)))
    table = get_cost_model("activation_memory").tabulate(
        network, load_profile("generic"), {"narrow": WIDTHS, "fixed": [wide]}
    )
    (row,) = table.rows
    assert list(row.costs) == ["fixed"]


def combinations(*readers: int) -> Network:
    """One step with a tensor of each number of readers, the larger the earlier."""
    names = [f"l{index}" for index in range(max(readers))]
    tensors = tuple(
        StoredTensor(name=f"t{n}", elements=100 - n, made_at=0, last_read_at=0, readers=tuple(names[:count]))
        for n, count in enumerate(readers)
    )
    layers = [conv_layer(2, 2, size=4, name=name) for name in names]
    return Network(layers, Schedule(steps=("only",), tensors=tensors))


def test_64_combinations_are_exact_and_65_are_not() -> None:
    exact = get_cost_model("activation_memory").tabulate(combinations(8, 8), load_profile("generic"), WIDTHS)
    assert exact.notes == ()
    capped = get_cost_model("activation_memory").tabulate(combinations(8, 9), load_profile("generic"), WIDTHS)
    assert len(capped.notes) == 1


def test_the_smaller_tensor_is_the_one_that_is_capped() -> None:
    network = combinations(9, 8)
    table = get_cost_model("activation_memory").tabulate(network, load_profile("generic"), WIDTHS)
    narrow = dict.fromkeys((layer.name for layer in network), WIDTHS[0])
    assert table.total(narrow) == 100 * 2 + 99 * 8
