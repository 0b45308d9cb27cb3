"""Memory is what is stored: the budget's figure, the prediction and the packed file agree to the byte."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.costs import NetworkCosts, parse_budget, tabulate
from hwbmpq.export import predicted_size, save_packed
from hwbmpq.hardware import load_profile
from hwbmpq.quant import assign, prepare
from hwbmpq.testing import conv_layer
from hwbmpq.values import Precision


class Recurrent(nn.Module):
    """Weights that are layers, and all else that a network may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 5)
        self.first = nn.Linear(5, 7)
        self.gru = nn.GRU(7, 6, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.ones(3))
        self.hidden = nn.Linear(6, 5, bias=False)
        self.last = nn.Linear(5, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, words: Tensor) -> Tensor:
        found = self.norm(self.gru(torch.relu(self.first(self.words(words))))[0][:, -1])
        scaled: Tensor = self.last(torch.relu(self.hidden(found))) * self.scale
        return scaled


class Convolutions(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 5, 3, padding=1, bias=False),
            nn.BatchNorm2d(5),
            nn.ReLU(),
            nn.Conv2d(5, 5, 3, padding=1, groups=5),
            nn.ReLU(),
            nn.ConvTranspose2d(5, 7, 2),
            nn.Flatten(),
            nn.Linear(7 * 81, 3),
        )


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.relu(self.second(torch.relu(self.first(x)))))
        return found


NETWORKS = {
    "convolutions": (Convolutions, torch.zeros(1, 3, 8, 8)),
    "recurrent": (Recurrent, torch.zeros(1, 4, dtype=torch.int64)),
    "tied": (Tied, torch.zeros(1, 6)),
}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_budgeted_figure_is_the_predicted_one_and_the_files(
    name: str, per_channel: bool, tmp_path: Path
) -> None:
    make, example = NETWORKS[name]
    network = make()
    graph = hwbmpq.describe(network, example).with_scales(per_channel=per_channel)
    costs = tabulate(graph, load_profile("generic"), costs="memory", bits=[3, 8])
    widths = {name: options[0] for name, options in costs.choices.items()}
    budgeted = costs.table("memory").total(widths)
    predicted = predicted_size(network, graph, widths, per_channel=per_channel)
    prepare(network, graph, per_channel=per_channel)
    assign(network, widths)
    path = tmp_path / "network.safetensors"
    account = save_packed(network, path, example_input=example)
    assert budgeted == 8 * predicted.on_device.predicted_bytes
    assert budgeted == 8 * (account.on_device.actual_bytes or 0)
    assert {line.label for line in account.lines if line.predicted_bytes != line.actual_bytes} <= {
        "file header"
    }
    assert account.actual_bytes == path.stat().st_size


def linear_net() -> nn.Sequential:
    """40, 25 and 15 weights, biases for 5, 5 and 3 outputs."""
    return nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))


def linear_costs(cost: str = "memory", *, per_channel: bool = False) -> NetworkCosts:
    graph = hwbmpq.describe(linear_net(), torch.zeros(1, 8)).with_scales(per_channel=per_channel)
    return tabulate(graph, load_profile("generic"), costs=cost, bits=[3, 8])


def test_memory_is_all_that_is_stored() -> None:
    ends, beside = 16 * (40 + 15), 32 * (5 + 5 + 3) + 3 * 64  # biases and three clipping points
    assert linear_costs().total("memory", 3) == ends + 8 * 10 + 3 * 32 + beside  # 75 bits take 10 bytes
    channels = 32 * (5 + 5 + 3)
    assert linear_costs(per_channel=True).total("memory", 3) == ends + 8 * 10 + channels + beside
    assert linear_costs("weight_memory").total("weight_memory", 3) == ends + 75


def test_a_ratio_is_against_the_same_in_float() -> None:
    assert linear_costs().limit(parse_budget("memory", "4x")) == 32 * (80 + 13) / 4
    assert linear_costs("weight_memory").limit(parse_budget("weight_memory", "4x")) == 32 * 80 / 4


def test_a_layer_in_float_takes_the_width_that_the_network_has() -> None:
    graph = hwbmpq.describe(linear_net().half(), torch.zeros(1, 8).half())
    in_float = {layer.name: (Precision(weight_bits=32, activation_bits=32),) for layer in graph}
    table = tabulate(graph, load_profile("generic"), costs="memory", choices=in_float).table("memory")
    assert table.total({name: options[0] for name, options in in_float.items()}) == 16 * (80 + 13) + 3 * 64
    assert table.float_total == 16 * (80 + 13)


def test_a_list_of_layers_says_what_it_cannot_count() -> None:
    table = tabulate([conv_layer(4, 6, size=8)], load_profile("generic"), costs="memory").table("memory")
    assert "what is stored beside their weights is not counted" in table.leaves_out
    assert linear_costs().table("memory").leaves_out == ""


def test_a_profile_that_counts_weights_alone_still_does_and_says_so(tmp_path: Path) -> None:
    text = "schema: hwbmpq/profile/v1\nname: board\ntitle: A board\nclass: mcu\n"
    text += "precisions: {weights: [int8, int4], activations: [int8]}\n"
    (tmp_path / "board.yaml").write_text(text + "cost_models: {memory: {model: weight_memory}}\n")
    graph = hwbmpq.describe(linear_net(), torch.zeros(1, 8))
    costs = tabulate(graph, load_profile(tmp_path / "board.yaml"), costs="memory")
    assert costs.total("memory", 8) == 8 * 80
    assert costs.limit(parse_budget("memory", "4x")) == 32 * 80 / 4
    assert "weight_memory counts the weights alone, not the whole network" in costs.table("memory").leaves_out
