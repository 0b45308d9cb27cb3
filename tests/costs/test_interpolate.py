"""Costs between measured layers."""

import pytest

from hwbmpq.costs.interpolate import Interpolator, Shape, leave_one_out, shape_of
from hwbmpq.costs.lookup import geometry
from hwbmpq.hardware.lookup_table import TableEntry
from hwbmpq.hardware.schema import WidthPair, parse_format
from hwbmpq.testing import conv_layer, linear_layer
from hwbmpq.values import Layer

PAIR = WidthPair(weight=parse_format("int8"), activation=parse_format("int8"), compute="int8")


def entry(layer: Layer, value: float) -> TableEntry:
    return TableEntry.model_validate({**geometry(layer, PAIR), "macs": layer.macs, "value": value})


def shape(layer: Layer) -> Shape:
    found = shape_of(geometry(layer, PAIR), layer.macs)
    assert found is not None
    return found


def law(layer: Layer) -> float:
    """A device that pays for multiplying, for fetching weights, for activations, and for starting."""
    macs, weights, activations, one = shape(layer).work
    return 2e-5 * macs + 2e-4 * weights + 1e-4 * activations + 5 * one


GRID = [
    conv_layer(channels, 2 * channels, size=size, kernel_size=kernel)
    for channels in (16, 64, 256)
    for size in (7, 28)
    for kernel in (1, 3)
]


def test_a_layer_that_was_measured_is_hit() -> None:
    known = Interpolator([entry(layer, law(layer)) for layer in GRID])
    found = known.estimate(shape(GRID[3]))
    assert found is not None
    assert found.value == pytest.approx(law(GRID[3]), rel=0.01)
    assert not found.is_far


@pytest.mark.parametrize(
    "layer",
    [
        conv_layer(96, 96, size=14),
        conv_layer(32, 200, size=20, kernel_size=1),
        conv_layer(64, 64, size=14, kernel_size=5),
    ],
)
def test_layers_between_follow_the_law(layer: Layer) -> None:
    known = Interpolator([entry(other, law(other)) for other in GRID])
    found = known.estimate(shape(layer))
    assert found is not None
    assert found.value == pytest.approx(law(layer), rel=0.05)


def test_tokens_are_not_charged_for_fetching_weights_again() -> None:
    """A table with one-row linear layers must not price 197 rows at 197 times that: the weights are fetched once."""
    layers = [*GRID, linear_layer(512, 1000), linear_layer(1280, 1000)]
    known = Interpolator([entry(layer, law(layer)) for layer in layers])
    tokens = linear_layer(768, 768, tokens=197)
    found = known.estimate(shape(tokens))
    assert found is not None
    assert found.value == pytest.approx(law(tokens), rel=0.1)
    assert found.is_far


def test_the_nearest_neighbours_correct_the_law() -> None:
    """Narrow layers are 3 times slower than the law says: so is one between them."""

    def real(layer: Layer) -> float:
        return law(layer) * (3 if layer.in_channels < 64 else 1)

    layers = [*GRID, conv_layer(24, 48, size=14), conv_layer(20, 40, size=28)]
    found = Interpolator([entry(layer, real(layer)) for layer in layers]).estimate(
        shape(conv_layer(22, 44, size=20))
    )
    assert found is not None
    assert found.value == pytest.approx(real(conv_layer(22, 44, size=20)), rel=0.25)


def test_another_operation_is_no_neighbour() -> None:
    known = Interpolator([entry(layer, law(layer)) for layer in GRID])
    assert known.estimate(shape(linear_layer(64, 10))) is None
    assert known.estimate(shape(conv_layer(32, 32, size=14, groups=32))) is None


def test_leaving_one_out_tells_how_good_it_is() -> None:
    exact = leave_one_out([entry(layer, law(layer)) for layer in GRID])
    assert len(exact) == len(GRID)
    assert max(exact) < 0.02
    wrong = leave_one_out([entry(layer, law(layer) * (1 + index % 2)) for index, layer in enumerate(GRID)])
    assert sorted(wrong)[len(wrong) // 2] > 0.1
    assert leave_one_out([entry(GRID[0], 1.0)]) == ()


def test_an_entry_that_says_too_little_has_no_shape() -> None:
    assert shape_of({"op": "conv2d", "in_channels": 3}, 100) is None
    assert shape_of({"op": "conv2d", "in_channels": 3, "out_channels": 8, "positions": 0}, 100) is None
