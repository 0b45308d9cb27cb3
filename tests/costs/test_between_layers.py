"""What is between the layers."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hwbmpq
from hwbmpq.costs.between_layers import BetweenLayers
from hwbmpq.hardware.lookup_table import Overheads
from hwbmpq.hardware.schema import WidthPair, parse_format
from hwbmpq.values import Precision

INT8, FP32 = (
    WidthPair(weight=parse_format(name), activation=parse_format(name), compute=name)
    for name in ("int8", "fp32")
)
OPERATIONS = ("quantize", "dequantize", "add", "clip", "max_pool", "global_pool", "sigmoid", "product")
PRICES = {name: 10.0**-index for index, name in enumerate(OPERATIONS)}
OVERHEADS = Overheads.model_validate(
    {
        "per_run": 1000.0,
        "integer_bits": 8,
        "operations": [{"op": name, "fixed": 0.0, "per_element": price} for name, price in PRICES.items()],
    }
)


class Block(nn.Module):
    """conv-norm-relu, conv, added to the input, relu."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = (
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, 3, padding=1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.two(torch.relu(self.norm(self.one(x)))) + x)


def between(network: nn.Module, size: tuple[int, ...] = (1, 4, 8, 8)) -> BetweenLayers:
    return BetweenLayers(overheads=OVERHEADS, network=hwbmpq.describe(network.eval(), torch.randn(size)))


def test_norms_and_clips_after_a_layer_are_free_and_the_rest_is_counted() -> None:
    found = between(Block())
    assert found.constant == pytest.approx(1000 + 256 * (PRICES["add"] + PRICES["clip"]))
    assert found.notes == ()


def test_integers_are_made_and_unmade_only_where_something_else_is() -> None:
    found = between(Block())
    one, two = found.network
    assert found.boundary(one, INT8) == pytest.approx(256 * PRICES["quantize"])
    assert found.boundary(two, INT8) == pytest.approx(256 * PRICES["dequantize"])
    assert found.boundary(one, FP32) == found.boundary(two, FP32) == 0


def test_a_layer_in_float_makes_and_takes_no_integers() -> None:
    """As ends of 16 bits do."""
    network = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1))
    graph = hwbmpq.describe(network.eval(), torch.randn(1, 4, 8, 8))
    table = SimpleNamespace(overheads=OVERHEADS)
    byte, wide = (Precision(weight_bits=bits, activation_bits=bits) for bits in (8, 16))
    for ends, price in (((wide,), PRICES["quantize"] + PRICES["dequantize"]), ((byte, wide), 0.0)):
        found = BetweenLayers.of(table, graph, {"0": ends, "2": (byte, wide), "3": ends})  # type: ignore[arg-type]
        assert found is not None
        assert found.boundary(graph["2"], INT8) == pytest.approx(256 * price)


def test_integers_pass_a_pool_between_layers() -> None:
    network = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 2, 1))
    found = between(network)
    first, last = found.network
    assert found.boundary(first, INT8) == pytest.approx(256 * PRICES["quantize"])
    assert found.boundary(last, INT8) == pytest.approx(32 * PRICES["dequantize"])
    assert found.constant == pytest.approx(1000 + 512 * PRICES["max_pool"])


def test_readers_of_one_tensor_share_its_quantizer() -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x) + self.two(x)

    found = between(Fork())
    total = sum(found.boundary(layer, INT8) for layer in found.network)
    assert total == pytest.approx(256 * PRICES["quantize"] + 2 * 256 * PRICES["dequantize"])


def test_linear_layers_on_tokens_give_float() -> None:
    found = between(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), (1, 5, 8))
    assert [found.boundary(layer, INT8) for layer in found.network] == pytest.approx(
        [40 * PRICES["quantize"]] * 2
    )


def test_operations_without_a_price_count_as_additions_and_are_named() -> None:
    found = between(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Softplus()))
    assert found.constant == pytest.approx(1000 + 256 * PRICES["add"])
    assert found.notes == ("counted as additions, as no time is known: softplus (1)",)
    assert found.estimated_constant == pytest.approx(256 * PRICES["add"])


def test_products_of_activations_are_counted_by_their_macs() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return y @ y.transpose(1, 2)

    found = between(Attention(), (1, 5, 8))
    products = [entry for entry in found._counted() if entry[0] == "product"]
    assert [entry[1] for entry in products] == [5 * 5 * 8]


def test_layers_alone_say_what_is_missing() -> None:
    layers = list(hwbmpq.describe(Block().eval(), torch.randn(1, 4, 8, 8)))
    found = BetweenLayers(overheads=OVERHEADS, network=layers)
    assert found.constant == 1000
    assert found.boundary(layers[0], INT8) == 0
    assert "only the layers are known" in found.notes[0]


def test_two_prices_for_one_operation_are_refused() -> None:
    twice = [{"op": "add", "fixed": 0.0, "per_element": 1.0}] * 2
    with pytest.raises(ValueError, match="two overheads for 'add'"):
        Overheads.model_validate({"operations": twice})
